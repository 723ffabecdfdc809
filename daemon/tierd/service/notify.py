"""What systemd is told of the daemon, by the protocol of sd_notify(3): datagrams of lines NAME=VALUE."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

# A manager that does not take a message for so long does not get it.
PATIENCE_S = 1.0
_MICRO = 1_000_000


class Notifier:
    """Where to tell it. watchdog_s: how often systemd wants a sign of life; None: it wants none."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """`address`: path of a Unix socket, or @NAME of an abstract one; "": nobody is told."""
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def taken_from(cls, environment: MutableMapping[str, str]) -> Notifier:
        """Return the one that systemd asks for; what it has set for that is removed.

        Processes that tierd starts do not see it then. Other addresses than Unix sockets' count as none.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        interval = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", str(os.getpid()))
        if not address.startswith(("/", "@")):
            return cls()
        watched = interval.isdecimal() and int(interval) and process == str(os.getpid())
        return cls(address, int(interval) / _MICRO if watched else None)

    @property
    def listens(self) -> bool:
        """Whether anybody is told."""
        return bool(self._address)

    def ready(self, status: str) -> None:
        """It has started, or taken over its settings. status: one line of words, here and below."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self, status: str) -> None:
        """It reads its settings; `ready` follows."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", f"STATUS={status}")

    def stopping(self, status: str, within_s: float) -> None:
        """It has begun to end, which may take so long."""
        self._tell("STOPPING=1", f"STATUS={status}", _extend(within_s))

    def status(self, status: str) -> None:
        """How it stands."""
        self._tell(f"STATUS={status}")

    def takes_longer(self, seconds: float) -> None:
        """What it does now, the start say, may take so much longer from now on."""
        self._tell(_extend(seconds))

    def alive(self) -> None:
        """The sign of life."""
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
                speaker.settimeout(PATIENCE_S)
                speaker.sendto("\n".join(lines).encode(errors="backslashreplace"), self._address)
        except OSError as error:
            log.warning("systemd is not told %s: %s", lines[0], error)


def _extend(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={round(seconds * _MICRO)}"
