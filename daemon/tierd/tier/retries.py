"""When a device that was given up is tried again: ever later, and only so often. Pure."""

from __future__ import annotations

FIRST_S, LONGEST_S = 1.0, 60.0
TRIES = 8
# A device that has worked for so long has all its tries again.
HEALTHY_S = 600.0


class Retries:
    """The tries of one device. Times are monotonic seconds.

    due: when it may be tried; None while it works, and when it has been tried too often. faults: how often it
    was given up.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self.faults = 0
        self._tries = 0
        self._works_since: float | None = None

    def fault(self, now: float) -> None:
        """Note that the device that works was given up."""
        self.faults += 1
        if self._works_since is None or now - self._works_since >= HEALTHY_S:
            self._tries = 0
        self._plan(now)

    def failed(self, now: float) -> None:
        """Note that a try was in vain."""
        self._tries += 1
        self._plan(now)

    def succeeded(self, now: float) -> None:
        """Note that a try has brought a device that works."""
        self._tries += 1
        self._works_since = now
        self.due = None

    def _plan(self, now: float) -> None:
        tried = self._tries >= TRIES
        self.due = None if tried else now + min(FIRST_S * 2**self._tries, LONGEST_S)
