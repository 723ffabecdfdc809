"""A fake device that models take turns on: it counts bytes, and fails when it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.device_slot import NullFallback, device_slot
from tierd.backends.absent import AbsentExecutor
from tierd.errors import DeviceMemoryError, OrderError
from tierd.settings import ModelSettings
from tierd.slot import Placed, Slot
from tierd.tier.device_home import DeviceHome
from tierd.tier.reservations import Reservations
from tierd.tier.seat import DeviceSeat, SeatState
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

    armed: models, in the order in which they came. sizes: what each takes. faults: see TierStatus.
    """

    budget: int
    patience: float = 0.0
    broken: list[Exception] = field(default_factory=list)
    armed: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    faults: int = 0

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
        return _placed(marks), marks

    def come(self, seat: DeviceSeat[NullMarks], marks: NullMarks, *, at_once: bool = True) -> Placed:
        """Put a model there whose seat is away, or let it wait for its turn, as `DeviceSite` does."""
        seat.restore(self.renew(marks))
        if at_once:
            others = self.reservations.held
            try:
                return seat.rearm()
            except OrderError:
                pass
            except DeviceMemoryError:
                if not (others or self.reservations.held):
                    raise
        return self.wait(seat)

    def wait(self, seat: DeviceSeat[NullMarks]) -> Placed:
        """Leave a model away, as `DeviceSite` does."""
        marks = seat.save()
        placed = replace(_placed(marks), seat=seat, marks=marks)
        placed.home.executor.close()
        placed.home.executor = AbsentExecutor.of(placed.home.executor)
        return placed

    def come_back(self, slot: Slot) -> Placed:
        """Put a model there once more that was lost with its device; it may be tried again if that fails."""
        seat = slot.seat
        assert isinstance(seat, DeviceSeat)
        if seat.state is SeatState.LOST:
            slot.marks = seat.save()
        try:
            placed = self.come(seat, slot.marks)
        except DeviceMemoryError:
            placed = self.wait(seat)
        except BaseException:
            if seat.state is SeatState.RESTORED:
                slot.marks = seat.save()
            raise
        slot.marks = placed.marks
        return placed

    def status(self) -> TierStatus:
        held = self.reservations.held
        return TierStatus(
            backend="null",
            device="null",
            faults=self.faults,
            used=sum(held.values()),
            budget=self.budget,
            reservations=held,
        )


def _placed(marks: NullMarks) -> Placed:
    return Placed(
        home=marks.arm(),
        context=0,
        outcome="gpu:resident",
        device="null",
        codec="f16",
        scratch=marks.scratch,
        prefill_window=64,
    )


def seated_slot(settings: ModelSettings, stage: NullStage, *, size: int, on: bool, **options: Any) -> Slot:
    """Return a slot as `device_slot` does, which takes turns on a stage. on: it is there if it has room."""
    slot = device_slot(settings, **options)
    fallback = slot.fallback
    assert isinstance(fallback, NullFallback)
    slot.seat = seat = DeviceSeat(settings.id, stage)
    fallback.come_back = stage.come_back
    stage.sizes[settings.id] = size
    slot.home.executor.close()
    placed = stage.come(seat, NullMarks(settings.id, size, fallback.arm, slot.scratch), at_once=on)
    slot.capture(placed)
    slot.marks = placed.marks
    if slot.marks is None:
        seat.settle()
    return slot
