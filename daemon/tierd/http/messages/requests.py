"""Shapes of the bodies of `/v1/messages` and `/v1/messages/count_tokens`, which are Anthropic's.

Source: the types of Anthropic's Python client. Fields marked `off(…)` and those that no shape names are as in
`requests`; whatever is about caches, tiers of service, places and whose request it is passes unread.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Raw

from tierd.http.requests import MAX_PRIORITY, Count, Positive, Share
from tierd.http.unsupported import SILENT, off

# The one edit of a context that changes nothing: all thoughts stay in it.
_KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


class Block(msgspec.Struct):
    """A block of content. Which fields it has depends on its type, see `messages.input`.

    signature: of a thought, which may come from elsewhere, so that it is not checked; it is not read at all.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None


class MessageGiven(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[Block]


class ToolGiven(msgspec.Struct):
    """A tool that may be called. input_schema: the JSON schema of its input.

    A call that is asked for obeys it, and so does one that the model chooses, if any tool is `strict` and the
    call begins with a mark, as all models write it but Llama 3's, whose calls mostly have none, and Qwen's
    coders and Seed where they leave out what stands before `<function=`. Else it is as the model wrote it.
    """

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None

    allowed_callers: Annotated[Raw, off([], ["direct"])] = SILENT
    defer_loading: Annotated[Raw, off(False)] = SILENT


class ChoiceGiven(msgspec.Struct):
    """`tool_choice`. name: where the type is "tool"."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingGiven(msgspec.Struct):
    """`thinking`. budget_tokens: where the type is "enabled"."""

    type: str
    budget_tokens: Positive | None = None

    display: Annotated[Raw, off("summarized")] = SILENT


class OutputFormat(msgspec.Struct):
    """`output_config.format`."""

    type: str
    schema: Raw = SILENT


class OutputConfig(msgspec.Struct):
    """`output_config`."""

    effort: str | None = None
    format: OutputFormat | None = None

    task_budget: Annotated[Raw, off()] = SILENT


class ConversationBody(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens, and what the other has as well."""

    messages: list[MessageGiven]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[ToolGiven] | None = None
    tool_choice: ChoiceGiven | None = None
    thinking: ThinkingGiven | None = None
    output_config: OutputConfig | None = None

    compaction: Annotated[Raw, off()] = SILENT
    container: Annotated[Raw, off()] = SILENT
    context_management: Annotated[Raw, off({"edits": []}, _KEEP_ALL)] = SILENT
    mcp_servers: Annotated[Raw, off([])] = SILENT
    output_format: Annotated[Raw, off(instead="send output_config.format")] = SILENT
    thread: Annotated[Raw, off()] = SILENT


class MessagesBody(ConversationBody, kw_only=True):
    """POST /v1/messages.

    seed, min_p, ignore_eos, priority: extensions, as in `requests`.
    """

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Count | None = None
    seed: int | None = None
    min_p: Share | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None

    logprobs: Annotated[Raw, off(False)] = SILENT
    max_completion_tokens: Annotated[Raw, off(instead="send max_tokens")] = SILENT
    n: Annotated[Raw, off(1)] = SILENT
    response_format: Annotated[Raw, off({"type": "text"}, instead="send output_config.format")] = SILENT
    stop: Annotated[Raw, off([], instead="send stop_sequences")] = SILENT
