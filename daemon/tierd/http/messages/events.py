"""The events of a stream.

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

Every event is a line `event:` with its type and a line `data:`, as Anthropic frames them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tierd import core
from tierd.chat.reply import Called, Piece
from tierd.http.messages.content import Blocks, Signature, empty
from tierd.http.messages.growing_input import GrowingInput
from tierd.http.messages.shapes import (
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
from tierd.http.sse import json_text, named_frame, split
from tierd.http.turns.conversation import Ended, EndReason

_REASONS: Mapping[EndReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def event(data: Event) -> bytes:
    """Return one event."""
    return named_frame(data.type, data)


PING = event(Ping())


def ending(end: Ended) -> Ending:
    """Return why an answer ended. A stop sequence is named even where a call was made before it."""
    reason = _REASONS[end.reason] if end.stop is None else "stop_sequence"
    return Ending(reason, end.stop)


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

    usage: what is known of it once the stream begins.
    """

    def __init__(self, id: str, model: str, usage: Callable[[], core.Usage]) -> None:
        self._id = id
        self._model = model
        self._usage = usage
        self._blocks = Blocks()
        self._block: _Block | None = None

    @property
    def first(self) -> bytes:
        """What tells that it has begun."""
        message = Message(
            id=self._id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=Counts.of(self._usage()),
        )
        return event(MessageStart(message=message))

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
        block = empty(first)
        self.start = event(BlockStart(index=index, content_block=block))
        self._head, self._tail = split(lambda text: event(BlockDelta(index=index, delta=_delta(block, text))))
        self._signature = Signature() if isinstance(block, ThinkingBlock) else None
        self._input = GrowingInput() if isinstance(block, ToolUseBlock) else None

    def encode(self, text: str) -> bytes:
        """Return the event of more text, nothing where that is not certain."""
        if self._signature is not None:
            self._signature.add(text)
        if self._input is not None:
            text = self._input.push(text)
        return self._head + json_text(text) + self._tail if text else b""

    def close(self) -> bytes:
        """Return the events of the end."""
        last = b""
        if self._input is not None:
            last = self._head + json_text(self._input.finish()) + self._tail
        elif self._signature is not None:
            delta = SignatureDelta(signature=str(self._signature))
            last = event(BlockDelta(index=self._index, delta=delta))
        return last + event(BlockStop(index=self._index))
