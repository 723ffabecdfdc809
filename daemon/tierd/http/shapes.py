"""Shapes of response bodies and of the objects in event streams. Fields keep OpenAI's order."""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec
from starlette.responses import Response

from tierd import core


def json_response(body: msgspec.Struct, status: int = 200) -> Response:
    """Return a whole answer."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


class Heading(TypedDict):
    """What an answer and every chunk of it begin with.

    created: Unix seconds. system_fingerprint: the same for the same build and model.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many of the prompt's tokens were found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """How many of the answer's tokens the model has thought in."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, usage: core.Usage) -> Usage:
        """Return the engine's counts in OpenAI's shape."""
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptTokensDetails(usage.cached_tokens),
            CompletionTokensDetails(usage.reasoning_tokens),
        )


class Timings(msgspec.Struct, frozen=True):
    """What an answer took; an extension, named as llama.cpp's server names it.

    cache_n, prompt_n: tokens of the prompt that were kept, and that were fed, in prompt_ms from the first
    rows to the first token. predicted_n: tokens of the answer, in predicted_ms from the first to the last.
    Rates are null where there is no time to speak of.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None

    @classmethod
    def of(cls, usage: core.Usage) -> Timings:
        """Return what the engine has measured in this shape."""
        fed, predicted = usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens
        return cls(
            usage.cached_tokens,
            fed,
            round(usage.prompt_s * 1000, 3),
            _ratio(usage.prompt_s * 1000, fed),
            _ratio(fed, usage.prompt_s),
            predicted,
            round(usage.generation_s * 1000, 3),
            _ratio(usage.generation_s * 1000, predicted),
            _ratio(predicted, usage.generation_s),
        )


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole else None


class Function(msgspec.Struct, frozen=True):
    """A function that is called. arguments: JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a chat. content: null where there are only calls. reasoning_content: an extension."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have stood there. bytes: null for control tokens, which add none to a text."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a chat answer, or of a chunk of one."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a completion, or of a chunk of one. text_offset: characters before each in the text.

    top_logprobs: by token, the one that was drawn among them; null when none are asked for. Of the first
    token of a prompt both are null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]

    def __add__(self, other: TextLogprobs) -> TextLogprobs:
        """Return the tokens of both."""
        top = None if self.top_logprobs is None else [*self.top_logprobs, *(other.top_logprobs or ())]
        return TextLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            top,
            self.text_offset + other.text_offset,
        )


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a whole chat answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a call: its name at first, then the JSON text of its arguments."""

    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a chunk adds to the call of a number; id and type stand in the first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chat chunk adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """The one choice of a chat chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a chat stream. usage: absent unless asked for, then null in all but the last.

    timings: in the last one.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class TextChoice(msgspec.Struct, frozen=True):
    """One choice of a completion, or the one of a chunk of one."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: str | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole completion, or one object of a completion stream; usage and timings as in ChatChunk."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the list of models: OpenAI's fields, then those that Anthropic's clients look for.

    created: Unix seconds. created_at: the same. max_input_tokens: of a prompt. max_tokens: of an answer.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tierd"
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/models: all of them; there is no other page."""

    object: Literal["list"] = "list"
    data: list[Model]
    has_more: Literal[False] = False
    first_id: str | None
    last_id: str | None


class Tokens(msgspec.Struct, frozen=True):
    """POST /tokenize."""

    tokens: list[int]


class Content(msgspec.Struct, frozen=True):
    """POST /detokenize."""

    content: str


class Prompt(msgspec.Struct, frozen=True):
    """POST /apply-template."""

    prompt: str


class Health(msgspec.Struct, frozen=True):
    """GET /health, when some model can answer."""

    status: Literal["ok"]
    models: list[str]
