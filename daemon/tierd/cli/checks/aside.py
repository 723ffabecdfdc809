"""Asks a process of its own what a driver may hang at or die of."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tierd.errors import DeviceError, DeviceTimeoutError
from tierd.settings import Settings


@dataclass(frozen=True, slots=True)
class Patience:
    """who: is waited for. seconds: for so long."""

    who: str
    seconds: float


# By a name of `worker.LOOKS`. The first one has to start the process, too.
PATIENCE = {
    "loader": Patience("Vulkan's loader", 30.0),
    "devices": Patience("one of Vulkan's drivers", 30.0),
    "witness": Patience("the device", 60.0),
    "rails": Patience("Kompute", 60.0),
    "places": Patience("the device or Kompute", 60.0),
}
# What a process gets to end in. One that a driver keeps in the kernel does not, even if it is killed.
_END_S = 2.0


class Aside:
    """A `worker`, started when it is first asked, and anew after one that failed. A context manager."""

    def __init__(self, settings: Settings) -> None:
        """settings: what is looked at is to be as in these."""
        self._settings = settings
        self._worker: _Worker | None = None

    def ask(self, look: str) -> Any:
        """Return what a look finds. DeviceError, DeviceTimeoutError where its process dies or hangs."""
        patience = PATIENCE[look]
        if self._worker is None:
            self._worker = _Worker(self._settings)
        try:
            return self._worker.ask(look, patience.seconds)
        except TimeoutError:
            self._worker.kill()
            self.close()
            raise DeviceTimeoutError(
                f"{patience.who} does not answer within {patience.seconds:g} s"
            ) from None
        except (EOFError, ConnectionError):
            worker, self._worker = self._worker, None
            raise DeviceError(f"{patience.who} ends the process that calls it: {worker.end()}") from None

    def close(self) -> None:
        """End the process, if there is one. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def __enter__(self) -> Aside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """The process, which leads a group of its own: it may start others."""

    def __init__(self, settings: Settings) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with contextlib.ExitStack() as made, theirs:
            self._said = made.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tierd.cli.checks.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            self._made = made.pop_all()
        self._connection.send(settings)

    def ask(self, look: str, seconds: float) -> Any:
        """Raises TimeoutError, and EOFError or ConnectionError where the process has ended."""
        self._connection.send(look)
        if not self._connection.poll(seconds):
            raise TimeoutError
        return self._connection.recv()

    def kill(self) -> None:
        """Kill it and what it has started. It has not been waited for."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> str:
        """Let it end, and return how it has, in words."""
        self._connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with self._made:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()
        status = self._process.returncode
        if status is not None and status < 0:
            return signal.Signals(-status).name
        return said.splitlines()[-1] if said else f"status {status}"
