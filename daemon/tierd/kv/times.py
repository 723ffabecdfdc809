"""When rows were used: Unix time, but by a clock that nobody sets while tierd runs."""

from __future__ import annotations

import time

_BEGAN = time.time() - time.monotonic()


def unix_time(monotonic: float | None = None) -> float:
    """Return monotonic seconds, by default those of now, as seconds since the epoch.

    What comes later is never less, whatever the system's clock is set to: it was asked once.
    """
    return _BEGAN + (time.monotonic() if monotonic is None else monotonic)
