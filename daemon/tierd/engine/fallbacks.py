"""What becomes of streams that a device cannot have: they go on at the CPU, and it is counted and named.

A model on a device has an *understudy*, the same model on the CPU, from when a stream first needs one.
Streams that have no region, or outgrow theirs, or whose device is lost, are handed to it. Prompts of these
may be computed on the device all the same, chunk by chunk in its scratch region.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from tierd.backends.rails.executor import RailsExecutor
from tierd.core import Chunk, FailedEvent, FinishedEvent, FinishReason, PassReason, Sequence
from tierd.engine import routing
from tierd.engine.messages import Message, RearmDone, UnderstudyDone
from tierd.engine.scheduler import admit_all, moved, outgrown, usage
from tierd.engine.streams import Streams
from tierd.errors import DeviceError, UnavailableError
from tierd.kv.moves import Move
from tierd.kv.saved import evacuate
from tierd.metrics import Metrics
from tierd.slot import Guest, Placed, Slot, Step, exile, line_up
from tierd.tier.device_home import DeviceHome
from tierd.tier.passes import Passes
from tierd.tier.scratch import Scratch
from tierd.tier.seat import SeatState

log = logging.getLogger(__name__)

# After so many seconds there may be the memory for an understudy that there was not.
_UNDERSTUDY_AGAIN_S = 60.0
# States of a seat in which a model has something on the device.
_THERE = (SeatState.ON, SeatState.LEAVING, SeatState.ARMED)


class Fallbacks:
    """The passes of all models, their understudies, and the devices that are lost.

    passes: by model that is wanted on a device.
    """

    def __init__(self, inbox: SimpleQueue[Message], metrics: Metrics, streams: Streams) -> None:
        self.passes: dict[str, Passes] = {}
        self._inbox = inbox
        self._metrics = metrics
        self._streams = streams
        streams.on_end = self.leave
        self._slots: dict[str, Slot] = {}  # those on a device, by model
        self._scratch: dict[str, Scratch] = {}
        self._working: set[Slot] = set()  # a worker opens an understudy for these, or puts them on the device
        self._staying: set[Sequence] = set()  # streams on the CPU that the bank has no room to bring back
        self._barred: set[Sequence] = set()  # streams whose rows could not be brought from the scratch region
        self._recalls: dict[Slot, Sequence] = {}  # streams that are about to go back to the device
        self._rearm_at: dict[Slot, float] = {}  # of slots whose device is lost
        self._stranded_at: dict[Slot, float] = {}  # when an understudy could not be opened

    @property
    def busy(self) -> bool:
        """Whether a worker is at work."""
        return bool(self._working)

    @property
    def recovers(self) -> bool:
        """Whether a lost device is being tried again, or will be."""
        return bool(self._rearm_at) or any(slot.lost for slot in self._working)

    @property
    def deadline(self) -> float | None:
        """When a lost device is to be tried again, monotonic seconds; not before it is left alone."""
        return min((due for slot, due in self._rearm_at.items() if self._is_left(slot)), default=None)

    def enter(self, slot: Slot) -> None:
        """Take in a slot that was loaded."""
        if slot.fallback is not None or slot.declined is not None or isinstance(slot.executor, RailsExecutor):
            self.passes[slot.id] = Passes(slot.id, self._metrics.passes)
        if slot.fallback is not None:
            self._slots[slot.id] = slot
            slot.stranded = slot.fallback.refusal
        elif slot.seat is not None:
            slot.stranded = slot.seat.refusal
        if slot.scratch is not None:
            self._scratch[slot.id] = Scratch(slot.home.most)

    def forget(self, slot: Slot) -> None:
        """Forget a slot that is not served any more. No worker is at work for it."""
        for known in (self.passes, self._slots, self._scratch):
            known.pop(slot.id, None)
        for waiting in (self._recalls, self._rearm_at, self._stranded_at):
            waiting.pop(slot, None)

    def works_for(self, slot: Slot) -> bool:
        """Whether a worker is at work for a slot."""
        return slot in self._working

    def count(self, slot: Slot, step: Step) -> None:
        """Count what the CPU is given that was meant for a device.

        This, and `count_handed_back`, are the one place where it is done.
        """
        passes = self.passes.get(slot.id)
        if passes is None:
            return
        on_device = self._slots.get(slot.id)
        for sequence, chunk in zip(step.sequences, step.chunks, strict=True):
            if on_device is None:
                reason = slot.declined or _off_rails(slot, step)
                if reason is not None:
                    passes.count(reason)
            elif slot is not on_device:
                passes.count(self._reason(on_device, sequence, chunk))

    def count_handed_back(self, slot: Slot, step: Step) -> None:
        """Count a step that is done and that the device has failed at, so that the CPU has computed it."""
        passes = self.passes.get(slot.id)
        if passes is not None and isinstance(slot.executor, RailsExecutor) and slot.executor.handed_back:
            passes.count(PassReason.DEVICE_LOST, len(step.sequences))

    def route(self) -> bool:
        """Send those to the CPU whom a device cannot have. Returns whether that makes work for a device."""
        went = [self._route(slot) for slot in self._slots.values()]
        return any(went)

    def invite(self) -> None:
        """Let prompts of streams on the CPU be computed in their model's scratch region, where they may."""
        for slot in self._slots.values():
            if slot.understudy is not None and slot.scratch is not None and slot.serves:
                self._invite(slot, slot.understudy, self._scratch[slot.id])

    def guests_done(self, slot: Slot, step: Step, *, failed: bool) -> None:
        """Have the rows that a step has computed in the scratch region brought to their streams."""
        for guest in step.guests:
            if failed or slot.lost:
                self._return(slot, guest, brought=False)
            else:
                self._bring(slot, guest)

    def leave(self, slot: Slot, sequence: Sequence) -> None:
        """Forget a stream that has ended."""
        self._staying.discard(sequence)
        self._barred.discard(sequence)
        if slot.id in self._scratch and not sequence.moves:
            self._scratch[slot.id].leave(sequence)

    def lose(self, slot: Slot, error: DeviceError) -> None:
        """A slot's device has failed: with it all models that are on it lose theirs, at work or not."""
        device = _device_home(slot).device
        for other in self._slots.values():
            there = other.seat is None or other.seat.state in _THERE
            if _device_home(other).device is device and there and not other.lost and not other.handed:
                self._lose(other, error)

    def _lose(self, slot: Slot, error: DeviceError) -> None:
        """Let a slot's streams go on elsewhere, with what the bank has of their rows."""
        slot.lost = str(error)
        log.error("model=%s the device is lost, its streams go on without it: %s", slot.id, error)
        if slot.seat is not None:
            slot.seat.lose()
        home = _device_home(slot)
        home.lose()
        slot.leaving.clear()
        self.dismiss(slot)
        if slot.scratch is not None:
            self._scratch[slot.id] = Scratch(home.most)
        for sequence in list(slot.running):
            sequence.saved = home.rescue(sequence)
            exile(slot, sequence, PassReason.DEVICE_LOST, slot.exiles)
        self._plan_rearm(slot)

    def dismiss(self, slot: Slot) -> None:
        """Send chunks back that were meant for a slot's scratch region and are in no step yet."""
        while slot.guests:
            self._return(slot, slot.guests.popleft(), brought=False)

    def miss(self, slot: Slot, error: DeviceError) -> None:
        """A slot that was away could not come back because the device is lost: it comes when that does."""
        slot.lost = str(error)
        self._plan_rearm(slot)

    def arrived(self, slot: Slot) -> None:
        """Take in a slot that is on its device again."""
        if slot.scratch is not None:
            self._scratch[slot.id] = Scratch(slot.home.most)
        if slot.id in self.passes:
            self.passes[slot.id].reset()

    def retry(self, now: float) -> None:
        """Try devices again whose time has come, once nothing of theirs is in flight, and understudies."""
        for slot, since in list(self._stranded_at.items()):
            if now - since >= _UNDERSTUDY_AGAIN_S:
                del self._stranded_at[slot]
                slot.stranded = ""
        for slot, due in list(self._rearm_at.items()):
            if due <= now and self._is_left(slot):
                del self._rearm_at[slot]
                slot.executor.close()
                self._work(slot, _put_back)

    def understudied(self, slot: Slot, result: Slot | Exception) -> Slot | None:
        """Take in what came of opening an understudy; return it, None when that failed."""
        self._working.discard(slot)
        if isinstance(result, Slot):
            slot.understudy = result
            return result
        slot.stranded = str(result)
        self._stranded_at[slot] = time.monotonic()
        log.error("model=%s cannot be served by the CPU: %s", slot.id, result)
        return None

    def rearmed(self, slot: Slot, result: Placed | Exception) -> None:
        """Take in what came of putting a model on its device again."""
        self._working.discard(slot)
        if not isinstance(result, Placed):
            log.warning("model=%s is not on the device again: %s", slot.id, result)
            self._plan_rearm(slot)
            return
        slot.capture(result)
        slot.lost, slot.back = "", time.monotonic()
        self.arrived(slot)
        if result.marks is not None:
            log.info("model=%s takes its turn on the device, which works again", slot.id)
            return
        if slot.seat is not None:
            slot.seat.settle()
        log.info("model=%s is on the device again", slot.id)

    def _is_left(self, slot: Slot) -> bool:
        """Whether nothing is at work any more on what a slot had on its device."""
        return not slot.steps and slot.move is None and slot not in self._working

    def _reason(self, slot: Slot, sequence: Sequence, chunk: Chunk) -> PassReason:
        """Say why a chunk of a stream runs on the CPU; slot: the model's on the device."""
        start, stop = chunk.start, min(chunk.end, len(sequence.tokens) - 1)
        if slot.scratch is not None and slot.serves and start < stop:
            refusal = self._refusal(slot, sequence, start, stop)
            self._scratch[slot.id].passed(sequence, start)
            if refusal is not None:
                return refusal
        return routing.still_passing(slot, sequence)

    def _refusal(self, slot: Slot, sequence: Sequence, start: int, stop: int) -> PassReason | None:
        return self._scratch[slot.id].refusal(
            sequence,
            start,
            stop,
            pinned_off=any(other.generated for other in slot.running),
            prefill_continues=slot.executor.prefill_continues,
            rewinds=slot.executor.rewinds,
        )

    def _invite(self, slot: Slot, understudy: Slot, scratch: Scratch) -> None:
        assert slot.scratch is not None
        if understudy.has_room:
            admit_all(understudy)
        busy = {sequence for step in understudy.steps for sequence in step.sequences}
        for sequence in understudy.running:
            start = sequence.fed
            # Prompts in regions have the other half of a step's.
            stop = min(len(sequence.tokens) - 1, start + max(1, slot.chunk_rows // 2))
            if stop <= start or sequence.moves or sequence.paused or sequence in busy | self._barred:
                continue
            if not sequence.request.shares:  # else its hidden states would be lost
                continue
            if self._refusal(slot, sequence, start, stop) is None:
                scratch.fed(sequence, start, stop)
                chunk = Chunk(tuple(sequence.tokens[start:stop]), start, (slot.scratch,))
                sequence.moves += 1
                slot.guests.append(Guest(sequence, chunk))

    def _bring(self, slot: Slot, guest: Guest) -> None:
        """Bring a chunk's rows from the scratch region into the pages of its stream, at the understudy."""
        sequence, understudy = guest.sequence, slot.understudy
        assert understudy is not None
        start, stop = guest.chunk.start, guest.chunk.end
        layers = [np.empty((stop - start, count), np.uint8) for count in slot.executor.row_bytes]

        def out(done: bool) -> None:
            if not done:
                back(False)
                return
            understudy.home.cover(sequence, stop)
            understudy.home.moves.append(
                Move(sequence, tuple(sequence.pages), layers, start, stop, inward=True, finish=back)
            )

        def back(done: bool) -> None:
            if not done and sequence in understudy.running:
                self._barred.add(sequence)
            self._return(slot, guest, brought=done)

        slot.home.moves.append(
            Move(sequence, tuple(guest.chunk.pages), layers, start, stop, inward=False, finish=out)
        )

    def _return(self, slot: Slot, guest: Guest, *, brought: bool) -> None:
        """Let a stream go on whose chunk was meant for the scratch region; brought: it has the rows."""
        sequence, chunk = guest.sequence, guest.chunk
        scratch, understudy = self._scratch[slot.id], slot.understudy
        assert understudy is not None
        sequence.moves -= 1
        if brought:
            sequence.fed = chunk.end
            sequence.mixed = True
        else:
            scratch.passed(sequence, chunk.start)
        if sequence not in understudy.running:
            scratch.leave(sequence)
            moved(understudy, sequence)
        elif sequence.fed == len(sequence.tokens) - 1:
            scratch.leave(sequence)

    def _route(self, slot: Slot) -> bool:
        """Send those of a slot, as far as there is a place."""
        if slot.stranded:
            return self._strand(slot)
        full = outgrown(slot)
        for sequence in full:
            self.evacuate(slot, sequence, PassReason.CAP)
        works = bool(full) or (slot.move is None and len(slot.home.moves) > 0)
        reason = routing.passing(slot)
        if slot.understudy is None:
            goes = reason is not None and slot.occupied < slot.settings.streams + len(slot.returning)
            if (slot.exiles or goes) and slot not in self._working:
                self._work(slot, _open_understudy)
            return works
        before = len(slot.understudy.returning)
        while slot.exiles:
            self._hand_over(slot.understudy, slot.exiles.popleft())
        while reason is not None and slot.occupied < slot.settings.streams + len(slot.returning):
            first = slot.first
            assert first is not None
            if slot.understudy.returning or not slot.understudy.home.can_admit(first):
                break
            slot.line.popleft()
            first.passes = reason
            self._hand_over(slot.understudy, first)
            reason = routing.passing(slot)
        recalled = self._recall(slot, slot.understudy)
        return works or recalled or len(slot.understudy.returning) > before

    def _recall(self, slot: Slot, understudy: Slot) -> bool:
        """Bring a stream back to the device that has room for it again. Returns whether one is on its way.

        First it gets no more rows, then, once no step has any of it, it goes.
        """
        sequence = self._recalls.get(slot)
        if sequence is None:
            sequence = routing.returnable(slot, self._staying)
            if sequence is None:
                return False
            if sequence in understudy.returning:  # it has no pages to be brought out of
                understudy.returning.remove(sequence)
                sequence.passes = None
                line_up(slot.returning, sequence)
                self._take_back(slot, sequence)
                return True
            sequence.moves += 1
            self._recalls[slot] = sequence
        if any(sequence in step.sequences for step in understudy.steps):
            return False
        del self._recalls[slot]
        sequence.moves -= 1
        if not slot.serves or sequence not in understudy.running:
            moved(understudy, sequence)
            return True

        def out(moved: bool) -> None:
            if sequence not in understudy.running:
                return
            if not moved:  # its rows are worth more than the device
                self._staying.add(sequence)
                return
            understudy.home.let_go(sequence, written=False)
            exile(understudy, sequence, None, slot.returning)
            self._take_back(slot, sequence)

        evacuate(understudy.home, _device_home(slot).bank, sequence, out, keep=False)
        return True

    def _take_back(self, slot: Slot, sequence: Sequence) -> None:
        """Note that a stream that was on the CPU waits for the device now."""
        if slot.scratch is not None:
            self._scratch[slot.id].leave(sequence)
        self._streams.place(slot, sequence)

    def _strand(self, slot: Slot) -> bool:
        """Settle for the device: whom it has no room for ends, who has lost its rows waits for it."""
        full = outgrown(slot)
        for sequence in full:
            self._streams.end(slot, sequence, FinishedEvent(FinishReason.LENGTH, usage(sequence)))
        if slot.lost:
            if slot not in self._rearm_at and slot not in self._working:
                self.give_up(slot, f"the device is lost ({slot.lost})")
            return False
        back = list(slot.exiles)
        for sequence in back:
            sequence.passes = None
            line_up(slot.returning, sequence)
        slot.exiles.clear()
        long = [
            sequence for sequence in [*slot.returning, *slot.waiting] if len(sequence.tokens) > slot.longest
        ]
        for sequence in long:
            self._streams.end(slot, sequence, routing.too_long(slot, sequence))
        return bool(full or back or long)

    def evacuate(self, slot: Slot, sequence: Sequence, reason: PassReason | None) -> None:
        """Take a stream off the device, with its rows where the bank has room for them.

        reason: why it goes to the CPU; None: it waits until the device has it again.
        """

        def out(_: bool) -> None:
            if sequence not in slot.running or slot.lost:
                return
            slot.home.let_go(sequence, written=False)
            exile(slot, sequence, reason, slot.returning if reason is None else slot.exiles)

        home = _device_home(slot)
        evacuate(home, home.bank, sequence, out, keep=home.keeps)

    def _hand_over(self, understudy: Slot, sequence: Sequence) -> None:
        line_up(understudy.returning, sequence)
        self._streams.place(understudy, sequence)

    def _plan_rearm(self, slot: Slot) -> None:
        assert slot.fallback is not None
        due = slot.fallback.retry_at()
        if due is not None:
            self._rearm_at[slot] = due

    def give_up(self, slot: Slot, obstacle: str) -> None:
        """End those who can be nowhere any more. obstacle: why not on the device."""
        there = [] if slot.seat is None or slot.seat.holds_rows else slot.running
        for sequence in [*there, *slot.exiles, *slot.returning, *slot.waiting]:
            error = UnavailableError(
                f"{slot.id}: {obstacle}, and the CPU cannot serve the model ({slot.stranded}); "
                "free memory or restart tierd"
            )
            self._streams.end(slot, sequence, FailedEvent(error))

    def _work(self, slot: Slot, work: Callable[[Slot], Message]) -> None:
        """Have a worker do something for a slot that takes long, and post what came of it."""
        self._working.add(slot)
        # A daemon: a hung driver must not keep the process from ending.
        threading.Thread(
            target=lambda: self._inbox.put(work(slot)), name=f"tierd-work-{slot.id}", daemon=True
        ).start()


def _off_rails(slot: Slot, step: Step) -> PassReason | None:
    """Say why the CPU computes a step's matmuls that are for the device; None where it does not."""
    executor = slot.executor
    if not isinstance(executor, RailsExecutor) or step.batch.rows < executor.least or executor.layers:
        return None
    return PassReason.DEVICE_LOST if executor.failure else PassReason.AWAY


# Run in a worker thread; whatever goes wrong there is told, not raised.


def _open_understudy(slot: Slot) -> Message:
    assert slot.fallback is not None
    try:
        return UnderstudyDone(slot, slot.fallback.understudy(slot))
    except Exception as error:
        return UnderstudyDone(slot, error)


def _put_back(slot: Slot) -> Message:
    assert slot.fallback is not None
    try:
        return RearmDone(slot, slot.fallback.rearm(slot))
    except Exception as error:
        return RearmDone(slot, error)


def _device_home(slot: Slot) -> DeviceHome:
    assert isinstance(slot.home, DeviceHome)
    return slot.home
