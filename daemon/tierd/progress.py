"""How far something long has come: said in the log every few seconds, and to whoever follows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

log = logging.getLogger(__name__)

# Called with the bytes that are done, and with their total.
Progress = Callable[[int, int], None]

_follower: ContextVar[Progress | None] = ContextVar("follower", default=None)

_EVERY_S = 3.0
_MB = 10**6


@contextmanager
def followed(report: Progress | None) -> Iterator[None]:
    """Have `report` called as well with whatever is logged of work that begins meanwhile, in this thread."""
    token = _follower.set(report)
    try:
        yield
    finally:
        _follower.reset(token)


def logged(what: str, *, every_s: float = _EVERY_S) -> Progress:
    """Return a progress that logs `what` and how far it is; what takes less than `every_s` stays unsaid."""
    said, follower = time.monotonic(), _follower.get()

    def report(done: int, total: int) -> None:
        nonlocal said
        if follower is not None:
            follower(done, total)
        now = time.monotonic()
        if now - said >= every_s:
            said = now
            log.info("%s: %d %% of %d MB", what, 100 * done // max(total, 1), total // _MB)

    return report
