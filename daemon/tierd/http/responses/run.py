"""A response on its way: its conversation becomes events, and it may be ended from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from tierd.http.errors import OPENAI, ErrorDetail, describe
from tierd.http.responses.draft import Draft
from tierd.http.responses.events import Event, frame
from tierd.http.responses.log import EventLog
from tierd.http.responses.shapes import Item, ResponseObject
from tierd.http.turns.conversation import Conversation

_DISCONNECT: Message = {"type": "http.disconnect"}


class Line:
    """An ASGI channel that can be hung up from here as well. receive: the client's; None: there is none."""

    def __init__(self, receive: Receive | None) -> None:
        self._receive = receive
        self._hung_up = asyncio.Event()

    def hang_up(self) -> None:
        """Let the other end hear of a disconnect."""
        self._hung_up.set()

    async def receive(self) -> Message:
        """Wait for the client's next message, or for the end."""
        if self._receive is None:
            await self._hung_up.wait()
            return _DISCONNECT
        message = asyncio.ensure_future(self._receive())
        hung_up = asyncio.ensure_future(self._hung_up.wait())
        try:
            await asyncio.wait((message, hung_up), return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else _DISCONNECT
        finally:
            message.cancel()
            hung_up.cancel()


class Run:
    """Makes one response: a stream of its events, see sse.Stream. It is over when it is left.

    owner: whose it is. input: JSON of all items that the model was given. beginning: the first events, which
    `take` does not return. parting: the last ones, where it was not the model that ended it. log: where all
    of them are written down, None: nowhere.
    known: somebody has been told its id. lost: it ended by an error, and nobody has.
    """

    def __init__(
        self,
        conversation: Conversation,
        draft: Draft,
        line: Line,
        owner: str,
        items: Sequence[Item],
        log: EventLog | None = None,
    ) -> None:
        self.owner = owner
        self.id = draft.response().id
        self.input = msgspec.json.encode(items)
        self.known = draft.response().background
        self.lost = False
        self.log = log
        self.beginning: list[Event] = []
        self.parting: list[Event] = []
        self.when_over: Callable[[Run], None] = lambda run: None
        self._conversation = conversation
        self._draft = draft
        self._line = line
        self._told = False

    async def __aenter__(self) -> Self:
        self.beginning = self._noted(self._draft.begin())
        try:
            await self._conversation.__aenter__()
        except BaseException as error:
            self._end(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._conversation.__aexit__(kind, error, trace)
        self._end(error)

    @property
    def ended(self) -> bool:
        """Whether `take` has returned the last event."""
        return self._told

    @property
    def under_way(self) -> bool:
        """See Choices."""
        return self._conversation.under_way

    def remind(self, seconds: float) -> None:
        """See Choices."""
        self._conversation.remind(seconds)

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """See Choices."""
        self._conversation.cut_slow(cut)

    def cancel(self) -> None:
        """End it now, whoever waits for it."""
        self.known = True
        if not self._draft.over:
            self.parting = self._noted(self._draft.cancel())
            self._line.hang_up()

    def response(self) -> ResponseObject:
        """Return the response, as far as it has come."""
        response = self._draft.response()
        if response.background and not (self._draft.over or self.under_way):
            return msgspec.structs.replace(response, status="queued")
        return response

    async def take(self) -> list[Event]:
        """Wait for events; may be called until `ended`. An empty list is a reminder.

        Raises as Conversation.take does.
        """
        try:
            news = await self._conversation.take()
        except ClientDisconnect:
            if not self._draft.over:
                raise
            news = []
        if self._draft.over:  # cancelled
            events = self.parting
        else:
            events = self._noted([event for _, piece in news for event in self._draft.push(piece)])
        self._told = self._draft.over
        return events

    async def finish(self) -> None:
        """Make the whole response. Raises as `take` does."""
        async with self:
            while not self.ended:
                await self.take()

    def _end(self, error: BaseException | None) -> None:
        """Note that it is over, and by what."""
        self.lost = error is not None and not self.known
        if error is not None and not isinstance(error, ClientDisconnect | asyncio.CancelledError):
            answer = describe(error)
            self.parting = self._noted(self._draft.fail(answer.status, answer.error))
        elif not self._draft.over:
            self.parting = self._noted(self._draft.cancel())
        if self.log is not None:
            self.log.end()
        self.when_over(self)

    def _noted(self, events: list[Event]) -> list[Event]:
        if self.log is not None:
            self.log.write(frame(event) for event in events)
        return events


class RunFrames:
    """The event stream of a run; see sse.Frames. Also how its errors are framed there; see errors.Dialect."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def first(self) -> bytes:
        """What tells that it has begun."""
        self._run.known = True
        return self.encode(self._run.beginning)

    def encode(self, news: Iterable[Event]) -> bytes:
        """Return the frames of some events, in order."""
        return b"".join(frame(event) for event in news)

    def body(self, status: int, error: ErrorDetail) -> bytes:
        """See Dialect."""
        return OPENAI.body(status, error)

    def frames(self, status: int, error: ErrorDetail) -> bytes:
        """See Dialect. The run has put the error into its last events."""
        return self.encode(self._run.parting)
