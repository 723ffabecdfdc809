"""One request in flight: from its submission to its one terminal event, or to its cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeGuard

from starlette.requests import Request as HTTPRequest

from tierd.core import Event, FailedEvent, FinishedEvent, FinishReason, Request, StartedEvent, TextEvent
from tierd.engine import Engine
from tierd.errors import TierdError, UnavailableError
from tierd.http.auth import Visit
from tierd.http.mailboxes import Mailboxes
from tierd.http.quotas import Lease
from tierd.http.transcript import Transcript


class Exchange:
    """Submits a request on entry; cancels it on exit unless it has ended.

    It goes by the key of the HTTP request, whose body has been read, and takes what that key may take.
    Whoever waits in `take` when the client hangs up gets a ClientDisconnect, so the engine learns of it at
    once, even while nothing is being sent.
    started: the request has left the queue. cached_tokens: of its prompt, once it has; as in core.Usage.
    """

    def __init__(self, engine: Engine, mailboxes: Mailboxes, request: Request, asked: HTTPRequest) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        visit: Visit = asked.state.visit
        self._request = replace(
            request, key=visit.name, owner=visit.owner, traceparent=asked.state.traceparent
        )
        self._transcript = Transcript(self._request)
        self._receive = asked.receive
        self._lease: Lease = asked.state.lease
        self._spent = 0  # tokens that were generated
        self.started = False
        self.cached_tokens = 0
        self._returned = 0  # texts that the last `take` returned
        self._unacknowledged = 0  # texts written that the engine has not been told of
        self._failure: TierdError | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        self._mailbox = self._mailboxes.open(self._request.id)
        try:
            self._engine.submit(self._request)
        except UnavailableError:
            self._mailboxes.close(self._request.id)
            raise
        self._transcript.begin(self._engine.catalogue)
        self._lease.hold()
        self._lease.feed(self._request.prompt)
        self._watch = asyncio.create_task(self._watch_client())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transcript.end()
        self._lease.release()
        self._watch.cancel()
        self._mailboxes.close(self._request.id)
        if not self._ended:
            self._engine.cancel(self._request.id)

    @property
    def away(self) -> bool:
        """Whether its model is away from its device: then no time limit of the queue runs."""
        model = self._engine.snapshot.models.get(self._request.model)
        return model is not None and model.seat in ("leaving", "away", "arriving")

    def remind(self, seconds: float) -> None:
        """Let `take` return an empty list now and then while nothing comes; see Mailbox.remind."""
        self._mailbox.remind(seconds)

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """Call `cut` to close the connection when its client does not read; see Mailbox.cut_slow."""
        self._mailbox.cut_slow(cut)

    def finish(self) -> None:
        """Have the stream end now with reason STOP; its last event comes as always."""
        if not self._ended:
            self._engine.finish(self._request.id)

    async def take(self) -> list[TextEvent | FinishedEvent]:
        """Wait for events and return all that came; a FinishedEvent can only be the last one.

        Called once the client has been sent what was returned before: the engine pauses a stream whose
        client does not keep up. An empty list is a reminder; see `remind`.
        Raises the stream's error once everything before it has been returned, and ClientDisconnect.
        """
        self._acknowledge()
        while self._failure is None:
            events = await self._mailbox.take()
            news = [event for event in events if self._is_news(event)]
            self._returned = len(news)
            if news or not events:
                return news
        raise self._failure

    def _is_news(self, event: Event) -> TypeGuard[TextEvent | FinishedEvent]:
        """Note an event; say whether it is the caller's to see."""
        if isinstance(event, StartedEvent):
            self.started = True
            self.cached_tokens = event.cached_tokens
            return False
        if isinstance(event, TextEvent):
            self._spend(event.generated)
            self._transcript.note(event)
            return True
        self._ended = True
        if isinstance(event, FinishedEvent):
            self._spend(event.usage.completion_tokens)
        self._failure = _failure(event)
        return self._failure is None

    def _spend(self, generated: int) -> None:
        """Count tokens: so many were generated by now."""
        self._lease.spend(generated - self._spent)
        self._spent = generated

    def _acknowledge(self) -> None:
        """Tell the engine of texts written, half a backlog at a time: it need not hear of each."""
        self._unacknowledged += self._returned
        self._returned = 0
        if self._unacknowledged * 2 >= self._engine.reader_backlog:
            self._engine.taken(self._request.id, self._unacknowledged)
            self._unacknowledged = 0

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._mailbox.hang_up()


def _failure(event: Event) -> TierdError | None:
    if isinstance(event, FailedEvent):
        return event.error
    if isinstance(event, FinishedEvent) and event.reason is FinishReason.CANCELLED:
        return UnavailableError("the request was cancelled by the server; send it again")
    return None
