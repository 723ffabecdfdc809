"""How far something long has come, said in the log every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

# Called with the bytes that are done, and with their total.
Progress = Callable[[int, int], None]

_EVERY_S = 3.0
_MB = 10**6


def logged(what: str, *, every_s: float = _EVERY_S) -> Progress:
    """Return a progress that logs `what` and how far it is; what takes less than `every_s` stays unsaid."""
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= every_s:
            said = now
            log.info("%s: %d %% of %d MB", what, 100 * done // max(total, 1), total // _MB)

    return report
