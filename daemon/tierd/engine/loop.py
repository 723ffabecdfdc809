"""The engine thread: it alone touches slots, sequences and K/V pages, so there are no locks here.

Messages come in through the inbox, the only thing it ever waits for. Events go out through `deliver`,
once a turn. What it knows is published as immutable values for other threads to read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from queue import SimpleQueue

from tierd.backends.protocol import Logits
from tierd.chat.stops import text_stream
from tierd.core import Event, FailedEvent, FinishedEvent, FinishReason, Request, Sequence, TerminalEvent
from tierd.engine.catalogue import Catalogue, describe
from tierd.engine.ledger import Ledger
from tierd.engine.messages import Cancel, Flush, Load, LoadDone, Message, StepDone, Stop, Submit
from tierd.engine.runner import Runner
from tierd.engine.sampler import pick, score
from tierd.engine.scheduler import commit, leave, schedule, settle, usage
from tierd.engine.snapshot import Snapshot, observe
from tierd.errors import (
    ContextLengthExceededError,
    ExecutorError,
    InvalidRequestError,
    ModelError,
    RequestError,
    SettingsError,
    TierdError,
    UnavailableError,
)
from tierd.metrics import Metrics
from tierd.settings import ModelSettings
from tierd.slot import Slot, Step

log = logging.getLogger(__name__)

Deliver = Callable[[Ordered[tuple[str, Event]]], None]
OpenSlot = Callable[[ModelSettings], Slot]


class Loop:
    """All model state, and the turns in which it changes. catalogue and snapshot may be read anywhere."""

    def __init__(
        self, inbox: SimpleQueue[Message], deliver: Deliver, open_slot: OpenSlot, metrics: Metrics
    ) -> None:
        self.catalogue = Catalogue()
        self.snapshot = Snapshot()
        self._inbox = inbox
        self._deliver = deliver
        self._open_slot = open_slot
        self._ledger = Ledger(metrics)
        self._loads: dict[str, Load] = {}  # by model, until they are done
        self._slots: dict[str, Slot] = {}  # by model; whose step was done longest ago comes first
        self._runners: dict[str, Runner] = {}  # by device
        self._live: dict[str, tuple[Slot, Sequence]] = {}  # by request, until its terminal event
        self._events: list[tuple[str, Event]] = []  # of this turn
        self._stopping = False

    def run(self) -> None:
        """Take turns until a Stop has come and all that was going on then is over."""
        while not self._stopping or self._loads or any(slot.step for slot in self._slots.values()):
            self._handle(self._inbox.get())
            for _ in range(self._inbox.qsize()):
                self._handle(self._inbox.get())
            for slot in self._slots.values():
                if slot.step is None and (step := schedule(slot)):
                    slot.step = step
                    self._runners[slot.executor.name].submit(slot, step)
                    self._ledger.scheduled(slot, step)
            self._publish()
        for runner in self._runners.values():
            runner.stop()
            runner.join()
        for slot in self._slots.values():
            slot.close()

    def break_down(self) -> None:
        """After `run` has raised: end what is live or still asked for. No more messages may come."""
        error = UnavailableError("the engine has failed and must be restarted; its log says why")
        self.catalogue = Catalogue()
        for runner in self._runners.values():
            runner.stop()
        for request_id in self._live:
            self._emit(request_id, FailedEvent(error))
        for load in self._loads.values():
            load.loaded.set_exception(error)
        while not self._inbox.empty():
            match self._inbox.get():
                case Submit(request):
                    self._emit(request.id, FailedEvent(error))
                case Load(_, loaded):
                    loaded.set_exception(error)
                case Flush(_, freed):
                    freed.set_exception(error)
        self._hand_over()

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(request, submitted):
                self._submit(request, submitted)
            case Cancel(request_id):
                self._cancel(request_id)
            case StepDone(slot, step, result, seconds):
                self._slots[slot.id] = self._slots.pop(slot.id)
                settle(slot, failed=isinstance(result, Exception))
                self._complete(slot, step, result, seconds)
            case Load():
                self._load(message)
            case LoadDone(load, result):
                self._loaded(load, result)
            case Flush():
                self._flush(message)
            case Stop():
                self._stop()

    def _submit(self, request: Request, submitted: float) -> None:
        try:
            slot = self._slots.get(request.model)
            if slot is None:
                raise self.catalogue.missing(request.model)
            _check(request, slot)
            text = text_stream(slot.tokenizer, request.stop)
        except RequestError as error:
            log.info("request=%s model=%s refused: %s", request.id, request.model, error)
            self._emit(request.id, FailedEvent(error))
            return
        sequence = Sequence(request, text, list(request.prompt))
        self._live[request.id] = (slot, sequence)
        self._ledger.opened(sequence, submitted)
        slot.waiting.append(sequence)

    def _cancel(self, request_id: str) -> None:
        if request_id in self._live:
            slot, sequence = self._live[request_id]
            self._end(slot, sequence, FinishedEvent(FinishReason.CANCELLED, usage(sequence)))

    def _complete(self, slot: Slot, step: Step, result: Logits | Exception, seconds: float) -> None:
        try:
            if isinstance(result, Exception):
                raise result
            tokens = pick(step, result)
            self._ledger.stepped(slot, step, tokens, seconds)
            for sequence, event in commit(slot, step, tokens, score(step, result, tokens)):
                if isinstance(event, TerminalEvent):
                    self._end(slot, sequence, event)
                else:
                    self._emit(sequence.request.id, event)
        except Exception as error:
            log.exception("model=%s device=%s a step failed", slot.id, slot.executor.name)
            if not isinstance(error, TierdError):
                error = ExecutorError(f"{slot.id}: {type(error).__name__} in a step: {error}; try again")
            for sequence in step.sequences:
                self._end(slot, sequence, FailedEvent(error))

    def _load(self, load: Load) -> None:
        model = load.settings.id
        if model in self._slots or model in self._loads:
            load.loaded.set_exception(SettingsError(f"{model}: a model of that name is there already"))
            return
        self._loads[model] = load
        self.catalogue = self.catalogue.extend(loading=self._loads)
        # A daemon: opening a file from a hung disk must not keep the process from ending.
        threading.Thread(target=self._open, args=(load,), name=f"tierd-load-{model}", daemon=True).start()

    def _open(self, load: Load) -> None:
        """Run in a worker thread: touches nothing of the loop but its inbox."""
        result: Slot | Exception
        try:
            result = self._open_slot(load.settings)
        except TierdError as error:
            result = error
        except Exception as error:
            log.exception("model=%s cannot be loaded", load.settings.id)
            result = ModelError(f"{load.settings.id}: {type(error).__name__} while it was loaded: {error}")
        self._inbox.put(LoadDone(load, result))

    def _loaded(self, load: Load, result: Slot | Exception) -> None:
        del self._loads[load.settings.id]
        if isinstance(result, Slot) and self._stopping:
            result.close()
            result = UnavailableError("the server is shutting down")
        if isinstance(result, Slot):
            self._slots[result.id] = result
            device = result.executor.name
            if device not in self._runners:
                self._runners[device] = Runner(device, self._inbox)
            entry = describe(result)
            self.catalogue = self.catalogue.extend(entry, loading=self._loads)
            load.loaded.set_result(entry)
        else:
            self.catalogue = self.catalogue.extend(loading=self._loads)
            load.loaded.set_exception(result)

    def _flush(self, flush: Flush) -> None:
        if flush.model is not None and flush.model not in self._slots:
            flush.freed.set_exception(self.catalogue.missing(flush.model))
            return
        slots = [slot for slot in self._slots.values() if flush.model in (None, slot.id)]
        freed = {slot.id: slot.prefixes.flush() for slot in slots}
        for model, pages in freed.items():
            log.info("model=%s flushed the prefix cache, %d pages", model, pages)
        flush.freed.set_result(sum(freed.values()))

    def _stop(self) -> None:
        self._stopping = True
        self.catalogue = Catalogue()
        for slot, sequence in list(self._live.values()):
            self._end(slot, sequence, FailedEvent(UnavailableError("the server is shutting down")))

    def _end(self, slot: Slot, sequence: Sequence, event: TerminalEvent) -> None:
        """End a stream, unless it has ended: the one place where terminal events come from."""
        if self._live.pop(sequence.request.id, None) is not None:
            leave(slot, sequence)
            self._ledger.closed(sequence, event)
            self._emit(sequence.request.id, event)

    def _emit(self, request_id: str, event: Event) -> None:
        self._events.append((request_id, event))

    def _publish(self) -> None:
        self.snapshot = observe(self._slots.values())
        self._ledger.published(self.snapshot)
        self._hand_over()

    def _hand_over(self) -> None:
        events, self._events = self._events, []
        if events:
            try:
                self._deliver(events)
            except Exception:  # whoever reads has gone: that is no reason to stop serving others
                log.exception("%d events could not be delivered", len(events))


def _check(request: Request, slot: Slot) -> None:
    """Raise RequestError for what would block the queue for good, or fail a batch that others share."""
    if not request.prompt or request.max_tokens < 1:
        raise InvalidRequestError("a request needs at least one prompt token and one token of output")
    if max(request.prompt) >= slot.executor.vocabulary or min(request.prompt) < 0:
        raise InvalidRequestError(
            f"the prompt holds a token id outside 0 to {slot.executor.vocabulary - 1}", param="prompt"
        )
    if any(not 0 <= token < slot.executor.vocabulary for token, _ in request.sampling.logit_bias):
        raise InvalidRequestError(
            f"logit_bias names a token id outside 0 to {slot.executor.vocabulary - 1}", param="logit_bias"
        )
    if len(request.prompt) + request.max_tokens > slot.context:
        raise ContextLengthExceededError(
            f"{len(request.prompt)} prompt tokens and {request.max_tokens} tokens of output do not fit "
            f"the model's context of {slot.context}; shorten the prompt or lower max_tokens"
        )
