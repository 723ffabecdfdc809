"""The end of an engine: how long devices may still take, so that time is left to keep conversations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tierd.backends.rails.executor import RailsExecutor
from tierd.errors import DeviceTimeoutError
from tierd.settings import StateSettings
from tierd.slot import Slot

# Steps bring nothing to anybody any more: a device that has not done its own in so many seconds is given up.
GRACE_S = 5.0


class Parting:
    """Gives up devices that hang while rows of their models lie on the host. The engine thread's own.

    deadline: when that is due, monotonic seconds; None: not before the end, and once only.
    """

    def __init__(self, settings: StateSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """They get at most half of the time that keeping conversations may take."""
        self.deadline: float | None = None
        self._grace_s = min(GRACE_S, settings.save_s / 2)
        self._clock = clock

    def begin(self) -> None:
        """Note that all streams have been ended for good."""
        self.deadline = self._clock() + self._grace_s

    def step(self, slots: Iterable[Slot]) -> None:
        """Have steps done by the host that hold up the runner which is to copy rows, once that is due."""
        if self.deadline is None or self._clock() < self.deadline:
            return
        self.deadline = None
        late = DeviceTimeoutError(f"it did not finish in {self._grace_s:g} s while tierd ends, and was left")
        for slot in slots:
            if slot.steps and isinstance(slot.executor, RailsExecutor):
                slot.executor.abandon(late)
