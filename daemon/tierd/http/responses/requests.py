"""Shapes of what comes to /v1/responses; see `requests` for the marks of fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from tierd.http.requests import Generation, Logprobs, Positive
from tierd.http.unsupported import SILENT, off

MOST_METADATA = 16
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=MOST_METADATA),
]
# Those of tools that tierd does not have change nothing, and thoughts are never encrypted.
Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class PartGiven(msgspec.Struct):
    """A part of a content, an output or a summary."""

    type: str
    text: str | None = None
    refusal: str | None = None


class ItemGiven(msgspec.Struct, kw_only=True):
    """An item of the input, of whatever type: which fields it needs is the reader's to check.

    encrypted_content: of a thought that another server had; nobody can read it here, so it is left out.
    """

    type: str = "message"
    id: str | None = None
    status: ItemStatus | None = None
    role: str | None = None
    content: str | list[PartGiven] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[PartGiven] | None = None
    summary: list[PartGiven] | None = None
    encrypted_content: str | None = None


class FunctionOffered(msgspec.Struct):
    """A tool. parameters: the JSON schema of its arguments.

    A call that is asked for obeys it, and so does one that the model chooses, if any tool is `strict` and the
    call begins with a mark, as all models write it but Llama 3's, whose calls mostly have none, and Qwen's
    coders and Seed where they leave out what stands before `<function=`. Else it is as the model wrote it.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolNamed(msgspec.Struct, omit_defaults=True):
    """A tool that a choice names."""

    type: str
    name: str | None = None


class ChoiceGiven(msgspec.Struct, omit_defaults=True):
    """`tool_choice` where it is no word. mode, tools: of the type "allowed_tools"."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ToolNamed] | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    """`text.format`. A schema is obeyed to the letter, whatever `strict` says."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextGiven(msgspec.Struct):
    """`text`."""

    format: TextFormat | None = None

    verbosity: Annotated[Raw, off("medium")] = SILENT


class ReasoningGiven(msgspec.Struct):
    """`reasoning`. No summary is made of thoughts: they are told as they are."""

    effort: str | None = None


class ResponsesBody(Generation, kw_only=True):
    """POST /v1/responses. What other routes take about sampling and what an answer obeys is taken too.

    max_tool_calls: of tools that run here; there are none.
    """

    input: str | list[ItemGiven] = msgspec.field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: int | None = None
    tools: list[FunctionOffered] | None = None
    tool_choice: str | ChoiceGiven | None = None
    parallel_tool_calls: bool | None = None
    text: TextGiven | None = None
    reasoning: ReasoningGiven | None = None
    include: list[Include] | None = None
    top_logprobs: Logprobs | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    chat_template_kwargs: Annotated[Raw, off({})] = SILENT
    context_management: Annotated[Raw, off([])] = SILENT
    conversation: Annotated[Raw, off(instead="send previous_response_id")] = SILENT
    moderation: Annotated[Raw, off()] = SILENT
    prompt: Annotated[Raw, off(instead="send instructions and input")] = SILENT
    truncation: Annotated[Raw, off("disabled")] = SILENT
