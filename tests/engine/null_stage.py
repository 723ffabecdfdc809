"""A fake device that models take turns on: it counts bytes, and fails when it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.device_slot import NullFallback, device_slot
from tierd.backends.absent import AbsentExecutor
from tierd.settings import ModelSettings
from tierd.slot import Placed, Slot
from tierd.tier.device_home import DeviceHome
from tierd.tier.reservations import Reservations
from tierd.tier.seat import DeviceSeat
from tierd.tier.status import TierStatus


@dataclass(frozen=True)
class NullMarks:
    """arm: makes the model's home on a device. slot facts that it gets there are those that it had."""

    model: str
    bytes: int
    arm: Callable[[], DeviceHome]
    scratch: int | None


@dataclass
class NullStage:
    """patience: seconds that it takes to arm. broken: errors that the next tries to arm meet.

    armed: models, in the order in which they came. sizes: what each takes.
    """

    budget: int
    patience: float = 0.0
    broken: list[Exception] = field(default_factory=list)
    armed: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reservations = Reservations(lambda: self.budget)

    def bytes_of(self, model: str) -> int:
        return self.sizes.get(model, 0)

    def renew(self, marks: NullMarks) -> NullMarks:
        return marks

    def arm(self, marks: NullMarks) -> tuple[Placed, NullMarks]:
        time.sleep(self.patience)
        if self.broken:
            raise self.broken.pop(0)
        self.armed.append(marks.model)
        placed = Placed(
            home=marks.arm(),
            context=0,
            outcome="gpu:resident",
            device="null",
            codec="f16",
            scratch=marks.scratch,
            prefill_window=64,
        )
        return placed, marks

    def status(self) -> TierStatus:
        held = self.reservations.held
        return TierStatus(
            backend="null", device="null", used=sum(held.values()), budget=self.budget, reservations=held
        )


def seated_slot(settings: ModelSettings, stage: NullStage, *, size: int, on: bool, **options: Any) -> Slot:
    """Return a slot as `device_slot` does, which takes turns on a stage. on: it is there already."""
    slot = device_slot(settings, **options)
    fallback = slot.fallback
    assert isinstance(fallback, NullFallback)
    slot.seat = seat = DeviceSeat(settings.id, stage)
    slot.marks = NullMarks(settings.id, size, fallback.arm, slot.scratch)
    stage.sizes[settings.id] = size
    seat.restore(slot.marks)
    if on:
        slot.capture(seat.rearm())
        seat.settle()
    else:
        slot.marks = seat.save()
        slot.home.executor.close()
        slot.home.executor = AbsentExecutor.of(slot.home.executor)
    return slot
