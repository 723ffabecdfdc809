"""Shapes of what /v1/responses answers. Fields keep OpenAI's order; see `openai.types.responses`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tierd import core
from tierd.http.responses.requests import ChoiceGiven, FunctionOffered, ItemStatus, TextFormat

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputText(msgspec.Struct, frozen=True, kw_only=True):
    """A text of whoever talks to the model."""

    type: Literal["input_text"] = "input_text"
    text: str


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have stood there. bytes: none of control tokens, which add none to a text."""

    token: str
    bytes: list[int]
    logprob: float


class Logprob(msgspec.Struct, frozen=True):
    """A token of a text."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    """A text of the model's."""

    type: Literal["output_text"] = "output_text"
    annotations: list[None] = []
    logprobs: list[Logprob] = []
    text: str


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True):
    """What the model has thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class InputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to the model."""

    id: str
    type: Literal["message"] = "message"
    status: ItemStatus = "completed"
    content: list[InputText]
    role: Literal["system", "developer", "user"]


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the model's."""

    id: str
    type: Literal["message"] = "message"
    status: ItemStatus = "completed"
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """A thought of the model's. Nobody makes summaries, and nothing is encrypted."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: list[None] = []
    content: list[ReasoningText]
    encrypted_content: None = None
    status: ItemStatus = "completed"


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a function. arguments: JSON text. call_id: what it is answered under."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus = "completed"
    arguments: str
    call_id: str
    name: str


class FunctionCallOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call."""

    id: str
    type: Literal["function_call_output"] = "function_call_output"
    status: ItemStatus = "completed"
    call_id: str
    output: str


OutputItem = OutputMessage | Reasoning | FunctionCall
Item = InputMessage | OutputItem | FunctionCallOutput


class InputTokensDetails(msgspec.Struct, frozen=True):
    """How many of the prompt's tokens were found in the prefix cache. Nobody pays for writing to it."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """How many of the answer's tokens the model has thought in."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: core.Usage) -> ResponseUsage:
        """Return the engine's counts in this shape."""
        return cls(
            usage.prompt_tokens,
            InputTokensDetails(usage.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(usage.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response has failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ReasoningEffect(msgspec.Struct, frozen=True):
    """How the model was to think."""

    effort: str | None
    summary: None = None


class TextEffect(msgspec.Struct, frozen=True):
    """How the answer was to be written."""

    format: TextFormat
    verbosity: Literal["medium"] = "medium"


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, as far as it has come. Times are Unix seconds."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningEffect
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextEffect
    tool_choice: str | ChoiceGiven
    tools: list[FunctionOffered]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of items, each as it is kept."""

    object: Literal["list"] = "list"
    data: list[Annotated[msgspec.Raw, msgspec.Meta(extra={"holds": Item})]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What a DELETE is answered with."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
