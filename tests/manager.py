"""systemd's side of the notify socket, for tests."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from live import LONG_WAIT_S

Told = dict[str, str]


class Manager:
    """What has been told to `address`, each message as its lines, with when it came."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self.address = address
        self._listener = listener
        self._told: list[tuple[float, Told]] = []
        self._came = threading.Condition()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    @property
    def told(self) -> list[Told]:
        with self._came:
            return [told for _, told in self._told]

    def times(self, name: str) -> list[float]:
        """Return when messages with a line of that name came, monotonic seconds."""
        with self._came:
            return [when for when, told in self._told if name in told]

    def await_one(self, wanted: Callable[[Told], bool], after: int = 0) -> int:
        """Wait for such a message among those from the number `after` on; return the number behind it."""
        until = time.monotonic() + LONG_WAIT_S
        with self._came:
            while True:
                for number, (_, told) in enumerate(self._told[after:], after + 1):
                    if wanted(told):
                        return number
                assert self._came.wait(until - time.monotonic()), f"not among {self._told[after:]}"

    def close(self) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _listen(self) -> None:
        while message := self._listener.recv(4096):
            told = dict(line.split("=", 1) for line in message.decode().splitlines())
            with self._came:
                self._told.append((time.monotonic(), told))
                self._came.notify_all()


@contextmanager
def manager() -> Iterator[Manager]:
    """Listen at an abstract address, as systemd does for services with a root directory of their own."""
    name = f"tierd-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        with closing(Manager(listener, f"@{name}")) as listening:
            yield listening
