"""Whether this box can serve on a backend at all: each is asked once, and what it says is kept.

A device that is given up in the middle of its work is tried again after a while: a fresh one is opened,
without the memory that the others still hold. Kompute's holds none then: its process is gone.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tierd.backends.rails.card import Card
from tierd.backends.rails.witness import open_card
from tierd.backends.resident.image import default_directory
from tierd.backends.resident.witness import witness
from tierd.backends.vkapi import Device, choose_matrix
from tierd.errors import DeviceError
from tierd.settings import GPUSettings
from tierd.tier.retries import TRIES, Retries
from tierd.tier.status import BIT_FOR_BIT

log = logging.getLogger(__name__)

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """reason: why the box cannot serve there, "" when it can. device: opened then, else None.

    lost: there was one that was given up. card: the device as Kompute has it, where that was asked for.
    """

    reason: str
    device: Device | None
    lost: bool = False
    card: Card | None = None

    @property
    def opened(self) -> Device | Card | None:
        """What was opened, whichever."""
        return self.device or self.card


_NOT_OPENED, _CLOSED = Verdict("not opened", None), Verdict("closed", None)


@dataclass(slots=True)
class _Backend:
    """What is known of a backend. given_up: devices that were, the latest last. fault: why."""

    verdict: Verdict = _NOT_OPENED
    given_up: list[Device] = field(default_factory=list)
    retries: Retries = field(default_factory=Retries)
    fault: str = ""


class Availability:
    """The verdicts on all backends. Any thread may ask; the first waits for the backend's witness."""

    def __init__(self, settings: GPUSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: tells monotonic seconds."""
        self._settings = settings
        self._clock = clock
        self._opening = threading.Lock()  # held while a device is opened, which takes seconds
        self._lock = threading.Lock()  # of what follows
        self._backends = {name: _Backend() for name in WITNESSES}

    def backend_available(self, name: str) -> Verdict:
        """Return the verdict on a backend, one of WITNESSES."""
        with self._opening:
            if self.known(name) is _NOT_OPENED:
                self._open(name)
            return self.known(name)

    def known(self, name: str) -> Verdict:
        """Return the verdict on a backend without asking it; one that was not asked is "not opened"."""
        return self._backends[name].verdict

    def lost(self, name: str) -> float | None:
        """Return when a backend's device may be tried again, if it was given up. Waits for nothing.

        Monotonic seconds; now where a fresh one is there already; None where it was tried too often. What was
        given up since the last call is noted.
        """
        with self._lock:
            backend, now = self._backends[name], self._clock()
            verdict = backend.verdict
            if verdict.opened is not None and not verdict.opened.abandoned:
                return now
            if verdict.opened is not None:
                if verdict.device is not None:  # a card that is given up holds nothing any more
                    backend.given_up.append(verdict.device)
                backend.fault = verdict.opened.abandoned
                backend.retries.fault(now)
                self._tell_lost(name)
            return backend.retries.due

    def barred(self, name: str) -> float:
        """Return until when a backend's device is not to be used, monotonic seconds; 0 where it works.

        It is infinite where it was tried too often. Waits for nothing.
        """
        due = self.lost(name)
        if not self.known(name).lost:
            return 0.0
        return math.inf if due is None else due

    def probe(self, name: str) -> Verdict:
        """Try a backend again whose device was given up, once that is due; return the verdict as it is then.

        Takes seconds: a fresh device is opened and has to compute something.
        """
        with self._opening:
            due = self.lost(name)
            if self.known(name).lost and due is not None and due <= self._clock():
                self._open(name)
            return self.known(name)

    def faults(self, name: str) -> tuple[int, str]:
        """Return how often a backend's device was given up in the middle of its work, and why it was last."""
        backend = self._backends[name]
        return backend.retries.faults, backend.fault

    def retry_at(self, name: str) -> float | None:
        """Return when a backend is due to be tried again, None when it is not."""
        return self._backends[name].retries.due

    def close(self) -> None:
        """Close the devices that were opened. Nothing may run there any more, and none is opened again."""
        with self._opening, self._lock:
            verdicts = [backend.verdict for backend in self._backends.values()]
            for backend in self._backends.values():
                backend.verdict = _CLOSED
        for verdict in verdicts:
            if verdict.card is not None:
                verdict.card.close()
            if verdict.device is not None:
                verdict.device.close()

    def _open(self, name: str) -> None:
        """Open a backend's device, the first or a fresh one, and note the verdict."""
        backend = self._backends[name]
        verdict = WITNESSES[name](self._settings, backend.given_up)
        with self._lock:
            again = backend.verdict.lost
            backend.verdict = verdict
            if again and verdict.opened is not None:
                backend.retries.succeeded(self._clock())
            elif again:
                backend.fault = verdict.reason
                backend.retries.failed(self._clock())
                self._tell_lost(name)

    def _tell_lost(self, name: str) -> None:
        backend = self._backends[name]
        retries, reason = backend.retries, backend.fault
        if retries.due is None:
            reason += f"; it has been tried {TRIES} times and is left alone: restart tierd to use it again"
        backend.verdict = Verdict(reason, None, lost=True)
        log.error("the device cannot be used for %s: %s", _USES[name], reason)


def _resident(settings: GPUSettings, given_up: list[Device]) -> Verdict:
    """Open the Vulkan device, and let it compute something. One that fails at that is given up."""
    try:
        device = Device.open(
            allow_software=settings.allow_software,
            vram_limit=settings.vram_limit_mb * _MIB,
            given_up=given_up,
            pipeline_cache=default_directory().with_name("pipelines"),
            cooperative_matrix=settings.cooperative_matrix,
        )
    except DeviceError as error:
        return Verdict(str(error), None)
    try:
        witness(device)
    except DeviceError as error:
        if device.abandoned:
            given_up.append(device)
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


def _kompute(settings: GPUSettings, given_up: list[Device]) -> Verdict:
    """Open the same device through Kompute, and let it multiply."""
    try:
        card = open_card(allow_software=settings.allow_software)
    except DeviceError as error:
        return Verdict(str(error), None)
    log.info("device %s is open through Kompute too, for rails, in process %d", card.name, card.process_id)
    return Verdict("", None, card=card)


def products_of(device: Device) -> str:
    """Return how a device multiplies by matrices, and why so where another way was asked for."""
    if device.matrix_decline:
        return f"{BIT_FOR_BIT}, since {device.facts.name} {device.matrix_decline}"
    matrix = choose_matrix(device.facts)
    return BIT_FOR_BIT if matrix is None else f"on cooperative matrices of {matrix}, not {BIT_FOR_BIT}"


_USES = {"resident": "whole models", "kompute": "rails"}
WITNESSES: dict[str, Callable[[GPUSettings, list[Device]], Verdict]] = {
    "resident": _resident,
    "kompute": _kompute,
}
