"""Event streams: their framing, and the response that sends one.

Framing: https://html.spec.whatwg.org/multipage/server-sent-events.html. Every object is one `data:`
line and an empty line; the end is `data: [DONE]`; a comment keeps a quiet connection open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tierd.core import FinishedEvent, TextEvent
from tierd.http.exchange import Exchange
from tierd.http.responses import ChatChunk, ChatChunkChoice, Completion, Delta, Heading, TextChoice, Usage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 10.0

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

# Stands for the text while a frame is made; no other field may hold a control character.
_MARK = "\0"

# Line ends to clients that split a stream as Unicode text; JSON may hold them as they are.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))

_encode = msgspec.json.Encoder().encode


def frame(data: msgspec.Struct) -> bytes:
    """Return one event."""
    return b"data: " + _encode(data) + b"\n\n"


def json_text(text: str) -> bytes:
    """Return text as a JSON string that no client takes for several lines."""
    encoded = _encode(text)
    if not text.isascii():
        for raw, escaped in _LINE_ENDS:
            encoded = encoded.replace(raw, escaped)
    return encoded


@dataclass(frozen=True, slots=True)
class Frames:
    """One stream's frames. What stays the same is encoded once; a text costs its own JSON only.

    first: goes before anything else. head, tail: around a text's JSON. end: all that follows the text.
    """

    first: bytes
    head: bytes
    tail: bytes
    end: Callable[[FinishedEvent], bytes]

    def encode(self, events: Iterable[TextEvent | FinishedEvent]) -> bytes:
        """Return the frames of some events, in order."""
        return b"".join(
            self.head + json_text(event.text) + self.tail if isinstance(event, TextEvent) else self.end(event)
            for event in events
        )


def chat_frames(heading: Heading, include_usage: bool) -> Frames:
    """Return the frames of a chat: the role, texts, the reason of the end, token counts if asked for."""
    usage = None if include_usage else msgspec.UNSET

    def chunk(delta: Delta, reason: str | None = None) -> bytes:
        return frame(ChatChunk(**heading, choices=[ChatChunkChoice(delta, reason)], usage=usage))

    def end(event: FinishedEvent) -> bytes:
        counts = ChatChunk(**heading, choices=[], usage=Usage.of(event.usage))
        return chunk(Delta(), event.reason) + (frame(counts) if include_usage else b"") + DONE

    return Frames(chunk(Delta("assistant", "")), *_split(chunk(Delta(content=_MARK))), end)


def completion_frames(heading: Heading, include_usage: bool) -> Frames:
    """Return the frames of a completion: texts, the reason of the end, token counts if asked for."""
    usage = None if include_usage else msgspec.UNSET

    def chunk(text: str, reason: str | None = None) -> bytes:
        return frame(Completion(**heading, choices=[TextChoice(text, reason)], usage=usage))

    def end(event: FinishedEvent) -> bytes:
        counts = Completion(**heading, choices=[], usage=Usage.of(event.usage))
        return chunk("", event.reason) + (frame(counts) if include_usage else b"") + DONE

    return Frames(b"", *_split(chunk(_MARK)), end)


def _split(marked: bytes) -> tuple[bytes, bytes]:
    head, _, tail = marked.partition(_encode(_MARK))
    return head, tail


class EventStream(Response):
    """Runs a request and sends its events as they come, one write for all that came together.

    It begins with the first event, so that what fails before has a status of its own, or with the
    first keep-alive. What fails later is the error boundary's to frame.
    """

    def __init__(self, exchange: Exchange, frames: Frames) -> None:
        self.exchange = exchange
        self.frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end. Raises what Exchange.take raises."""
        async with self.exchange as exchange:
            exchange.remind(KEEP_ALIVE_S)
            events = await exchange.take()
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            body = self.frames.first
            while True:
                body += self.frames.encode(events) if events else KEEP_ALIVE
                ended = bool(events) and isinstance(events[-1], FinishedEvent)
                await send({"type": "http.response.body", "body": body, "more_body": not ended})
                if ended:
                    return
                body = b""
                events = await exchange.take()
