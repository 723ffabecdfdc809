"""From the pieces of an answer to its blocks of content, whole or as the events of a stream.

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

Every event is a line `event:` with its type and a line `data:`, as Anthropic frames them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tierd import core
from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.http.messages_shapes import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    Counts,
    Ending,
    Event,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from tierd.http.sse import frame, json_text, split
from tierd.http.turn import Ended, EndReason

_REASONS: Mapping[EndReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
_MEMBER = re.compile(r'\s*[{,]\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_MEMBER_END = re.compile(r"\s*[,}]")


def event(data: Event) -> bytes:
    """Return one event."""
    return b"event: " + data.type.encode() + b"\n" + frame(data)


PING = event(Ping())


def ending(end: Ended) -> Ending:
    """Return why an answer ended. A stop sequence is named even where a call was made before it."""
    reason = _REASONS[end.reason] if end.stop is None else "stop_sequence"
    return Ending(reason, end.stop)


def sign(thought: str) -> str:
    """Return what thoughts are signed with here: a digest, so that clients that ask for a signature have one.

    It proves nothing; thoughts that come back are taken whatever their signature.
    """
    return _written(hashlib.sha256(thought.encode()).digest())


def _written(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


class Blocks:
    """Which block each piece of an answer belongs to: neighbours of a kind share one, but for calls.

    index: of the block of the latest piece; -1 before the first.
    """

    def __init__(self) -> None:
        self.index = -1
        self._kind: type[Piece] | None = None

    def begins(self, piece: Piece) -> bool:
        """Take the next piece; say whether a block begins with it."""
        kind = Arguments if isinstance(piece, Called) else type(piece)
        begins = isinstance(piece, Called) or kind is not self._kind
        self._kind = kind
        self.index += begins
        return begins


def content(pieces: Iterable[Piece]) -> list[ContentBlock]:
    """Return the blocks of a whole answer."""
    blocks = Blocks()
    parts: list[list[Piece]] = []
    for piece in pieces:
        if blocks.begins(piece):
            parts.append([])
        parts[-1].append(piece)
    return [_whole(part) for part in parts]


def _whole(part: Sequence[Piece]) -> ContentBlock:
    text = "".join(piece.text for piece in part if not isinstance(piece, Called))
    match _empty(part[0]):
        case ThinkingBlock():
            return ThinkingBlock(thinking=text, signature=sign(text))
        case ToolUseBlock(id=id, name=name):
            return ToolUseBlock(id=id, name=name, input=msgspec.Raw(read_input(text).encode()))
        case _:
            return TextBlock(text=text)


def _empty(piece: Piece) -> ContentBlock:
    """Return the block that begins with a piece, as it is before it has any text."""
    match piece:
        case Thought():
            return ThinkingBlock()
        case Said():
            return TextBlock()
        case Called(_, id, name):
            return ToolUseBlock(id=id, name=name)
        case Arguments():
            raise AssertionError("arguments without a call")


def read_input(text: str) -> str:
    """Return the input of a call as the JSON of an object, whatever the model wrote.

    Where that breaks off, or is no JSON from some place on, it is the members that are complete before.
    """
    try:
        if isinstance(json.loads(text, parse_constant=_refuse), dict):
            return text
    except (ValueError, RecursionError):
        pass
    members: dict[str, object] = {}
    decoder = json.JSONDecoder(parse_constant=_refuse)
    place = 0
    while name := _MEMBER.match(text, place):
        try:
            key = json.loads(name[1])
            value, place = decoder.raw_decode(text, name.end())
        except (ValueError, RecursionError):
            break
        if not _MEMBER_END.match(text, place):
            break
        members[key] = value
    return json.dumps(members)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _delta(block: ContentBlock, text: str) -> TextDelta | ThinkingDelta | InputDelta:
    """Return what adds text to a block."""
    match block:
        case ThinkingBlock():
            return ThinkingDelta(thinking=text)
        case ToolUseBlock():
            return InputDelta(partial_json=text)
        case TextBlock():
            return TextDelta(text=text)


class MessageFrames:
    """The event stream of an answer; see sse.Frames.

    How much of the prompt was kept is known at the end only; until then all of it counts as fed.
    """

    def __init__(self, id: str, model: str, prompt_tokens: int) -> None:
        message = Message(
            id=id,
            model=model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=Counts.of(core.Usage(prompt_tokens, 0)),
        )
        self.first = event(MessageStart(message=message))
        self._blocks = Blocks()
        self._block: _Block | None = None

    def encode(self, news: Iterable[tuple[int, Piece | Ended]]) -> bytes:
        """Return the frames of some (choice, piece or end) pairs, in order; there is one choice."""
        frames = []
        for _, piece in news:
            if isinstance(piece, Ended):
                frames.append(self._close())
                frames.append(event(MessageDelta(delta=ending(piece), usage=Counts.of(piece.usage))))
                frames.append(event(MessageStop()))
                continue
            if self._blocks.begins(piece):
                frames.append(self._close())
                self._block = _Block(self._blocks.index, piece)
                frames.append(self._block.start)
            assert self._block is not None
            if not isinstance(piece, Called):
                frames.append(self._block.encode(piece.text))
        return b"".join(frames)

    def _close(self) -> bytes:
        return b"" if self._block is None else self._block.close()


class _Block:
    """One block's events. What stays the same is encoded once; a text costs its own JSON only."""

    def __init__(self, index: int, first: Piece) -> None:
        self._index = index
        empty = _empty(first)
        self.start = event(BlockStart(index=index, content_block=empty))
        self._head, self._tail = split(lambda text: event(BlockDelta(index=index, delta=_delta(empty, text))))
        self._digest = hashlib.sha256() if isinstance(empty, ThinkingBlock) else None

    def encode(self, text: str) -> bytes:
        """Return the event of more text."""
        if self._digest is not None:
            self._digest.update(text.encode())
        return self._head + json_text(text) + self._tail

    def close(self) -> bytes:
        """Return the events of the end."""
        stop = event(BlockStop(index=self._index))
        if self._digest is None:
            return stop
        delta = SignatureDelta(signature=_written(self._digest.digest()))
        return event(BlockDelta(index=self._index, delta=delta)) + stop
