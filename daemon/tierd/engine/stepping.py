"""Steps, from what a slot's streams need to what came of it: scheduled, run, picked, committed."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Ordered

from tierd.backends.protocol import Result
from tierd.core import FailedEvent, StartedEvent, TerminalEvent, TokenLogprobs
from tierd.engine.dance import Dance
from tierd.engine.devices import Devices
from tierd.engine.fallbacks import Fallbacks
from tierd.engine.flights import counting
from tierd.engine.ledger import Ledger
from tierd.engine.messages import StepDone
from tierd.engine.pooling import pool
from tierd.engine.runner import Device
from tierd.engine.sampler import pick, score
from tierd.engine.scheduler import commit, schedule, settle
from tierd.engine.streams import Streams
from tierd.errors import DeviceError, ExecutorError, TierdError
from tierd.slot import Slot, Step

log = logging.getLogger(__name__)


class Steps:
    """Gives devices steps, and streams what these have brought. The engine thread's own."""

    def __init__(
        self, *, devices: Devices, streams: Streams, fallbacks: Fallbacks, dance: Dance, ledger: Ledger
    ) -> None:
        self._devices = devices
        self._streams = streams
        self._fallbacks = fallbacks
        self._dance = dance
        self._ledger = ledger

    def feed(self, device: Device, here: Ordered[Slot]) -> None:
        """Give the device the steps that it can take, in turns that are fair to its models."""
        ready = {slot.id: slot for slot in here if slot.has_room and slot.serves and slot.has_work}
        while order := device.turns.order(ready):
            slot = ready[order[0]]
            step = schedule(slot, device.paces.allowance(slot, here))
            if step is not None:
                self._submit(device, slot, step)
            if step is None or not slot.has_room:
                del ready[slot.id]

    def done(self, done: StepDone) -> None:
        """Take in what came of a step."""
        slot, step, failed = done.slot, done.step, isinstance(done.result, Exception)
        device = self._devices.of(slot)
        device.turns.end(slot.id, done.seconds)
        if not failed:
            device.paces.note(slot, step, done.seconds)
        self._devices.put_last(slot)
        settle(slot, step, failed=failed)
        self._fallbacks.count_handed_back(slot, step)
        self._fallbacks.guests_done(slot, step, failed=failed)
        self._complete(slot, step, done.result, done.seconds, done.scores)

    def _submit(self, device: Device, slot: Slot, step: Step) -> None:
        slot.steps.append(step)
        for sequence in self._ledger.scheduled(slot, step):
            self._streams.emit(sequence.request.id, StartedEvent(sequence.cached))
        try:
            device.run(slot, step)
        except Exception as error:
            settle(slot, step, failed=True)
            self._fallbacks.guests_done(slot, step, failed=True)
            self._complete(slot, step, error)
        else:
            self._fallbacks.count(slot, step)

    def _complete(
        self,
        slot: Slot,
        step: Step,
        result: Result | Exception,
        seconds: float = 0.0,
        scores: Ordered[tuple[TokenLogprobs, ...]] = (),
    ) -> None:
        """Let each stream have its token, or its error."""
        if slot.lost:
            return
        try:
            if isinstance(result, Exception):
                raise result
            wanted = counting(slot, step)
            tokens = pick(step, result, wanted)
            pool(step, result, wanted)
            self._ledger.stepped(slot, step, tokens, seconds, result)
            for sequence, event in commit(slot, step, tokens, score(step, result, tokens), scores):
                if isinstance(event, TerminalEvent):
                    self._streams.end(slot, sequence, event)
                else:
                    self._streams.send(sequence, event)
        except Exception as error:
            self._fail(slot, step, error)

    def _fail(self, slot: Slot, step: Step, error: Exception) -> None:
        if isinstance(error, DeviceError) and slot.fallback is not None:
            self._fallbacks.lose(slot, error)
            return
        if isinstance(error, DeviceError) and slot.seat is not None and slot.seat.refusal:
            self._dance.notice_failure(slot)
            return  # its streams have their rows, and wait for the device
        log.error("model=%s device=%s a step failed", slot.id, slot.executor.name, exc_info=error)
        if not isinstance(error, TierdError):
            error = ExecutorError(f"{slot.id}: {type(error).__name__} in a step: {error}; try again")
        for sequence in step.sequences:
            if sequence not in step.void:  # else it has lost nothing
                self._streams.end(slot, sequence, FailedEvent(error))
