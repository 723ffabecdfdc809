"""A model's seat at the device: the order in which it leaves and comes back, held here and nowhere else.

    ON ── leave ──> LEAVING ── drop ──> DROPPED ── save ──> AWAY ── restore ──> RESTORED ── rearm ──> ARMED
    ^                  │                                     ^                     │                    │
    ├────── stay ──────┘                                     └─────── save ────────┘                    │
    └────────────────────────────────────────── settle ─────────────────────────────────────────────────┘

`lose` leads from ON, LEAVING and ARMED to LOST, from where `save` leads to AWAY. Between `leave` and `drop`
every row that the model has on the device is brought into the host bank. A call that is not a way out of the
seat's state raises OrderError before anything is touched.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Generic, Protocol, TypeVar

from tierd.backends.absent import AbsentExecutor
from tierd.errors import DeviceMemoryError, OrderError
from tierd.kv.home import Home
from tierd.slot import Placed
from tierd.tier.reservations import Reservations


class SeatState(enum.StrEnum):
    """How a model stands with the device.

    ON: it is there and serves. LEAVING: its steps are over, its rows are on their way to the bank.
    DROPPED: nothing of it is there. AWAY: what it takes to come back is saved. RESTORED: it may come.
    ARMED: it is there, its streams are on their way. LOST: the device failed, and what it had with it.
    """

    ON = "on"
    LEAVING = "leaving"
    DROPPED = "dropped"
    AWAY = "away"
    RESTORED = "restored"
    ARMED = "armed"
    LOST = "lost"


class Marks(Protocol):
    """What a model holds of the device, moved out and in as one value.

    model: whose. bytes: that it takes there.
    """

    @property
    def model(self) -> str:
        """Whose they are."""

    @property
    def bytes(self) -> int:
        """What the model takes of the device."""


M = TypeVar("M", bound=Marks)


class Stage(Protocol[M]):
    """The device, as seats need it. reservations: of all models on it."""

    reservations: Reservations

    def bytes_of(self, model: str) -> int:
        """Return what a model will take when it comes, 0 for an unknown one. Waits for nothing."""

    def renew(self, marks: M) -> M:
        """Return marks as they are on the device that there is now, which may be a fresh one.

        Raises TierdError where there is none, or none that the model fits on alone.
        """

    def arm(self, marks: M) -> tuple[Placed, M]:
        """Put a model there, whose bytes are reserved; return what it got, and its marks from now on.

        Takes seconds. Raises DeviceError where that fails; then nothing of it is there.
        """


class DeviceSeat(Generic[M]):
    """One model's. `drop` and `rearm` take long and may be called from a worker, one call at a time."""

    holds_rows = True
    refusal = ""

    def __init__(self, model: str, stage: Stage[M]) -> None:
        """It begins AWAY, with nothing saved yet: `restore` gives it its first marks."""
        self.model = model
        self.state = SeatState.AWAY
        self._stage = stage
        self._marks: M | None = None

    @property
    def bytes(self) -> int:
        """What the model takes of the device, or will when it comes."""
        return self._stage.reservations.of(self.model) or self._stage.bytes_of(self.model)

    @property
    def barred(self) -> float:
        """Until when the device is not to be tried, monotonic seconds."""
        return 0.0

    @property
    def serves(self) -> bool:
        """Whether streams may have rows in steps there."""
        return self.state in (SeatState.ON, SeatState.ARMED)

    def leave(self) -> None:
        """Mark the model to leave: no step of it begins any more, and nobody comes before it has dropped."""
        self._go("leave", SeatState.ON)
        self._stage.reservations.leave(self.model)
        self.state = SeatState.LEAVING

    def stay(self) -> None:
        """Call a leave off."""
        self._go("stay", SeatState.LEAVING)
        self._stage.reservations.stay(self.model)
        self.state = SeatState.ON

    def drop(self, home: Home) -> None:
        """Free all that the model has on the device; its home has the executor's facts from then on.

        OrderError too where rows are there still, or on their way: they are hydrated first.
        """
        self._go("drop", SeatState.LEAVING)
        self._free(home)
        self._stage.reservations.release(self.model)
        self.state = SeatState.DROPPED

    def _free(self, home: Home) -> None:
        """Free what the model has on the device. Raises OrderError where that would lose rows."""
        room = home.room
        if home.moves or room.free != room.total:
            raise OrderError(
                f"{self.model} cannot drop: rows of {room.total - room.free} regions are not in the bank"
            )
        executor, home.executor = home.executor, AbsentExecutor.of(home.executor)
        executor.close()

    def save(self) -> M:
        """Return the marks, which the seat forgets: what `restore` takes when the model is to come back."""
        self._go("save", SeatState.DROPPED, SeatState.RESTORED, SeatState.LOST)
        marks, self._marks = self._marks, None
        assert marks is not None
        self.state = SeatState.AWAY
        return marks

    def restore(self, marks: M) -> None:
        """Take marks in. OrderError for those of another model."""
        self._go("restore", SeatState.AWAY)
        if marks.model != self.model:
            raise OrderError(f"{self.model} cannot restore: the marks are those of {marks.model}")
        self._marks = marks
        self.state = SeatState.RESTORED

    def rearm(self) -> Placed:
        """Put the model on the device; it is ARMED then, or RESTORED still where that fails.

        OrderError while another is marked to leave and has not dropped, and where the seat is given up
        meanwhile. DeviceMemoryError where it does not fit beside those that are there; DeviceError, and
        UnsupportedModelError, as the stage has it, also where the device is lost meanwhile.
        """
        self._go("rearm", SeatState.RESTORED)
        assert self._marks is not None
        reservations = self._stage.reservations
        reservations.check_order(self.model)
        self._marks = self._stage.renew(self._marks)
        try:
            reservations.take(self.model, self._marks.bytes)
        except DeviceMemoryError:
            self._marks = self._stage.renew(self._marks)  # nothing is free on a device that is lost
            raise
        try:
            placed, marks = self._stage.arm(self._marks)
        except BaseException:
            reservations.release(self.model)
            raise
        try:
            reservations.adjust(self.model, marks.bytes)
        except OrderError:
            placed.home.executor.close()
            raise
        self._marks = marks
        self.state = SeatState.ARMED
        return dataclasses.replace(placed, seat=self)

    def settle(self) -> None:
        """Note that the streams that came back are at home."""
        self._go("settle", SeatState.ARMED)
        self.state = SeatState.ON

    def lose(self) -> None:
        """Note that the device is lost, and all that the model had there. It has no reservation any more."""
        self._go("lose", SeatState.ON, SeatState.LEAVING, SeatState.ARMED)
        self._stage.reservations.release(self.model)
        self.state = SeatState.LOST

    def release(self) -> None:
        """Give up the seat, whatever its state: the model has ended and its executor is closed."""
        self._stage.reservations.release(self.model)
        self._marks = None
        self.state = SeatState.AWAY

    def _go(self, call: str, *states: SeatState) -> None:
        if self.state not in states:
            allowed = " or ".join(states)
            raise OrderError(f"{self.model} cannot {call} while it is {self.state}: it must be {allowed}")
