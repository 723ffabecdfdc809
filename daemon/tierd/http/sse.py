"""Event streams: their framing, and the response that sends one.

Framing: https://html.spec.whatwg.org/multipage/server-sent-events.html. Every object is one `data:`
line and an empty line; the end is `data: [DONE]`; a comment keeps a quiet connection open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tierd.http.protocol import ABORT

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# A quiet connection has a comment after so long at least, and at most twice as long.
KEEP_ALIVE_S = 5.0

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

News = TypeVar("News")
News_co = TypeVar("News_co", covariant=True)
News_contra = TypeVar("News_contra", contravariant=True)

# Stands for the text while a frame is made; no other field may hold a control character.
_MARK = "\0"

# Line ends to clients that split a stream as Unicode text; JSON may hold them as they are.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))

_encode = msgspec.json.Encoder().encode


def frame(data: msgspec.Struct) -> bytes:
    """Return one event."""
    return b"data: " + _one_line(_encode(data)) + b"\n\n"


def named_frame(name: str, data: msgspec.Struct) -> bytes:
    """Return one event that has its name in a line before its data."""
    return b"event: %s\n%s" % (name.encode(), frame(data))


def json_text(text: str) -> bytes:
    """Return text as a JSON string that no client takes for several lines."""
    encoded = _encode(text)
    return encoded if text.isascii() else _one_line(encoded)


def _one_line(encoded: bytes) -> bytes:
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return encoded


def split(marked: Callable[[str], bytes]) -> tuple[bytes, bytes]:
    """Return what stands before and behind the JSON of a text in the frame that `marked` makes of it."""
    head, _, tail = marked(_MARK).partition(_encode(_MARK))
    return head, tail


class Stream(Protocol[News_co]):
    """What an event stream sends: see Choices and Conversation."""

    @property
    def ended(self) -> bool:
        """Whether the last news was returned."""

    @property
    def under_way(self) -> bool:
        """Whether it has left the queue."""

    def remind(self, seconds: float) -> None:
        """See Mailbox.remind."""

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """See Mailbox.cut_slow."""

    async def take(self) -> Sequence[News_co]:
        """Wait for news; none is a reminder."""

    async def __aenter__(self) -> Stream[News_co]: ...

    async def __aexit__(self, *error: Any) -> None: ...


class Frames(Protocol[News_contra]):
    """How an API writes news down."""

    @property
    def first(self) -> bytes:
        """What goes before anything else."""

    def encode(self, news: Iterable[News_contra]) -> bytes:
        """Return the frames of some news, in order."""


class EventStream(Response, Generic[News]):
    """Runs a request and sends its news as they come, one write for all that came together.

    It begins with the first text, so that what fails before has a status of its own, or with the first
    keep-alive after the request has left the queue, or while its model is away from its device. What fails
    later is the error boundary's to frame. News of which nothing can be told yet are no reason to be quiet.
    """

    def __init__(self, stream: Stream[News], frames: Frames[News], keep_alive: bytes = KEEP_ALIVE) -> None:
        self.stream = stream
        self.frames = frames
        self.keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end. Raises what Exchange.take raises."""
        async with self.stream as stream:
            stream.remind(KEEP_ALIVE_S)
            stream.cut_slow(scope["extensions"][ABORT]["abort"])
            news = await stream.take()
            while not (news or stream.under_way):
                news = await stream.take()
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            body, sent = self.frames.first, time.monotonic()
            while True:
                body += self.frames.encode(news) if news else self.keep_alive
                if body:
                    sent = time.monotonic()
                elif time.monotonic() - sent >= KEEP_ALIVE_S:
                    body, sent = self.keep_alive, time.monotonic()
                await send({"type": "http.response.body", "body": body, "more_body": not stream.ended})
                if stream.ended:
                    return
                body = b""
                news = await stream.take()
