"""The process that has Kompute, as the daemon sees it: started, asked, given up."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future

import msgspec

from tierd import errors
from tierd.backends.rails import messages
from tierd.errors import DeviceError, DeviceLostError, DeviceTimeoutError, NoDeviceError

log = logging.getLogger(__name__)

_MODULE = "tierd.backends.rails.worker"
# A process that was told to end, or has died, is gone within so many seconds, or was never to end by itself.
_PARTING_S = 5.0
_ERRORS = {
    kind.__name__: kind
    for kind in (DeviceError, NoDeviceError, errors.DeviceMemoryError, DeviceLostError, DeviceTimeoutError)
}


class Process:
    """One that has a device. Any thread may ask; calls are answered one at a time, with the GIL released.

    abandoned: why it was given up, "" while it was not: nothing more can be asked of it then. It is killed,
    which frees all that it had.
    """

    def __init__(self, device: str, timeout_s: float) -> None:
        """Start it. device: its name. timeout_s: how long a call may take. Raises NoDeviceError."""
        self.abandoned = ""
        self._device = device
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # held while a call is answered
        self._said = ""  # its last line
        self._ended = threading.Event()
        self._decoder = msgspec.msgpack.Decoder(messages.Answer)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        started: Future[subprocess.Popen[bytes]] = Future()
        with theirs:
            # Lives as long as the process, which the system kills when the thread that started it ends.
            threading.Thread(
                target=self._keep, args=(theirs, started), name="tierd-kompute", daemon=True
            ).start()
            try:
                self._process = started.result()
            except OSError as error:
                self._channel.close()
                raise NoDeviceError(f"Kompute's process cannot be started: {error}") from error

    @property
    def id(self) -> int:
        """Its number at the system."""
        return self._process.pid

    def ask(self, call: messages.Call, descriptor: int | None = None) -> None:
        """Have something done, and wait for it. descriptor: goes with the call.

        Raises the DeviceError that it answers with; DeviceTimeoutError where it does not answer in time, and
        DeviceLostError where it dies, or was given up before.
        """
        with self._lock:
            if self.abandoned:
                raise DeviceLostError(self.abandoned)
            try:
                answer = self._answer(call, [] if descriptor is None else [descriptor])
            except DeviceError:
                self._channel.close()
                raise
        if isinstance(answer, messages.Failed):
            raise _ERRORS[answer.error](answer.message)

    def abandon(self, error: DeviceError) -> None:
        """Give it up because of an error: it is killed, and not waited for; a call it had is over."""
        self._kill(error)
        with contextlib.suppress(OSError):  # it is closed, or the process has died
            self._channel.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._channel.close()

    def close(self) -> None:
        """Let it end. Idempotent; nobody asks it any more."""
        self.abandoned = self.abandoned or "it is closed"
        self._channel.close()
        if not self._ended.wait(_PARTING_S):
            self._process.kill()

    def _answer(self, call: messages.Call, descriptors: list[int]) -> messages.Answer:
        """Send a call and wait for its answer. Raises DeviceError where there is none: it is killed then."""
        data = b""
        self._channel.settimeout(self._timeout_s)
        try:
            socket.send_fds(self._channel, [msgspec.msgpack.encode(call)], descriptors)
            data = self._channel.recv(messages.MOST_BYTES)
        except TimeoutError:
            late = DeviceTimeoutError(
                f"{self._device} did not finish in {self._timeout_s:g} s and was left; look into the "
                "system's log for the driver's"
            )
            self._kill(late)
            raise late from None
        except OSError:
            pass  # it has died
        if not data:
            if self.abandoned:
                raise DeviceLostError(self.abandoned)
            self._ended.wait(_PARTING_S)
            lost = DeviceLostError(f"{self._device} is lost: {self._end}")
            self._kill(lost)
            raise lost
        return self._decoder.decode(data)

    def _kill(self, error: DeviceError) -> None:
        self.abandoned = self.abandoned or str(error)
        self._process.kill()

    @property
    def _end(self) -> str:
        """How it ended, in one line."""
        code = self._process.returncode
        if code is None:
            how = "no longer answers"
        elif code < 0:
            how = f"was ended by {_signal(-code)}"
        else:
            how = f"ended with exit code {code}"
        return f"Kompute's process {how}" + (f" ({self._said})" if self._said else "")

    def _keep(self, theirs: socket.socket, started: Future[subprocess.Popen[bytes]]) -> None:
        """Run in a thread of its own: start the process, log what it prints, and wait for its end."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        assert process.stdout is not None
        with process.stdout as printed:
            while line := printed.readline(1 << 12):
                if text := line.decode("utf-8", "replace").strip():
                    self._said = text
                    log.warning("Kompute's process: %s", text)
        process.wait()
        self._ended.set()


def _signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
