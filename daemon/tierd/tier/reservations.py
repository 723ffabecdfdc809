"""Whose the device's memory is: what models that are on it, or on their way, have been promised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tierd.errors import DeviceMemoryError, OrderError
from tierd.kv.sizing import mib


class Reservations:
    """Bytes by model. Always the sum of `held` is at most the budget that there was when each was taken.

    Any thread may call. A model that is marked to leave has its bytes until they are released.
    """

    def __init__(self, budget: Callable[[], int]) -> None:
        """budget: tells the bytes that all models may take; they may become fewer. Waits for nothing."""
        self._budget = budget
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._leaving: set[str] = set()

    @property
    def held(self) -> Mapping[str, int]:
        """What each model has."""
        with self._lock:
            return dict(self._held)

    def of(self, model: str) -> int:
        """Return what a model has, 0 where it has none."""
        with self._lock:
            return self._held.get(model, 0)

    @property
    def free(self) -> int:
        """Bytes that nobody has."""
        with self._lock:
            return max(0, self._budget() - sum(self._held.values()))

    def check_order(self, model: str) -> None:
        """Raise OrderError where `take` would, whatever is free."""
        with self._lock:
            self._check_order(model)

    def take(self, model: str, size: int) -> None:
        """Reserve bytes for a model that has none.

        Raises OrderError while another is marked to leave and has not dropped, or where the model has some,
        DeviceMemoryError where they are more than is free.
        """
        budget = self._budget()
        with self._lock:
            self._check_order(model)
            free = max(0, budget - sum(self._held.values()))
            if size > free:
                raise DeviceMemoryError(
                    f"{model} needs {mib(size)} of the device's {mib(budget)}, of which {mib(free)} are free"
                )
            self._held[model] = size

    def adjust(self, model: str, size: int) -> None:
        """Note that a model has got by with fewer bytes. OrderError where it has none, or not so many."""
        with self._lock:
            if size > self._held.get(model, -1):
                raise OrderError(f"{model} has no reservation of {size} bytes")
            self._held[model] = size

    def leave(self, model: str) -> None:
        """Mark a model to leave: nobody comes until it has dropped. OrderError where it has no bytes."""
        with self._lock:
            if model not in self._held:
                raise OrderError(f"{model} cannot leave: it is not on the device")
            self._leaving.add(model)

    def stay(self, model: str) -> None:
        """Take the mark off again."""
        with self._lock:
            self._leaving.discard(model)

    def release(self, model: str) -> None:
        """Give a model's bytes back, and take its mark off. Nothing happens where it has none."""
        with self._lock:
            self._held.pop(model, None)
            self._leaving.discard(model)

    def _check_order(self, model: str) -> None:
        if self._leaving:
            names = ", ".join(sorted(self._leaving))
            raise OrderError(f"{model} cannot come: {names} is to leave the device and has not dropped")
        if model in self._held:
            raise OrderError(f"{model} is on the device already")
