"""The streams that are live, from the request to the one terminal event, and what a turn tells of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from queue import SimpleQueue

from tierd.chat.stops import text_stream
from tierd.core import Event, FailedEvent, FinishedEvent, FinishReason, Request, Sequence, TerminalEvent
from tierd.engine import queue
from tierd.engine.following import Followers
from tierd.engine.ledger import Ledger
from tierd.engine.messages import Message
from tierd.engine.readers import Readers
from tierd.engine.scheduler import leave, usage
from tierd.errors import SlowReaderError, TierdError
from tierd.settings import Settings
from tierd.slot import Slot

log = logging.getLogger(__name__)

Deliver = Callable[[Ordered[tuple[str, Event]]], None]


class Streams:
    """Begins streams, ends them, and gathers their events. The engine thread's own.

    live: by request, until its terminal event: the stream, and the slot that it is at. deliver: called with
    (request id, event) pairs, in order. on_end: called with each stream that has ended, and where it was.
    """

    def __init__(
        self,
        inbox: SimpleQueue[Message],
        deliver: Deliver,
        ledger: Ledger,
        settings: Settings,
    ) -> None:
        self.live: dict[str, tuple[Slot, Sequence]] = {}
        self.on_end: Callable[[Slot, Sequence], None] = lambda slot, sequence: None
        self._deliver = deliver
        self._ledger = ledger
        self._settings = settings
        self._readers = Readers(settings.server)
        self._followers = Followers(inbox)
        self._events: list[tuple[str, Event]] = []  # of this turn

    def configure(self, settings: Settings) -> None:
        """Go by other settings of the queue; those of readers stay."""
        self._settings = settings

    def deadline(self, slots: Iterable[Slot]) -> float | None:
        """When one of these slots, or a client, lets somebody wait for too long; see `loop.Loop`."""
        due = [queue.deadline(slot, self._settings.queue) for slot in slots]
        return min((end for end in [*due, self._readers.deadline] if end is not None), default=None)

    def at(self, model: str) -> list[tuple[Slot, Sequence]]:
        """Those of a model."""
        return [(slot, sequence) for slot, sequence in self.live.values() if slot.id == model]

    def begin(self, slot: Slot, request: Request, submitted: float) -> None:
        """Let a request wait at its slot. Raises RequestError where it cannot be served there."""
        queue.check(request, slot)
        text = text_stream(slot.tokenizer, request.stop, request.spelled)
        rank = queue.rank(request, submitted, self._settings.queue)
        sequence = Sequence(request, text, list(request.prompt), submitted=submitted, rank=rank)
        self.live[request.id] = (slot, sequence)
        self._followers.follow(sequence, slot.tokenizer.end_ids)
        self._ledger.opened(sequence)
        away = queue.join(slot, sequence, self._settings.queue, self._ledger.service_s(slot.id))
        if away is not None:
            self.end(slot, away[0], FailedEvent(away[1]))

    def place(self, slot: Slot, sequence: Sequence) -> None:
        """Note that a stream is at another slot now."""
        self.live[sequence.request.id] = (slot, sequence)

    def send(self, sequence: Sequence, event: Event) -> None:
        """Tell of a stream's text; it is paused where its client does not keep up."""
        self.emit(sequence.request.id, event)
        if self._readers.send(sequence, time.monotonic()):
            self._ledger.paused(sequence)

    def take(self, request_id: str, count: int) -> None:
        """Note that a client has taken so many texts."""
        if request_id in self.live:
            self._readers.take(self.live[request_id][1], count)

    def close(self, request_id: str, reason: FinishReason) -> None:
        """End a request as one that is finished; nothing happens when it has ended."""
        if request_id in self.live:
            slot, sequence = self.live[request_id]
            self.end(slot, sequence, FinishedEvent(reason, usage(sequence)))

    def fail(self, request_id: str, error: TierdError) -> None:
        """End a request with an error; nothing happens when it has ended."""
        if request_id in self.live:
            self.end(*self.live[request_id], FailedEvent(error))

    def expire(self, slots: Iterable[Slot]) -> None:
        """End who has waited too long: for a place at one of these slots, or for its client."""
        now, settings = time.monotonic(), self._settings
        for slot in slots:
            while sequence := queue.overdue(slot, settings.queue, now):
                late = queue.timed_out(slot, settings.queue, self._ledger.service_s(slot.id))
                self.end(slot, sequence, FailedEvent(late))
        for request_id in self._readers.overdue(now):
            waited = settings.server.reader_timeout_s
            self.fail(
                request_id,
                SlowReaderError(f"the stream waited {waited:g} s for its client to read on"),
            )

    def end(self, slot: Slot, sequence: Sequence, event: TerminalEvent) -> None:
        """End a stream, unless it has ended: the one place where terminal events of streams come from."""
        if self.live.pop(sequence.request.id, None) is not None:
            leave(slot, sequence)
            self.on_end(slot, sequence)
            self._readers.forget(sequence)
            self.emit(sequence.request.id, self._ledger.closed(sequence, event))

    def emit(self, request_id: str, event: Event) -> None:
        """Tell of something with the end of the turn."""
        self._events.append((request_id, event))

    def hand_over(self) -> None:
        """Deliver what is to be told."""
        events, self._events = self._events, []
        if events:
            try:
                self._deliver(events)
            except Exception:  # whoever reads has gone: that is no reason to stop serving others
                log.exception("%d events could not be delivered", len(events))

    def break_down(self, error: TierdError) -> None:
        """The engine has failed: tell so, and do no more."""
        self.stop()
        for request_id in self.live:
            self.emit(request_id, FailedEvent(error))

    def stop(self) -> None:
        """Let the threads end that work for streams; none is live any more."""
        self._followers.stop()
