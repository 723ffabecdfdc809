"""Event streams: their framing, and the response that sends one.

Framing: https://html.spec.whatwg.org/multipage/server-sent-events.html. Every object is one `data:`
line and an empty line; the end is `data: [DONE]`; a comment keeps a quiet connection open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tierd import core
from tierd.core import FinishedEvent, TextEvent
from tierd.http.choices import Choices, total_usage
from tierd.http.logprobs import ChatScribe, TextScribe
from tierd.http.protocol import ABORT
from tierd.http.shapes import (
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    Completion,
    Delta,
    Heading,
    TextChoice,
    TextLogprobs,
    Usage,
)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# A quiet connection has a comment after so long at least, and at most twice as long.
KEEP_ALIVE_S = 5.0

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
    return b"data: " + _one_line(_encode(data)) + b"\n\n"


def json_text(text: str) -> bytes:
    """Return text as a JSON string that no client takes for several lines."""
    encoded = _encode(text)
    return encoded if text.isascii() else _one_line(encoded)


def _one_line(encoded: bytes) -> bytes:
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return encoded


@dataclass(frozen=True, slots=True)
class ChoiceFrames:
    """One choice's frames. What stays the same is encoded once; a text costs its own JSON only.

    first: goes before anything else. head, tail: around a text's JSON. scored: of a text with the
    log-probabilities of its tokens. end: of the reason of the end.
    """

    first: bytes
    head: bytes
    tail: bytes
    scored: Callable[[TextEvent], bytes]
    end: Callable[[FinishedEvent], bytes]

    def encode(self, event: TextEvent | FinishedEvent) -> bytes:
        """Return the frame of an event."""
        if isinstance(event, FinishedEvent):
            return self.end(event)
        return self.scored(event) if event.logprobs else self.head + json_text(event.text) + self.tail


class Frames:
    """All frames of a stream, for all its choices. close: what follows the end of the last one."""

    def __init__(self, choices: Sequence[ChoiceFrames], close: Callable[[core.Usage], bytes]) -> None:
        self.first = b"".join(choice.first for choice in choices)
        self._choices = choices
        self._close = close
        self._usages: dict[int, core.Usage] = {}

    def encode(self, news: Iterable[tuple[int, TextEvent | FinishedEvent]]) -> bytes:
        """Return the frames of some (choice, event) pairs, in order."""
        frames = []
        for index, event in news:
            frames.append(self._choices[index].encode(event))
            if isinstance(event, FinishedEvent):
                self._usages[index] = event.usage
                if len(self._usages) == len(self._choices):
                    frames.append(self._close(total_usage([self._usages[i] for i in sorted(self._usages)])))
        return b"".join(frames)


def chat_frames(heading: Heading, include_usage: bool, scribes: Sequence[ChatScribe]) -> Frames:
    """Return the frames of a chat: the role, texts, the reason of the end; token counts if asked for.

    scribes: one for each choice.
    """
    usage = None if include_usage else msgspec.UNSET

    def choice(index: int, scribe: ChatScribe) -> ChoiceFrames:
        def chunk(delta: Delta, reason: str | None = None, logprobs: ChatLogprobs | None = None) -> bytes:
            choice = ChatChunkChoice(delta, reason, index, logprobs)
            return frame(ChatChunk(**heading, choices=[choice], usage=usage))

        return ChoiceFrames(
            chunk(Delta("assistant", "")),
            *_split(chunk(Delta(content=_MARK))),
            scored=lambda event: chunk(Delta(content=event.text), logprobs=scribe.write(event.logprobs)),
            end=lambda event: chunk(Delta(), event.reason),
        )

    def close(total: core.Usage) -> bytes:
        counts = ChatChunk(**heading, choices=[], usage=Usage.of(total))
        return (frame(counts) if include_usage else b"") + DONE

    return Frames([choice(i, scribe) for i, scribe in enumerate(scribes)], close)


def completion_frames(heading: Heading, include_usage: bool, scribes: Sequence[TextScribe]) -> Frames:
    """Return the frames of a completion: texts, the reason of the end; token counts if asked for.

    scribes: one for each choice.
    """
    usage = None if include_usage else msgspec.UNSET

    def choice(index: int, scribe: TextScribe) -> ChoiceFrames:
        def chunk(text: str, reason: str | None = None, logprobs: TextLogprobs | None = None) -> bytes:
            choice = TextChoice(text, reason, index, logprobs)
            return frame(Completion(**heading, choices=[choice], usage=usage))

        return ChoiceFrames(
            b"",
            *_split(chunk(_MARK)),
            scored=lambda event: chunk(event.text, logprobs=scribe.write(event.logprobs)),
            end=lambda event: chunk("", event.reason),
        )

    def close(total: core.Usage) -> bytes:
        counts = Completion(**heading, choices=[], usage=Usage.of(total))
        return (frame(counts) if include_usage else b"") + DONE

    return Frames([choice(i, scribe) for i, scribe in enumerate(scribes)], close)


def _split(marked: bytes) -> tuple[bytes, bytes]:
    head, _, tail = marked.partition(_encode(_MARK))
    return head, tail


class EventStream(Response):
    """Runs a request's choices and sends their events as they come, one write for all that came together.

    It begins with the first text, so that what fails before has a status of its own, or with the first
    keep-alive after the request has left the queue, or while its model is away from its device. What fails
    later is the error boundary's to frame.
    """

    def __init__(self, choices: Choices, frames: Frames) -> None:
        self.choices = choices
        self.frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end. Raises what Exchange.take raises."""
        async with self.choices as choices:
            choices.remind(KEEP_ALIVE_S)
            choices.cut_slow(scope["extensions"][ABORT]["abort"])
            news = await choices.take()
            while not (news or choices.under_way):
                news = await choices.take()
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            body = self.frames.first
            while True:
                body += self.frames.encode(news) if news else KEEP_ALIVE
                await send({"type": "http.response.body", "body": body, "more_body": not choices.ended})
                if choices.ended:
                    return
                body = b""
                news = await choices.take()
