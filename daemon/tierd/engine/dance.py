"""Who is on the device: models that do not fit there together take turns, by `tier.dance`'s rules.

One switch at a time. An administrator's wish comes before what the rules say. A model that could not be put
on the device is barred from it for a while: its streams go to the CPU meanwhile, or wait.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue

from tierd.backends.rails.executor import RailsExecutor
from tierd.core import PassReason, Sequence
from tierd.engine import routing
from tierd.engine.answers import Answers
from tierd.engine.fallbacks import Fallbacks
from tierd.engine.ledger import Ledger
from tierd.engine.messages import Activate, Message, SwitchDone
from tierd.engine.operation import Operation
from tierd.engine.snapshot import SwitchRecord
from tierd.engine.switch import Switch
from tierd.errors import (
    DeviceLostError,
    DeviceMemoryError,
    DeviceTimeoutError,
    NoDeviceError,
    TierdError,
    UnavailableError,
)
from tierd.kv.sizing import mib
from tierd.settings import SwitchSettings
from tierd.slot import Slot, line_up
from tierd.tier.dance import Rules, Standing, make_room, next_look, next_switch
from tierd.tier.seat import SeatState
from tierd.tier.status import TierStatus

log = logging.getLogger(__name__)

# A model stays for at least so many times as long as the last switch took.
_HOLD = 4.0
# Switches that are told of once they have ended.
_REMEMBERED = 32
# How long a model is barred that could not be put on the device; twice as long each time.
_BAR_S, _LONGEST_BAR_S = 5.0, 60.0


@dataclass(slots=True)
class _Bar:
    """until: monotonic seconds. tries: in vain, in a row."""

    until: float
    tries: int
    reason: PassReason


class Dance:
    """The switches of one device. switch: the one that is going on. switches: how many were done.

    recent: the last that ended, oldest first.
    """

    def __init__(
        self,
        settings: SwitchSettings,
        *,
        fallbacks: Fallbacks,
        ledger: Ledger,
        answers: Answers,
        inbox: SimpleQueue[Message],
        tier: Callable[[], TierStatus],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """tier: tells how the device stands. clock: tells monotonic seconds."""
        self.switch: Switch | None = None
        self.switches = 0
        self.recent: tuple[SwitchRecord, ...] = ()
        self.deadline: float | None = None
        self._settings = settings
        self._fallbacks = fallbacks
        self._ledger = ledger
        self._answers = answers
        self._inbox = inbox
        self._tier = tier
        self._clock = clock
        self._slots: dict[str, Slot] = {}  # those with a seat
        self._wanted: deque[Activate] = deque()
        self._wanting: Activate | None = None  # what the switch is for
        self._arrived: dict[Slot, float] = {}
        self._kept: dict[Slot, float] = {}  # until when those stay that an administrator has brought
        self._used: dict[Slot, float] = {}  # when there was a stream last
        self._asked: dict[Slot, float] = {}  # since when streams wait for those that are away
        self._wished: dict[Slot, float] = {}  # since when streams on the CPU would come back
        self._bars: dict[Slot, _Bar] = {}
        self._crowded: dict[Slot, int] = {}  # had no room in pieces beside others; after how many faults
        self._stopped = False
        self._last_s = 0.0  # what the last switch took
        self._status: TierStatus | None = None  # as of this step, once it was asked for

    def configure(self, settings: SwitchSettings) -> None:
        """Go by other settings from now on."""
        self._settings = settings

    @property
    def busy(self) -> bool:
        """Whether a worker is at work."""
        return self.switch is not None and self.switch.at_work

    def enter(self, slot: Slot) -> None:
        """Take in a slot that was loaded."""
        if slot.seat is not None:
            self._slots[slot.id] = slot
            self._arrived[slot] = self._used[slot] = self._clock()

    def holds(self, slot: Slot) -> bool:
        """Whether a slot takes part in the switch that is going on."""
        return self.switch is not None and self.switch.involves(slot)

    def forget(self, slot: Slot) -> None:
        """Forget a slot that is not served any more."""
        self._slots.pop(slot.id, None)
        for known in (self._arrived, self._kept, self._used, self._asked, self._wished, self._bars):
            known.pop(slot, None)
        self._crowded.pop(slot, None)
        for wanted in [wanted for wanted in self._wanted if wanted.model == slot.id]:
            self._wanted.remove(wanted)
            error = UnavailableError(f"{slot.id}: it was unloaded meanwhile")
            self._answers.refuse(wanted.activated, error)

    def activate(self, wanted: Activate) -> None:
        """Bring a model to the device as soon as no other switch is going on."""
        if wanted.operation is not None:
            wanted.operation.enter("wait")
        self._wanted.append(wanted)

    def break_down(self, error: TierdError) -> None:
        """Answer administrators; nothing more will happen."""
        self._refuse_wanted(error)
        if self._wanting is not None:
            self._answers.refuse(self._wanting.activated, error)

    def stop(self) -> None:
        """Begin no switch any more, and end one that nothing has left for yet."""
        error = UnavailableError("the server is shutting down")
        self._refuse_wanted(error)
        if self.switch is not None:
            self.switch.stop(error)
            if self.switch.ended:
                self._settle(self.switch)
        self._stopped = True

    def notice_failure(self, slot: Slot) -> None:
        """Take a model off the device if that has failed it, which has a part of it.

        It comes back as one that is away, once that is due.
        """
        seat = slot.seat
        if seat is not None and seat.state == SeatState.ON and not slot.handed and _failure(slot):
            seat.lose()
            slot.marks = seat.save()

    def arrived(self, done: SwitchDone) -> None:
        """Take in what a worker has done for the switch."""
        done.switch.arrive(done)

    def step(self) -> bool:
        """Do what has become possible. Returns whether streams or rows can go on by that."""
        self.deadline, self._status, now = None, None, self._clock()
        for slot in self._slots.values():
            self.notice_failure(slot)
        if self.switch is not None:
            changed = self._look(now) | self.switch.advance()
            if self.switch.ended:
                self._settle(self.switch)
                return True  # the next one may begin
            return changed
        if self._stopped:
            return False
        if self._wanted or self._settings.idle_s or any(not slot.there for slot in self._slots.values()):
            return self._look(now) | (self._begin_wanted() or self._begin_due(now))
        self._note_use(now)
        return False

    def _refuse_wanted(self, error: TierdError) -> None:
        while self._wanted:
            self._answers.refuse(self._wanted.popleft().activated, error)

    def _note_use(self, now: float) -> None:
        for slot in self._slots.values():
            if _is_busy(slot):
                self._used[slot] = now

    def _look(self, now: float) -> bool:
        """Note who is in use, who is waited for, and who cannot come; return whether that has changed."""
        self._note_use(now)
        changed = False
        for slot in self._slots.values():
            if slot.there or slot.lost or self.holds(slot):
                self._asked.pop(slot, None)
                self._wished.pop(slot, None)
                slot.barred = None
                continue
            if slot.serves:  # nobody waits for it, it would only be faster there
                _note(self._wished, slot, now, bool(_failure(slot)) or _is_waited_for(slot, slot.running))
                continue
            _note(self._asked, slot, now, _is_waited_for(slot, slot.running))
            _note(self._wished, slot, now, routing.wishes(slot))
            before, lasts = slot.barred, False
            slot.barred = None
            if slot.occupied or slot.waiting:
                self._notice_loss(slot)
                slot.barred, lasts = self._obstacle(slot, now)
            changed |= slot.barred != before
            if slot.barred is not None and lasts and slot.stranded:
                self._fallbacks.give_up(slot, slot.barred.words)
            if self._settings.resume == "cpu" and not slot.stranded and slot.returning:
                self._send_to_cpu(slot)
                changed = True
        return changed

    def _notice_loss(self, slot: Slot) -> None:
        """Have a device tried again that has failed while nobody was there who would notice."""
        known = self._fallbacks.recovers or any(other.lost for other in self._slots.values())
        if self.switch is None and not known and not self._memory.device and slot.fallback is not None:
            self._fallbacks.miss(slot, DeviceLostError(self._memory.reason or "it is lost"))

    def _obstacle(self, slot: Slot, now: float) -> tuple[PassReason | None, bool]:
        """Say why a slot that is away cannot come, None if it can; and whether time alone changes nothing."""
        bar, seat = self._bars.get(slot), slot.seat
        assert seat is not None
        if self._fallbacks.recovers or seat.barred > now:
            return PassReason.DEVICE_LOST, seat.barred == math.inf
        if not self._memory.device:  # where nobody has noticed yet, the switch will
            return PassReason.DEVICE_LOST, any(other.lost for other in self._slots.values())
        if bar is not None and now < bar.until:
            return bar.reason, False
        if make_room(self._standings(now), self._memory.budget, slot.id) is None:
            return PassReason.NO_ROOM, True
        return None, False

    def _send_to_cpu(self, slot: Slot) -> None:
        """Let streams go on at the CPU that were on their way back when their model left."""
        for sequence in slot.returning:
            sequence.passes = PassReason.AWAY
            line_up(slot.exiles, sequence)
        slot.returning.clear()

    def _standings(self, now: float) -> list[Standing]:
        return [self._standing(slot, now) for slot in self._slots.values() if not slot.lost]

    def _standing(self, slot: Slot, now: float) -> Standing:
        seat = slot.seat
        assert seat is not None
        bar = self._bars.get(slot)
        return Standing(
            model=slot.id,
            bytes=max(seat.bytes, self._all_but_pinned) if self._comes_alone(slot) else seat.bytes,
            on=slot.there,
            pinned=slot.settings.pin,
            arrived=max(self._arrived[slot], slot.back),  # it comes back from a fault without a switch
            busy=slot.there and (_is_busy(slot) or now < self._kept.get(slot, 0.0)),
            used=self._used[slot],
            asked=self._asked.get(slot),
            wished=self._wished.get(slot),
            barred=max(seat.barred, bar.until if bar is not None else 0.0),
        )

    def _comes_alone(self, slot: Slot) -> bool:
        """Whether others have been in a slot's way on the device that there is."""
        return self._crowded.get(slot) == self._memory.faults

    @property
    def _all_but_pinned(self) -> int:
        pinned = (slot for slot in self._slots.values() if slot.settings.pin and slot.there)
        return self._memory.budget - sum(slot.seat.bytes for slot in pinned if slot.seat is not None)

    @property
    def _rules(self) -> Rules:
        settings = self._settings
        return Rules(
            hold_s=max(settings.min_hold_s, _HOLD * self._last_s),
            max_wait_s=settings.max_wait_s,
            idle_s=settings.idle_s,
        )

    @property
    def _memory(self) -> TierStatus:
        """How the device stands in this step."""
        if self._status is None:
            self._status = self._tier()
        return self._status

    @property
    def _room(self) -> int:
        """Bytes that these models may take, without what those have that are being loaded or freed."""
        held = self._memory.reservations
        return self._memory.budget - sum(size for model, size in held.items() if model not in self._slots)

    def _begin_wanted(self) -> bool:
        """Begin what an administrator wants; return whether a switch has begun."""
        while self._wanted:
            wanted, now = self._wanted[0], self._clock()
            try:
                outgoing = self._outgoing_for(wanted.model, now)
            except TierdError as error:
                self._answers.refuse(self._wanted.popleft().activated, error)
                continue
            if outgoing is None:
                return False
            slot = self._slots[wanted.model]
            if slot.there:
                self._kept[slot] = now + self._rules.hold_s
                self._answers.give(self._wanted.popleft().activated, {})
                continue
            self._wanting = self._wanted.popleft()
            self._begin(slot, outgoing, "admin", operation=wanted.operation)
            return True
        return False

    def _outgoing_for(self, model: str, now: float) -> tuple[str, ...] | None:
        """Return who must leave for a model; None while others that are being loaded or freed are in its way.

        Raises TierdError where it cannot come.
        """
        slot = self._slots.get(model)
        if slot is None:
            raise NoDeviceError(f"{model} is not for a GPU: it was loaded on the CPU; GET /slots says why")
        if slot.lost or self._fallbacks.recovers or not self._memory.device:
            self._notice_loss(slot)
            reason = slot.lost or self._memory.reason or "it is lost"
            raise DeviceLostError(f"{model} cannot come to the device: {reason}")
        assert slot.seat is not None
        if not slot.there and slot.seat.barred > now:
            raise DeviceLostError(f"{model} cannot come to the device: {_failure(slot) or 'it is lost'}")
        standings = self._standings(now)
        if make_room(standings, self._memory.budget, model) is None:
            raise DeviceMemoryError(
                f"{model} cannot come to the device: it needs {mib(slot.seat.bytes)} of "
                f"{mib(self._memory.budget)}, and models that are pinned do not leave; unpin one, or raise "
                "gpu.vram_limit_mb"
            )
        return make_room(standings, self._room, model)

    def _begin_due(self, now: float) -> bool:
        """Begin the switch that is due by the rules, if one is, else note when that may change."""
        if self._fallbacks.recovers or not (self._asked or self._wished or self._settings.idle_s):
            return False
        standings, budget, rules = self._standings(now), self._room, self._rules
        due = next_switch(standings, budget, rules, now)
        if due is not None:
            incoming = None if due.incoming is None else self._slots[due.incoming]
            reason = "idle" if incoming is None else "waiting" if incoming in self._asked else "wished"
            self._begin(incoming, due.outgoing, reason)
            return True
        ends = [next_look(standings, budget, rules, now)]
        ends += [end for end in self._kept.values() if end > now]
        ends += [bar.until for bar in self._bars.values() if bar.until > now]
        self.deadline = min((end for end in ends if end is not None), default=None)
        return False

    def _begin(
        self,
        incoming: Slot | None,
        outgoing: Iterable[str],
        reason: str,
        operation: Operation | None = None,
    ) -> None:
        leaving = [self._slots[model] for model in outgoing]
        log.info(
            "switch: %s leaves the device, %s comes",
            ", ".join(slot.id for slot in leaving) or "nobody",
            "nobody" if incoming is None else incoming.id,
        )
        self.switch = Switch(
            incoming,
            leaving,
            reason,
            resume=self._settings.resume,
            fallbacks=self._fallbacks,
            inbox=self._inbox,
            operation=operation,
        )

    def _settle(self, switch: Switch) -> None:
        """Book a switch that has ended."""
        self.switch, now = None, self._clock()
        self.recent = (*self.recent, _record(switch, now))[-_REMEMBERED:]
        self._ledger.switched(switch.incoming, switch.reason, switch.seconds, failed=switch.error is not None)
        for slot in (*switch.outgoing, *([] if switch.incoming is None else [switch.incoming])):
            if slot.there:
                self._arrived[slot] = now
            if not slot.there or slot is not switch.incoming:
                self._kept.pop(slot, None)
        crowded = isinstance(switch.error, DeviceMemoryError) and self._is_crowded_out(switch)
        if crowded:
            log.info("switch: a model that was loaded meanwhile has taken the room")
        elif switch.error is not None:
            self._failed(switch, switch.error, now)
        else:
            self.switches += 1
            if switch.incoming is not None:
                self._last_s = switch.idle_s
                self._bars.pop(switch.incoming, None)
                if switch.reason == "admin":
                    self._kept[switch.incoming] = now + self._rules.hold_s
            phases = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in switch.seconds.items())
            log.info("switch: done in %.2f s (%s)", now - switch.began, phases)
        if self._wanting is not None:
            if crowded:
                self._wanted.appendleft(self._wanting)
            elif switch.error is not None:
                self._answers.refuse(self._wanting.activated, switch.error)
            else:
                self._answers.give(self._wanting.activated, dict(switch.seconds))
            self._wanting = None

    def _is_crowded_out(self, switch: Switch) -> bool:
        """Whether others than those who were to leave have the room that the newcomer was to have."""
        assert switch.incoming is not None
        assert switch.incoming.seat is not None
        leaving = {slot.id for slot in switch.outgoing}
        others = sum(size for model, size in self._memory.reservations.items() if model not in leaving)
        return switch.incoming.seat.bytes > self._memory.budget - others

    def _failed(self, switch: Switch, error: TierdError, now: float) -> None:
        slot = switch.incoming
        if isinstance(error, UnavailableError):
            log.info("switch: called off: %s", error)
            return
        log.error("switch: failed: %s", error)
        if slot is None or slot.there:
            return
        if isinstance(error, DeviceLostError | DeviceTimeoutError) and slot.fallback is not None:
            if not slot.lost and not self._fallbacks.recovers:
                self._fallbacks.miss(slot, error)
            return
        if slot.seat is not None and slot.seat.barred > now:  # it is tried again by itself
            return
        leaving = {other.id for other in switch.outgoing}
        if isinstance(error, DeviceMemoryError) and self._memory.reservations.keys() - leaving:
            self._crowded[slot] = self._memory.faults
        tries = self._bars[slot].tries + 1 if slot in self._bars else 0
        until = now + min(_BAR_S * 2**tries, _LONGEST_BAR_S)
        self._bars[slot] = _Bar(until, tries, PassReason.NO_ROOM)


def _failure(slot: Slot) -> str:
    """Say how the device has failed a model of which it has a part, "" where it has not."""
    return slot.executor.failure if isinstance(slot.executor, RailsExecutor) else ""


def _is_busy(slot: Slot) -> bool:
    """Whether a slot's streams have rows for the device, or wait to have."""
    return bool(slot.steps) or _is_waited_for(slot, slot.running)


def _is_waited_for(slot: Slot, running: Iterable[Sequence] = ()) -> bool:
    """Whether a stream wants the device whose client keeps up."""
    return any(
        not sequence.paused for streams in (running, slot.returning, slot.waiting) for sequence in streams
    )


def _note(since: dict[Slot, float], slot: Slot, now: float, holds: bool) -> None:
    if holds:
        since.setdefault(slot, now)
    else:
        since.pop(slot, None)


def _record(switch: Switch, now: float) -> SwitchRecord:
    return SwitchRecord(
        incoming=None if switch.incoming is None else switch.incoming.id,
        outgoing=tuple(slot.id for slot in switch.outgoing),
        ended=now,
        seconds=now - switch.began,
        phases=dict(switch.seconds),
        error="" if switch.error is None else str(switch.error),
    )
