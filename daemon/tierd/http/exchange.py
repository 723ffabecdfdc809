"""One request in flight: from its submission to its one terminal event, or to its cancelling."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive

from tierd.core import Event, FailedEvent, FinishedEvent, FinishReason, Request, TextEvent
from tierd.engine import Engine
from tierd.errors import TierdError, UnavailableError
from tierd.http.mailboxes import Mailboxes


class Exchange:
    """Submits a request on entry; cancels it on exit unless it has ended.

    receive: the ASGI channel, its body read. Whoever waits in `take` when the client hangs up gets a
    ClientDisconnect, so the engine learns of it at once, even while nothing is being sent.
    """

    def __init__(self, engine: Engine, mailboxes: Mailboxes, request: Request, receive: Receive) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._request = request
        self._receive = receive
        self._failure: TierdError | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        self._mailbox = self._mailboxes.open(self._request.id)
        try:
            self._engine.submit(self._request)
        except UnavailableError:
            self._mailboxes.close(self._request.id)
            raise
        self._watch = asyncio.create_task(self._watch_client())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        self._mailboxes.close(self._request.id)
        if not self._ended:
            self._engine.cancel(self._request.id)

    def remind(self, seconds: float) -> None:
        """Let `take` return an empty list now and then while nothing comes; see Mailbox.remind."""
        self._mailbox.remind(seconds)

    async def take(self) -> list[TextEvent | FinishedEvent]:
        """Wait for events and return all that came; a FinishedEvent can only be the last one.

        Raises the stream's error once everything before it has been returned, and ClientDisconnect.
        """
        if self._failure is not None:
            raise self._failure
        news: list[TextEvent | FinishedEvent] = []
        for event in await self._mailbox.take():
            if isinstance(event, TextEvent):
                news.append(event)
                continue
            self._ended = True
            self._failure = _failure(event)
            if isinstance(event, FinishedEvent) and self._failure is None:
                news.append(event)
        if self._failure is not None and not news:
            raise self._failure
        return news

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
