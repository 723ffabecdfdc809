"""How long work on a device may take before it is taken to hang."""

from __future__ import annotations

# A step that takes longer than this never ends; on a software device it may take so many times as long.
STEP_TIMEOUT_S = 60.0
SOFTWARE_PATIENCE = 20


def step_timeout_s(*, software: bool) -> float:
    """Return the seconds that a step may take. software: the device is one."""
    return STEP_TIMEOUT_S * (SOFTWARE_PATIENCE if software else 1)
