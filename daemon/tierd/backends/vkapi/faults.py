"""Faults on purpose: results that Vulkan's functions return without being called."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(slots=True)
class _Fault:
    result: int
    passing: int
    left: int | None


class Faults:
    """Which calls are to fail, by function. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault] = {}

    def __bool__(self) -> bool:
        return bool(self._faults)

    def put(self, name: str, result: int, *, after: int, times: int | None) -> None:
        """Let `after` calls of a function pass, and the `times` that follow return `result`; None: all."""
        with self._lock:
            self._faults[name] = _Fault(result, after, times)

    def clear(self, name: str) -> None:
        """Let a function's calls pass."""
        with self._lock:
            self._faults.pop(name, None)

    def take(self, name: str) -> int | None:
        """Return what this call of a function returns; None: it passes."""
        with self._lock:
            fault = self._faults.get(name)
            if fault is None:
                return None
            if fault.passing:
                fault.passing -= 1
                return None
            if fault.left is not None:
                fault.left -= 1
                if not fault.left:
                    del self._faults[name]
            return fault.result
