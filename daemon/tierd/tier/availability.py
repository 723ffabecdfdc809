"""Whether this box can serve on a backend at all: each is asked once, and what it says is kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tierd.backends.resident.image import default_directory
from tierd.backends.resident.witness import witness
from tierd.backends.vkapi import Device, choose_matrix
from tierd.errors import DeviceError, DeviceLostError, DeviceTimeoutError
from tierd.settings import GPUSettings
from tierd.tier.status import BIT_FOR_BIT

log = logging.getLogger(__name__)

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """reason: why the box cannot serve there, "" when it can. device: opened then, else None."""

    reason: str
    device: Device | None


_NOT_OPENED, _CLOSED = Verdict("not opened", None), Verdict("closed", None)


class Availability:
    """The verdicts on all backends. Any thread may ask; the first waits for the backend's witness."""

    def __init__(self, settings: GPUSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._verdicts: dict[str, Verdict] = {}

    def backend_available(self, name: str) -> Verdict:
        """Return the verdict on a backend, one of WITNESSES."""
        with self._lock:
            if name not in self._verdicts:
                self._verdicts[name] = WITNESSES[name](self._settings)
            return self._verdicts[name]

    def known(self, name: str) -> Verdict:
        """Return the verdict on a backend without asking it; one that was not asked is "not opened"."""
        return self._verdicts.get(name, _NOT_OPENED)

    def close(self) -> None:
        """Close the devices that were opened. Nothing may run there any more, and none is opened again."""
        with self._lock:
            verdicts, self._verdicts = self._verdicts, dict.fromkeys(WITNESSES, _CLOSED)
        for verdict in verdicts.values():
            if verdict.device is not None:
                verdict.device.close()


def _resident(settings: GPUSettings) -> Verdict:
    """Open the Vulkan device, and let it compute something."""
    try:
        device = Device.open(
            allow_software=settings.allow_software,
            vram_limit=settings.vram_limit_mb * _MIB,
            pipeline_cache=default_directory().with_name("pipelines"),
            cooperative_matrix=settings.cooperative_matrix,
        )
    except DeviceError as error:
        return Verdict(str(error), None)
    try:
        witness(device)
    except (DeviceLostError, DeviceTimeoutError) as error:  # left behind: closing it would wait for it
        return Verdict(str(error), None)
    except DeviceError as error:
        device.close()
        return Verdict(str(error), None)
    facts = device.facts
    log.info(
        "device %s: %s, Vulkan %s, %.0f MiB for models",
        facts.name, facts.type, ".".join(map(str, facts.api)), device.budget() / _MIB,
    )  # fmt: skip
    if settings.cooperative_matrix:
        level = logging.WARNING if device.matrix_decline else logging.INFO
        log.log(level, "gpu.cooperative_matrix is set: products are %s", products_of(device))
    return Verdict("", device)


def products_of(device: Device) -> str:
    """Return how a device multiplies by matrices, and why so where another way was asked for."""
    if device.matrix_decline:
        return f"{BIT_FOR_BIT}, since {device.facts.name} {device.matrix_decline}"
    matrix = choose_matrix(device.facts)
    return BIT_FOR_BIT if matrix is None else f"on cooperative matrices of {matrix}, not {BIT_FOR_BIT}"


WITNESSES: dict[str, Callable[[GPUSettings], Verdict]] = {"resident": _resident}
