"""The engine thread: it alone touches slots, sequences and K/V pages, so there are no locks here.

Messages come in through the inbox, the only thing it ever waits for. Events go out through `deliver`,
once a turn. What it knows is published as immutable values for other threads to read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from tierd.backends.protocol import Result
from tierd.chat.stops import text_stream
from tierd.core import (
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    Sequence,
    StartedEvent,
    TerminalEvent,
    TokenLogprobs,
)
from tierd.engine import queue
from tierd.engine.answers import Answers
from tierd.engine.catalogue import Catalogue, describe
from tierd.engine.dance import Dance
from tierd.engine.draining import Drains
from tierd.engine.fallbacks import Fallbacks
from tierd.engine.flights import counting
from tierd.engine.following import Followers
from tierd.engine.keeping import Keeper
from tierd.engine.ledger import Ledger
from tierd.engine.messages import (
    Activate,
    Allowed,
    Cancel,
    Drain,
    Finish,
    Flush,
    Load,
    LoadDone,
    Message,
    MoveDone,
    RearmDone,
    Resume,
    StepDone,
    Stop,
    Stranded,
    Submit,
    SwitchDone,
    SwitchPhase,
    Taken,
    UnderstudyDone,
    Unload,
    UnloadDone,
)
from tierd.engine.parting import Parting
from tierd.engine.pooling import pool
from tierd.engine.readers import Readers
from tierd.engine.runner import Device
from tierd.engine.sampler import pick, score
from tierd.engine.scheduler import commit, leave, moved, schedule, settle, usage
from tierd.engine.snapshot import Snapshot, observe
from tierd.errors import (
    ConflictError,
    DeviceError,
    ExecutorError,
    ModelError,
    RequestError,
    SlowReaderError,
    StateError,
    TierdError,
    UnavailableError,
)
from tierd.kv.bank import Bank
from tierd.kv.moves import Move
from tierd.kv.spill import SpillCleared, SpillDone
from tierd.metrics import Metrics
from tierd.progress import followed
from tierd.settings import ModelSettings, Settings
from tierd.slot import Slot, Step
from tierd.tier.status import TierStatus

log = logging.getLogger(__name__)

Deliver = Callable[[Ordered[tuple[str, Event]]], None]
OpenSlot = Callable[[ModelSettings], Slot]
T = TypeVar("T")

LONGEST_WAIT_S = 3600.0  # a lock cannot wait for as long as a float can say

CLOSED = "the server is shutting down; try again later"
DRAINING = "the server takes no requests for now; try again later"


class Loop:
    """All model state, and the turns in which it changes. catalogue and snapshot may be read anywhere."""

    def __init__(
        self,
        inbox: SimpleQueue[Message],
        deliver: Deliver,
        open_slot: OpenSlot,
        metrics: Metrics,
        settings: Settings,
        bank: Bank | None,
        tier: Callable[[], TierStatus] = TierStatus,
        release: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.catalogue = Catalogue()
        self.snapshot = Snapshot()
        self._inbox = inbox
        self._deliver = deliver
        self._open_slot = open_slot
        self._settings = settings
        self._bank = bank
        self._ledger = Ledger(metrics)
        self._readers = Readers(settings.server)
        self._followers = Followers(inbox)
        self._loads: dict[str, Load] = {}  # by model, until they are done
        self._slots: dict[str, Slot] = {}  # by model
        self._everyone: dict[Slot, None] = {}  # understudies too; whose step was done longest ago comes first
        self._fallbacks = Fallbacks(inbox, self._ledger, metrics, self)
        self._answers = Answers()
        self._dance = Dance(
            settings.switch,
            fallbacks=self._fallbacks,
            ledger=self._ledger,
            answers=self._answers,
            inbox=inbox,
            tier=tier,
        )
        self._keeper = Keeper(settings.state, bank)
        self._parting = Parting(settings.state)
        self._release = release
        self._unloads: dict[str, Unload] = {}  # by model, until they are done
        self._devices: dict[str, Device] = {}
        self._live: dict[str, tuple[Slot, Sequence]] = {}  # by request, until its terminal event
        self._events: list[tuple[str, Event]] = []  # of this turn
        self._drains = Drains(self._keeper, settings.state)
        self._flushes: set[Future[int]] = set()  # whose files go
        self._draining = ""  # what those are told who come meanwhile
        self._stopping = False

    def run(self) -> None:
        """Take turns until a Stop has come, and all that was going on then is over, and is kept."""
        while not self._stopping or self._busy or not self._keeper.finished:
            self._receive()
            self._turn()
        self._followers.stop()
        for device in self._devices.values():
            device.stop()
            device.join()
        for slot in self._slots.values():
            slot.close()

    @property
    def _busy(self) -> bool:
        """Whether a worker or a runner is at work."""
        return (
            bool(self._loads)
            or any(unload.model not in self._slots for unload in self._unloads.values())
            or self._fallbacks.busy
            or self._dance.busy
            or bool(self._flushes)
            or any(slot.steps or slot.move is not None for slot in self._everyone)
        )

    @property
    def _quiet(self) -> bool:
        """Whether all rows of streams that have ended are where they stay."""
        return not (
            self._dance.switch is not None
            or any(slot.steps or slot.leaving or slot.move is not None for slot in self._everyone)
        )

    def break_down(self) -> None:
        """After `run` has raised: end what is live or still asked for. No more messages may come."""
        error = UnavailableError("the engine has failed and must be restarted; its log says why")
        self.catalogue = Catalogue(closed=str(error))
        self._followers.stop()
        for device in self._devices.values():
            device.stop()
        for request_id in self._live:
            self._emit(request_id, FailedEvent(error))
        self._answers.send()
        for load in self._loads.values():
            load.loaded.set_exception(error)
        for unload in self._unloads.values():
            unload.unloaded.set_exception(error)
        self._dance.break_down(error)
        self._answers.send()
        for freed in self._flushes:
            freed.set_exception(error)
        self._drains.break_down(error)
        while not self._inbox.empty():
            match self._inbox.get():
                case Submit(request):
                    self._emit(request.id, FailedEvent(error))
                case Load(loaded=future) | Unload(unloaded=future) | Activate(activated=future):
                    future.set_exception(error)
                case Flush(freed=future) | Resume(resumed=future):
                    future.set_exception(error)
                case Drain() as drain:
                    self._drains.add(drain)
                    self._drains.break_down(error)
        self._hand_over()

    @property
    def _deadline(self) -> float | None:
        """When something is to be done though no message comes, monotonic seconds; None: never."""
        due = [queue.deadline(slot, self._settings.queue) for slot in self._slots.values()]
        due += self._readers.deadline, None if self._stopping else self._fallbacks.deadline
        due += self._dance.deadline, self._keeper.deadline, self._drains.deadline, self._parting.deadline
        due += [
            unload.until
            for model, unload in self._unloads.items()
            if model in self._slots and not unload.late
        ]
        return min((end for end in due if end is not None), default=None)

    def _receive(self) -> None:
        """Wait for a message, or until something is due; handle all that came."""
        due = self._deadline
        wait = None if due is None else min(max(0, due - time.monotonic()), LONGEST_WAIT_S)
        try:
            self._handle(self._inbox.get(timeout=wait))
        except Empty:
            return
        for _ in range(self._inbox.qsize()):
            self._handle(self._inbox.get())

    def _turn(self) -> None:
        """Do what has become possible, and tell of it."""
        going = True
        while going:
            self._expire()
            self._parting.step(self._everyone)
            self._feed()
            while self._fallbacks.route() | self._dance.step() | self._keep():
                self._feed()
            self._finish_unloads()
            self._publish()
            going = self._answers.send()

    def _keep(self) -> bool:
        """Have conversations written that are to outlive the process; return whether rows are to move."""
        return self._keeper.step(self._everyone, last=self._stopping and not self._busy)

    def _feed(self) -> None:
        """Give the devices what they can take."""
        self._fallbacks.invite()
        for device in list(self._devices.values()):
            here = [slot for slot in self._everyone if slot.executor.name == device.name]
            self._feed_steps(device, here)
            while self._carry_all(device, here):
                self._feed_steps(device, here)

    def _feed_steps(self, device: Device, here: Ordered[Slot]) -> None:
        """Give the device steps, in turns that are fair to its models."""
        ready = {slot.id: slot for slot in here if slot.has_room and slot.serves and slot.has_work}
        while order := device.turns.order(ready):
            slot = ready[order[0]]
            step = schedule(slot, device.paces.allowance(slot, here))
            if step is not None:
                self._submit_step(device, slot, step)
            if step is None or not slot.has_room:
                del ready[slot.id]

    def _submit_step(self, device: Device, slot: Slot, step: Step) -> None:
        slot.steps.append(step)
        for sequence in self._ledger.scheduled(slot, step):
            self._emit(sequence.request.id, StartedEvent(sequence.cached))
        try:
            device.run(slot, step)
        except Exception as error:
            settle(slot, step, failed=True)
            self._fallbacks.guests_done(slot, step, failed=True)
            self._complete(slot, step, error, 0.0)
        else:
            self._fallbacks.count(slot, step)

    def _carry_all(self, device: Device, here: Ordered[Slot]) -> bool:
        """Give the device slices of all its slots' moves. Returns whether any stream can go on now."""
        ended = [self._carry(device, slot) for slot in here]
        return any(ended)

    def _carry(self, device: Device, slot: Slot) -> bool:
        """Give the device the next slice of the slot's first move, unless it has one.

        Moves that have nothing to move end; returns whether any did, whose streams can go on now.
        """
        ended = False
        while slot.move is None and slot.home.moves and not slot.home.moves[0].left:
            self._end_move(slot, True)
            ended = True
        if slot.move is None and slot.home.moves:
            slot.move = slot.home.moves[0]
            device.carry(slot, slot.move, slot.move.left.popleft())
        return ended

    def _end_move(self, slot: Slot, done: bool) -> None:
        move = slot.home.moves.popleft()
        move.finish(done)
        moved(slot, move.sequence)

    def _moved(self, slot: Slot, move: Move, error: Exception | None) -> None:
        """A slice of a move is done, or has failed."""
        slot.move = None
        if move not in slot.home.moves:  # the device was lost meanwhile
            return
        if isinstance(error, DeviceError) and slot.fallback is not None:
            self._fallbacks.lose(slot, error)
        elif error is not None:
            log.error("model=%s device=%s rows could not be moved: %s", slot.id, slot.executor.name, error)
            self._end_move(slot, False)
        elif not move.left:
            self._end_move(slot, True)

    def enter(self, slot: Slot) -> None:
        """Let a slot take part in the turns of its device."""
        self._everyone[slot] = None
        name = slot.executor.name
        if name not in self._devices:
            self._devices[name] = Device(name, self._inbox, self._settings.engine.gap_ms / 1000)
        self._devices[name].turns.enter(slot.id, slot.settings.weight)

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(request, submitted):
                self._submit(request, submitted)
            case Cancel(request_id):
                self._close(request_id, FinishReason.CANCELLED)
            case Finish(request_id):
                self._close(request_id, FinishReason.STOP)
            case Taken(request_id, count):
                if request_id in self._live:
                    self._readers.take(self._live[request_id][1], count)
            case Allowed():
                pass  # the turn gives its stream a row
            case Stranded(request_id, error):
                if request_id in self._live:
                    self.end(*self._live[request_id], FailedEvent(error))
            case StepDone(slot, step, result, seconds, scores):
                device = self._devices[slot.executor.name]
                device.turns.end(slot.id, seconds)
                if not isinstance(result, Exception):
                    device.paces.note(slot, step, seconds)
                self._everyone[slot] = self._everyone.pop(slot)
                settle(slot, step, failed=isinstance(result, Exception))
                self._fallbacks.count_handed_back(slot, step)
                self._fallbacks.guests_done(slot, step, failed=isinstance(result, Exception))
                self._complete(slot, step, result, seconds, scores)
            case MoveDone(slot, move, error):
                self._moved(slot, move, error)
            case SpillDone():
                assert self._bank is not None
                self._bank.settle(message)
            case SpillCleared(then=then, problem=problem):
                then(problem)
            case UnderstudyDone(slot, result):
                self._fallbacks.understudied(slot, result)
            case RearmDone(slot, result):
                self._fallbacks.rearmed(slot, result)
            case SwitchPhase():
                pass  # the turn publishes it
            case SwitchDone():
                self._dance.arrived(message)
            case Load():
                self._load(message)
            case Unload():
                self._unload(message)
            case UnloadDone(unload):
                self._unloaded(unload)
            case Activate(model):
                if model in self._slots and model not in self._unloads:
                    self._dance.activate(message)
                else:
                    message.activated.set_exception(self.catalogue.missing(model))
            case Resume(resumed):
                self._resume(resumed)
            case LoadDone(load, result):
                self._loaded(load, result)
            case Flush():
                self._flush(message)
            case Drain(ending=ending):
                self._drains.add(message)
                self._drain(CLOSED if ending or self._draining == CLOSED else DRAINING)
            case Stop():
                self._stopping = True
                self._drain(CLOSED)
                self._dance.stop()
                self._keeper.stop()
                self._parting.begin()
                for slot, sequence in list(self._live.values()):
                    self.end(slot, sequence, FailedEvent(UnavailableError(CLOSED)))

    def _submit(self, request: Request, submitted: float) -> None:
        try:
            slot = self._slots.get(request.model)
            if slot is None or self._draining or request.model not in self.catalogue.entries:
                raise self.catalogue.missing(request.model)
            queue.check(request, slot)
            text = text_stream(slot.tokenizer, request.stop, request.spelled)
        except RequestError as error:
            self._ledger.refused(request, submitted, error, known=request.model in self._slots)
            self._emit(request.id, FailedEvent(error))
            return
        rank = queue.rank(request, submitted, self._settings.queue)
        sequence = Sequence(request, text, list(request.prompt), submitted=submitted, rank=rank)
        self._live[request.id] = (slot, sequence)
        self._followers.follow(sequence, slot.tokenizer.end_ids)
        self._ledger.opened(sequence)
        away = queue.join(slot, sequence, self._settings.queue, self._ledger.service_s(slot.id))
        if away is not None:
            self.end(slot, away[0], FailedEvent(away[1]))

    def _close(self, request_id: str, reason: FinishReason) -> None:
        if request_id in self._live:
            slot, sequence = self._live[request_id]
            self.end(slot, sequence, FinishedEvent(reason, usage(sequence)))

    def _complete(
        self,
        slot: Slot,
        step: Step,
        result: Result | Exception,
        seconds: float,
        scores: Ordered[tuple[TokenLogprobs, ...]] = (),
    ) -> None:
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
                    self.end(slot, sequence, event)
                else:
                    self._emit(sequence.request.id, event)
                    self._send(sequence)
        except Exception as error:
            if isinstance(error, DeviceError) and slot.fallback is not None:
                self._fallbacks.lose(slot, error)
                return
            if isinstance(error, DeviceError) and slot.seat is not None and slot.seat.refusal:
                self._dance.notice_failure(slot)
                return  # its streams have their rows, and wait for the device
            log.exception("model=%s device=%s a step failed", slot.id, slot.executor.name)
            if not isinstance(error, TierdError):
                error = ExecutorError(f"{slot.id}: {type(error).__name__} in a step: {error}; try again")
            for sequence in step.sequences:
                if sequence not in step.void:  # else it has lost nothing
                    self.end(slot, sequence, FailedEvent(error))

    def _send(self, sequence: Sequence) -> None:
        if self._readers.send(sequence, time.monotonic()):
            self._ledger.paused(sequence)

    def _expire(self) -> None:
        """End who has waited too long: for a place, or for its client."""
        now, settings = time.monotonic(), self._settings
        for slot in self._slots.values():
            while sequence := queue.overdue(slot, settings.queue, now):
                late = queue.timed_out(slot, settings.queue, self._ledger.service_s(slot.id))
                self.end(slot, sequence, FailedEvent(late))
        if not self._stopping:
            self._fallbacks.retry(now)
        for request_id in self._readers.overdue(now):
            slow = SlowReaderError(
                f"the stream waited {settings.server.reader_timeout_s:g} s for its client to read on"
            )
            self.end(*self._live[request_id], FailedEvent(slow))

    def _load(self, load: Load) -> None:
        model = load.settings.id
        if self._draining:
            load.loaded.set_exception(UnavailableError(self._draining))
            return
        if model in self._slots or model in self._loads:
            load.loaded.set_exception(ConflictError(f"{model}: a model of that name is there already"))
            return
        if model in self._unloads:
            load.loaded.set_exception(UnavailableError(f"{model}: it is being unloaded; try again later"))
            return
        self._loads[model] = load
        if load.operation is not None:
            load.operation.enter("open")
        self.catalogue = self.catalogue.extend(loading=self._loads)
        # A daemon: opening a file from a hung disk must not keep the process from ending.
        threading.Thread(target=self._open, args=(load,), name=f"tierd-load-{model}", daemon=True).start()

    def _open(self, load: Load) -> None:
        """Run in a worker thread: touches nothing of the loop but its inbox."""
        result: Slot | Exception
        try:
            with followed(None if load.operation is None else load.operation.progress):
                result = self._open_slot(load.settings)
        except TierdError as error:
            result = error
        except Exception as error:
            log.exception("model=%s cannot be loaded", load.settings.id)
            result = ModelError(f"{load.settings.id}: {type(error).__name__} while it was loaded: {error}")
        self._inbox.put(LoadDone(load, result))

    def _loaded(self, load: Load, result: Slot | Exception) -> None:
        if isinstance(result, Slot) and self._draining:
            result.close()
            self._release(result.id)
            result = UnavailableError(self._draining)
        if not isinstance(result, Slot):
            self._fail_load(load, result)
            return
        self._slots[result.id] = result
        self._fallbacks.enter(result)
        self._dance.enter(result)
        self.enter(result)
        if not load.activate or result.seat is None or result.there:
            self._serve(load, result)
            return
        activated: Future[Mapping[str, float]] = Future()
        activated.add_done_callback(partial(self._activated, load, result))
        self._dance.activate(Activate(result.id, activated, load.operation))

    def _activated(self, load: Load, slot: Slot, activated: Future[Mapping[str, float]]) -> None:
        """A model that was loaded is on its device, or cannot be there: then it is removed again."""
        error = activated.exception()
        if error is None:
            self._serve(load, slot)
            return
        unloaded: Future[None] = Future()
        unloaded.add_done_callback(lambda _: self._fail_load(load, error))
        self._unloads[slot.id] = Unload(slot.id, None, unloaded, forgets=False)

    def _serve(self, load: Load, slot: Slot) -> None:
        """Let requests come to a model that was loaded."""
        del self._loads[slot.id]
        if self._bank is not None:
            self._bank.review(slot.id, slot.home.origin, slot.executor.row_bytes)
        entry = describe(slot)
        self.catalogue = self.catalogue.extend(entry, loading=self._loads)
        self._answers.give(load.loaded, entry)

    def _fail_load(self, load: Load, error: BaseException) -> None:
        del self._loads[load.settings.id]
        self.catalogue = self.catalogue.extend(loading=self._loads)
        load.loaded.set_exception(error)

    def _unload(self, unload: Unload) -> None:
        model = unload.model
        if model not in self._slots or model in self._loads or model in self._unloads:
            unload.unloaded.set_exception(self.catalogue.missing(model))
            return
        self._unloads[model] = unload
        self.catalogue = self.catalogue.without(model)
        if unload.operation is not None:
            unload.operation.enter("wait")

    def _finish_unloads(self) -> None:
        """Free models that are to go and whose streams have ended, once nothing works for them any more."""
        now = time.monotonic()
        for model, unload in list(self._unloads.items()):
            slot = self._slots.get(model)
            if slot is None:  # a worker has it
                continue
            if unload.until is not None and unload.until <= now:
                unload.late = True
                error = UnavailableError(f"{model}: it is being unloaded")
                for place, sequence in list(self._live.values()):
                    if place.id == model:
                        self.end(place, sequence, FailedEvent(error))
            both = [slot] if slot.understudy is None else [slot, slot.understudy]
            if (
                any(place.id == model for place, _ in self._live.values())
                or any(each.steps or each.move or each.home.moves or each.leaving for each in both)
                or self._fallbacks.works_for(slot)
                or self._dance.holds(slot)
            ):
                continue
            self._remove(slot, both)
            if unload.forgets and self._bank is not None:
                self._bank.flush(model)
            if unload.operation is not None:
                unload.operation.enter("free")
            threading.Thread(
                target=self._free, args=(slot, unload), name=f"tierd-unload-{model}", daemon=True
            ).start()

    def _remove(self, slot: Slot, both: Ordered[Slot]) -> None:
        """Take a slot and its understudy out of all that the loop knows."""
        del self._slots[slot.id]
        for each in both:
            self._everyone.pop(each, None)
            self._devices[each.executor.name].turns.leave(each.id)
            self._devices[each.executor.name].paces.forget(each)
        self._dance.forget(slot)
        self._fallbacks.forget(slot)
        self._ledger.forget(slot.id)

    def _free(self, slot: Slot, unload: Unload) -> None:
        """Run in a worker thread, which alone has the slot now."""
        try:
            slot.close()
            self._release(slot.id)
        except Exception:
            log.exception("model=%s could not be freed", slot.id)
        self._inbox.put(UnloadDone(unload))

    def _unloaded(self, unload: Unload) -> None:
        """A worker has freed a model; its name can be used again once its files are gone."""

        def cleared(problem: str) -> None:
            del self._unloads[unload.model]
            log.info("model=%s is unloaded", unload.model)
            self._answer(unload.unloaded, None, problem)

        self._when_cleared(cleared)

    def _flush(self, flush: Flush) -> None:
        if flush.model is not None and flush.model not in self._slots:
            flush.freed.set_exception(self.catalogue.missing(flush.model))
            return
        slots = [slot for slot in self._slots.values() if flush.model in (None, slot.id)]
        freed = {slot.id: slot.flush() for slot in slots}
        if flush.model is None and self._bank is not None:
            self._bank.flush()  # what is there of models that are not loaded
        for model, pages in freed.items():
            log.info("model=%s flushed the prefix cache, %d pages", model, pages)
        self._flushes.add(flush.freed)

        def cleared(problem: str) -> None:
            self._flushes.remove(flush.freed)
            self._answer(flush.freed, sum(freed.values()), problem)

        self._when_cleared(cleared)

    def _when_cleared(self, then: Callable[[str], None]) -> None:
        """Call `then` once no file is left of what the bank has closed, told why one is."""
        if self._bank is None:
            then("")
        else:
            self._bank.when_cleared(then)

    def _answer(self, future: Future[T], result: T, problem: str) -> None:
        """Let a future have its result, unless files are left that should not be."""
        if problem:
            self._answers.refuse(future, StateError(f"state.dir: {problem}; remove what lies there by hand"))
        else:
            self._answers.give(future, result)

    def _resume(self, resumed: Future[None]) -> None:
        if self._draining == CLOSED:
            resumed.set_exception(UnavailableError(CLOSED))
            return
        self._draining = ""
        ready = [slot for model, slot in self._slots.items() if model not in (self._loads | self._unloads)]
        self.catalogue = Catalogue().extend(*map(describe, ready), loading=self._loads)
        self._drains.call_off(UnavailableError("the drain was called off: requests are admitted again"))
        self._answers.give(resumed, None)

    def _drain(self, closed: str) -> None:
        self._draining = closed
        self.catalogue = self.catalogue.close(closed)
        for slot in self._slots.values():
            for sequence in list(slot.waiting):
                self.end(slot, sequence, FailedEvent(UnavailableError(closed)))

    def end(self, slot: Slot, sequence: Sequence, event: TerminalEvent) -> None:
        """End a stream, unless it has ended: the one place where terminal events come from."""
        if self._live.pop(sequence.request.id, None) is not None:
            leave(slot, sequence)
            self._fallbacks.leave(slot, sequence)
            self._readers.forget(sequence)
            event = self._ledger.closed(sequence, event)
            self._emit(sequence.request.id, event)

    def place(self, slot: Slot, sequence: Sequence) -> None:
        """Note that a stream is at another slot now."""
        self._live[sequence.request.id] = (slot, sequence)

    def _emit(self, request_id: str, event: Event) -> None:
        self._events.append((request_id, event))

    def _publish(self) -> None:
        self.snapshot = observe(
            self._slots.values(), self._fallbacks.passes, self._bank, self._dance, self._ledger.totals
        )
        self._ledger.published(self.snapshot)
        self._hand_over()
        if not self._live:
            self._drains.step(self._everyone, quiet=self._quiet)

    def _hand_over(self) -> None:
        events, self._events = self._events, []
        if events:
            try:
                self._deliver(events)
            except Exception:  # whoever reads has gone: that is no reason to stop serving others
                log.exception("%d events could not be delivered", len(events))
