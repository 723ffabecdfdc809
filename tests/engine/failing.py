"""Vulkan functions that fail in the middle of what a device does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from faulty import SUBMIT_FAULTS, WAIT_FAULTS
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.vkapi import Device

SUBMIT, WAIT = "vkQueueSubmit", "vkWaitSemaphores"


@dataclass(frozen=True)
class Phase:
    """The method during whose next call a Vulkan function fails, of an executor or of a backend.

    after: how many of the function's calls pass before. flights: steps that are in flight then; None: any.
    """

    method: str
    function: str
    after: int = 0
    flights: int | None = None
    of: type[ResidentExecutor | ResidentBackend] = ResidentExecutor

    @contextmanager
    def failing(self, result: int) -> Iterator[threading.Event]:
        """Let it happen once, until the end at the latest; the event tells when it is about to."""
        method = getattr(self.of, self.method)
        met = threading.Event()
        devices: list[Device] = []

        def fails(owner: Any, *arguments: object, **options: object) -> object:
            if not met.is_set() and (self.flights is None or self.flights == len(owner._flights)):
                met.set()
                devices.append(owner.device if self.of is ResidentBackend else owner._device)
                devices[0].vk.inject(self.function, result, after=self.after, times=1)
            return method(owner, *arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.of, self.method, fails)
            yield met
        assert not any(device.vk._faults for device in devices)

    @property
    def faults(self) -> dict[int, str]:
        """What the function may return, and the name of the error that this becomes."""
        faults = SUBMIT_FAULTS if self.function == SUBMIT else WAIT_FAULTS
        return {result: error.__name__ for result, error in faults.items()}
