"""Shapes of the answers of `/v1/messages`, and of the events of its streams. Fields keep Anthropic's order.

Source: the types of Anthropic's Python client.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tierd import core

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TokenCount(msgspec.Struct, frozen=True):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """How many of the answer's tokens the model has thought in."""

    thinking_tokens: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. The prompt's are apart: those that were found in the prefix cache, and all others."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails

    @classmethod
    def of(cls, usage: core.Usage) -> Counts:
        """Return the engine's counts in Anthropic's shape."""
        return cls(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(usage.reasoning_tokens),
        )


class TextBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Text of an answer."""

    type: Literal["text"] = "text"
    text: str = ""


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A thought. signature: see `events.sign`."""

    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool. input: a JSON object."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; in `message_start` what is known of it then."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Counts


class MessageStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first event."""

    type: Literal["message_start"] = "message_start"
    message: Message


class BlockStart(msgspec.Struct, frozen=True, kw_only=True):
    """A block begins, empty."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of a text."""

    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of a thought."""

    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of a thought, which is whole."""

    type: Literal["signature_delta"] = "signature_delta"
    signature: str


class InputDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of the JSON text of a call's input."""

    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of a block."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, kw_only=True):
    """A block is over."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class Ending(msgspec.Struct, frozen=True):
    """Why an answer ended. stop_sequence: the one that ended it, if any did."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is over. usage: of the whole of it."""

    type: Literal["message_delta"] = "message_delta"
    delta: Ending
    usage: Counts


class MessageStop(msgspec.Struct, frozen=True, kw_only=True):
    """The last event."""

    type: Literal["message_stop"] = "message_stop"


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """Keeps a quiet connection open."""

    type: Literal["ping"] = "ping"


class ErrorDetails(msgspec.Struct, frozen=True):
    """The word by which clients know how to ask otherwise."""

    error_code: Literal["thread_unsupported_request"]


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: str
    message: str
    details: ErrorDetails | msgspec.UnsetType = msgspec.UNSET


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An error, as an answer or as the last event of a stream that failed."""

    type: Literal["error"] = "error"
    error: ErrorDetail
    request_id: str


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | ErrorEvent
