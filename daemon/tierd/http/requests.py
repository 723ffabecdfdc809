"""Shapes of request bodies.

Fields marked `off(…)` are refused unless they are null or one of these values. A field that no shape
names does not change the answer, and passes unread.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tierd.http.unsupported import off

Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]

# A count; more tokens than there are in any vocabulary or context is all of them.
Count = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
MAX_CHOICES = 16
MAX_LOGPROBS = 20
Logprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class Generation(msgspec.Struct, kw_only=True):
    """What both completion routes take. None: the request is silent.

    top_k: 0 or -1 keeps all tokens. seed: any signed 64-bit integer.
    repeat_last_n: the window of all penalties; -1: all tokens, 0: penalties off.
    logit_bias: by token id. n: choices. best_of: only the value of n.
    ignore_eos: go on past the end of the text. An extension of OpenAI's API, like top_k, min_p and the two
    that begin with "repeat", which llama.cpp has as well.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    top_k: Count | None = None
    repeat_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] | None = None
    repeat_last_n: Count | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Positive | None = None
    ignore_eos: bool | None = None

    add_special_tokens: Annotated[Any, off()] = None
    allowed_token_ids: Annotated[Any, off([])] = None
    bad_words: Annotated[Any, off([])] = None
    cfg_scale: Annotated[Any, off(1)] = None
    dry_multiplier: Annotated[Any, off(0)] = None
    dynatemp_range: Annotated[Any, off(0)] = None
    grammar: Annotated[Any, off("")] = None
    guided_choice: Annotated[Any, off()] = None
    guided_grammar: Annotated[Any, off()] = None
    guided_json: Annotated[Any, off()] = None
    guided_regex: Annotated[Any, off()] = None
    include_stop_str_in_output: Annotated[Any, off(False)] = None
    json_schema: Annotated[Any, off()] = None
    length_penalty: Annotated[Any, off(1)] = None
    lora: Annotated[Any, off([])] = None
    min_tokens: Annotated[Any, off(0)] = None
    mirostat: Annotated[Any, off(0)] = None
    n_predict: Annotated[Any, off()] = None
    n_probs: Annotated[Any, off(0)] = None
    prompt_logprobs: Annotated[Any, off()] = None
    repetition_penalty: Annotated[Any, off(1)] = None
    response_format: Annotated[Any, off({"type": "text"})] = None
    samplers: Annotated[Any, off()] = None
    skip_special_tokens: Annotated[Any, off(True)] = None
    stop_token_ids: Annotated[Any, off([])] = None
    structured_outputs: Annotated[Any, off()] = None
    tfs_z: Annotated[Any, off(1)] = None
    top_n_sigma: Annotated[Any, off(-1, 0)] = None
    truncate_prompt_tokens: Annotated[Any, off()] = None
    typical_p: Annotated[Any, off(1)] = None
    use_beam_search: Annotated[Any, off(False)] = None
    xtc_probability: Annotated[Any, off(0)] = None


class ContentPart(msgspec.Struct):
    """One part of a message's content. Only the type "text" is understood."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None

    tool_calls: Annotated[Any, off([])] = None
    tool_call_id: Annotated[Any, off()] = None
    function_call: Annotated[Any, off()] = None
    audio: Annotated[Any, off()] = None


class ChatBody(Generation, kw_only=True):
    """POST /v1/chat/completions and /apply-template."""

    messages: list[Message]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None

    add_generation_prompt: Annotated[Any, off(True)] = None
    audio: Annotated[Any, off()] = None
    chat_template: Annotated[Any, off()] = None
    chat_template_kwargs: Annotated[Any, off({})] = None
    continue_final_message: Annotated[Any, off(False)] = None
    documents: Annotated[Any, off([])] = None
    echo: Annotated[Any, off(False)] = None
    function_call: Annotated[Any, off("none")] = None
    functions: Annotated[Any, off([])] = None
    modalities: Annotated[Any, off(["text"])] = None
    moderation: Annotated[Any, off()] = None
    reasoning_effort: Annotated[Any, off("none")] = None
    tool_choice: Annotated[Any, off("none")] = None
    tools: Annotated[Any, off([])] = None
    verbosity: Annotated[Any, off("medium")] = None
    web_search_options: Annotated[Any, off()] = None


class CompletionBody(Generation, kw_only=True):
    """POST /v1/completions. A list of prompts may hold one prompt. logprobs: how many beside the token's."""

    prompt: str | list[int | str | list[int]]
    logprobs: Logprobs | None = None

    echo: Annotated[Any, off(False)] = None
    suffix: Annotated[Any, off("")] = None


class TokenizeBody(msgspec.Struct):
    """POST /tokenize."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True

    with_pieces: Annotated[Any, off(False)] = None


class DetokenizeBody(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
