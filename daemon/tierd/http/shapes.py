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


class Usage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, usage: core.Usage) -> Usage:
        """Return the engine's counts in OpenAI's shape."""
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptTokensDetails(usage.cached_tokens),
        )


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer of a chat."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


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

    top_logprobs: by token, the one that was drawn among them; null when none are asked for.
    """

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a whole chat answer."""

    message: AssistantMessage
    finish_reason: str
    index: int = 0
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chat chunk adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """The one choice of a chat chunk."""

    delta: Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: ChatLogprobs | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a chat stream. usage: absent unless asked for, then null in all but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TextChoice(msgspec.Struct, frozen=True):
    """One choice of a completion, or the one of a chunk of one."""

    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: TextLogprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole completion, or one object of a completion stream; usage as in ChatChunk."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the list of models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tierd"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


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
