"""One switch: models leave the device, another comes, and no stream notices but by a pause.

The order is that of DESIGN: the steps of those that leave end (pause), all their rows go to the host bank
(hydrate), what they have on the device is freed (drop) and their marks are kept (save); then the marks of
who comes are taken out (restore), it is put on the device (rearm), and its streams go home (rehome). The
phases in the middle run in a worker. When the newcomer cannot be put there, those who left come back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from tierd.core import PassReason, Sequence
from tierd.engine.fallbacks import Fallbacks
from tierd.engine.messages import Message, SwitchDone, SwitchPhase
from tierd.engine.operation import Operation
from tierd.errors import DeviceLostError, OrderError, TierdError
from tierd.progress import followed
from tierd.slot import Seat, Slot
from tierd.tier.device_home import DeviceHome
from tierd.tier.seat import SeatState

log = logging.getLogger(__name__)

PHASES = ("pause", "hydrate", "drop", "save", "restore", "rearm", "rehome")


class Switch:
    """A switch that has begun. The engine thread alone uses it, but for the phases from drop to rearm.

    incoming: who comes, None where a model only leaves. outgoing: who leave. reason: why, see the metric.
    operation: is told of the phases. seconds: of each phase that is over. error: why it failed, once it has.
    ended: whether nothing is left to do.
    """

    def __init__(
        self,
        incoming: Slot | None,
        outgoing: Iterable[Slot],
        reason: str,
        *,
        resume: str,
        fallbacks: Fallbacks,
        inbox: SimpleQueue[Message],
        operation: Operation | None = None,
    ) -> None:
        """Begin it: those who leave are given no more steps. resume: see SwitchSettings."""
        self.incoming = incoming
        self.outgoing = tuple(outgoing)
        self._emptied = [slot for slot in self.outgoing if _seat(slot).holds_rows]  # of their rows, first
        self.reason = reason
        self.operation = operation
        self.seconds: dict[str, float] = {}
        self.phase = ""
        self.began = self._phase_began = time.monotonic()
        self.error: TierdError | None = None
        self.ended = False
        self._reason = PassReason.AWAY if resume == "cpu" else None
        self._fallbacks = fallbacks
        self._inbox = inbox
        self._coming: list[Sequence] = []
        self._stopped: TierdError | None = None
        self._regions = 0  # that hold rows when hydration begins
        for slot in self.outgoing:
            _seat(slot).leave()
            fallbacks.dismiss(slot)
        self._halted = [slot for slot in self.outgoing if not slot.serves]
        self._enter("pause")

    @property
    def at_work(self) -> bool:
        """Whether a worker is at work for it."""
        return any(slot.handed for slot in self._slots)

    def involves(self, slot: Slot) -> bool:
        """Whether a slot takes part."""
        return slot in self._slots

    def advance(self) -> bool:
        """Go on as far as possible now; return whether anything has changed."""
        before = self.phase, self.ended
        if self.phase in ("pause", "hydrate") and any(slot.lost for slot in self.outgoing):
            self.call_off(DeviceLostError("the device was lost while rows were brought off it"))
        elif self.phase == "pause" and all(map(_is_quiet, self._halted)):
            self._enter("hydrate")
            self._regions = self._held
        moving = self.phase == "hydrate" and self._hydrate()
        if self.phase == "rehome" and self._is_home:
            self._end()
        return moving or (self.phase, self.ended) != before

    @property
    def idle_s(self) -> float:
        """How long the device did nothing for those who leave or come."""
        return sum(self.seconds.get(phase, 0.0) for phase in PHASES[1:-1])

    def stop(self, error: TierdError) -> None:
        """Let nobody come any more: the server ends."""
        self._stopped = error
        if self.phase in ("pause", "hydrate"):
            self.call_off(error)

    def call_off(self, error: TierdError) -> None:
        """End it before anything has left; those who were to leave stay."""
        for slot in self.outgoing:
            if not slot.lost:
                _seat(slot).stay()
        self.error = error
        self._end()

    def arrive(self, done: SwitchDone) -> None:
        """Take in what came of the phases in the worker."""
        self.seconds.update(done.seconds)
        self.phase, now = "", time.monotonic()
        for slot in self._slots:
            slot.handed = False
        for slot, placed in done.placed.items():
            slot.capture(placed)
            slot.back = now
            self._fallbacks.arrived(slot)
            if slot is not self.incoming:
                _seat(slot).settle()
        self.error = done.error
        if self.incoming is None or done.error is not None:
            self._end()
            return
        self._enter("rehome")
        self._coming = list(self.incoming.returning)

    @property
    def _slots(self) -> tuple[Slot, ...]:
        return self.outgoing if self.incoming is None else (*self.outgoing, self.incoming)

    @property
    def _held(self) -> int:
        """Regions of those who leave that are not free."""
        rooms = [slot.home.room for slot in self._emptied]
        return sum(room.total - room.free for room in rooms)

    def _hydrate(self) -> bool:
        """Have all rows brought to the bank, those of live streams first; return whether it is done with."""
        for slot in self._emptied:
            for sequence in list(slot.running):
                if not sequence.moves:
                    self._fallbacks.evacuate(slot, sequence, self._reason)
        if not any(slot.running for slot in self._emptied):
            for slot in self._emptied:
                if _is_quiet(slot) and slot.home.room.cached:
                    _device_home(slot).vacate()
        held = self._held
        if self.operation is not None:
            self.operation.progress(self._regions - held, self._regions)
        if held or not all(map(_is_quiet, self._emptied)):
            return any(slot.move is None and slot.home.moves for slot in self._emptied)
        self._leave_phase()
        for slot in self.outgoing:  # those without rows were there first
            slot.returning = deque(sorted(slot.returning, key=lambda sequence: sequence.rank))
        for slot in self._slots:
            slot.handed = True
        # A daemon: a hung driver must not keep the process from ending.
        threading.Thread(target=self._work, name="tierd-switch", daemon=True).start()
        return True

    @property
    def _is_home(self) -> bool:
        """Whether the streams that waited for the newcomer have their rows there, or have gone."""
        slot = self.incoming
        assert slot is not None
        return slot.lost != "" or not any(
            sequence in slot.returning or (sequence in slot.running and sequence.moves)
            for sequence in self._coming
        )

    def _end(self) -> None:
        if self.incoming is not None and self.error is None:
            if self.incoming.lost:
                self.error = DeviceLostError("the device was lost while streams went home")
            else:
                _seat(self.incoming).settle()
        self._leave_phase()
        self.ended = True

    def _enter(self, phase: str) -> None:
        self._leave_phase()
        self.phase, self._phase_began = phase, time.monotonic()
        if self.operation is not None:
            self.operation.enter(phase)

    def _leave_phase(self) -> None:
        if self.phase in PHASES:
            self.seconds[self.phase] = time.monotonic() - self._phase_began
        self.phase = ""

    # ---- In the worker; what it touches is in nobody else's hands meanwhile.

    def _work(self) -> None:
        done = SwitchDone(self)
        try:
            self._exchange(done)
        except TierdError as error:
            done.error = error
        except Exception as error:
            log.exception("a switch failed")
            done.error = OrderError(f"a switch failed: {type(error).__name__}: {error}")
        if done.error is not None and self._stopped is None:
            self._put_back(done)
        self._inbox.put(done)

    def _exchange(self, done: SwitchDone) -> None:
        with self._timed("drop", done):
            for slot in self.outgoing:
                _seat(slot).drop(slot.home)
        with self._timed("save", done):
            for slot in self.outgoing:
                slot.marks = _seat(slot).save()
        if self.incoming is None:
            return
        if self._stopped is not None:
            raise self._stopped
        with self._timed("restore", done):
            _seat(self.incoming).restore(self.incoming.marks)
        report = None if self.operation is None else self.operation.progress
        with self._timed("rearm", done), followed(report):
            done.placed[self.incoming] = _seat(self.incoming).rearm()

    def _put_back(self, done: SwitchDone) -> None:
        """Bring those back to the device who left it in vain, as far as that goes."""
        if self.incoming is not None and _seat(self.incoming).state == SeatState.RESTORED:
            self.incoming.marks = _seat(self.incoming).save()
        for slot in self.outgoing:
            seat = _seat(slot)
            try:
                if seat.state == SeatState.LEAVING:
                    seat.stay()
                    continue
                if seat.state == SeatState.DROPPED:
                    slot.marks = seat.save()
                seat.restore(slot.marks)
                done.placed[slot] = seat.rearm()
            except Exception as error:
                log.warning(
                    "model=%s is not back on the device: %s: %s", slot.id, type(error).__name__, error
                )
                if seat.state == SeatState.RESTORED:
                    slot.marks = seat.save()

    @contextmanager
    def _timed(self, phase: str, done: SwitchDone) -> Iterator[None]:
        if self.operation is not None:
            self.operation.enter(phase)
        self.phase = phase
        self._inbox.put(SwitchPhase(phase))
        began = time.monotonic()
        try:
            yield
        finally:
            done.seconds[phase] = time.monotonic() - began


def _is_quiet(slot: Slot) -> bool:
    """Whether nothing works on what a slot has on the device."""
    return (
        not slot.steps
        and slot.move is None
        and not slot.home.moves
        and not slot.leaving
        and not any(sequence.moves for sequence in slot.running)
    )


def _seat(slot: Slot) -> Seat:
    assert slot.seat is not None
    return slot.seat


def _device_home(slot: Slot) -> DeviceHome:
    assert isinstance(slot.home, DeviceHome)
    return slot.home
