"""Shapes of request bodies.

Fields marked `off(…)` are refused unless they are null or one of these values; as most is refused, they stay
JSON until then. A field that no shape names does not change the answer, and passes unread.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Raw

from tierd.http.unsupported import SILENT, off

Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]

# A count; more tokens than there are in any vocabulary or context is all of them.
Count = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
MAX_CHOICES = 16
MAX_PRIORITY = 100
MAX_LOGPROBS = 20
Logprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class SchemaFormat(msgspec.Struct):
    """`response_format.json_schema`. It is obeyed to the letter, whatever `strict` says.

    An object whose members it names has no others, unless it says of what form they are.
    """

    name: str | None = None
    schema: Raw = SILENT
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`. schema: of either JSON type, where llama.cpp's server has it."""

    type: str
    json_schema: SchemaFormat | None = None
    schema: Raw = SILENT


class StructuredOutputs(msgspec.Struct):
    """`structured_outputs`, as vLLM has it. json: a schema, or a string that spells it."""

    json: Raw = SILENT
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    disable_additional_properties: Annotated[Raw, off(False)] = SILENT
    disable_any_whitespace: Annotated[Raw, off(False)] = SILENT
    structural_tag: Annotated[Raw, off()] = SILENT
    whitespace_pattern: Annotated[Raw, off()] = SILENT


class Generation(msgspec.Struct, kw_only=True):
    """What both completion routes take. None: the request is silent.

    top_k: 0 or -1 keeps all tokens. seed: any signed 64-bit integer.
    repeat_last_n: the window of all penalties; -1: all tokens, 0: penalties off.
    logit_bias: by token id. allowed_token_ids: no other is generated.
    n: choices. best_of: only the value of n.
    ignore_eos: go on past the end of the text. An extension of OpenAI's API, like top_k, min_p and the two
    that begin with "repeat", which llama.cpp has as well, and allowed_token_ids, which vLLM has.
    What an answer must obey stands in one field of those that `formats` reads.
    priority: lower ones are served sooner, as with vLLM.
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
    allowed_token_ids: list[int] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Positive | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Raw = SILENT
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: Raw = SILENT

    add_special_tokens: Annotated[Raw, off()] = SILENT
    bad_words: Annotated[Raw, off([])] = SILENT
    cfg_scale: Annotated[Raw, off(1)] = SILENT
    dry_multiplier: Annotated[Raw, off(0)] = SILENT
    dynatemp_range: Annotated[Raw, off(0)] = SILENT
    guided_whitespace_pattern: Annotated[Raw, off()] = SILENT
    include_stop_str_in_output: Annotated[Raw, off(False)] = SILENT
    length_penalty: Annotated[Raw, off(1)] = SILENT
    lora: Annotated[Raw, off([])] = SILENT
    min_tokens: Annotated[Raw, off(0)] = SILENT
    mirostat: Annotated[Raw, off(0)] = SILENT
    n_predict: Annotated[Raw, off()] = SILENT
    n_probs: Annotated[Raw, off(0)] = SILENT
    prompt_logprobs: Annotated[Raw, off()] = SILENT
    repetition_penalty: Annotated[Raw, off(1)] = SILENT
    samplers: Annotated[Raw, off()] = SILENT
    skip_special_tokens: Annotated[Raw, off(True)] = SILENT
    stop_token_ids: Annotated[Raw, off([])] = SILENT
    tfs_z: Annotated[Raw, off(1)] = SILENT
    top_n_sigma: Annotated[Raw, off(-1, 0)] = SILENT
    truncate_prompt_tokens: Annotated[Raw, off()] = SILENT
    typical_p: Annotated[Raw, off(1)] = SILENT
    use_beam_search: Annotated[Raw, off(False)] = SILENT
    xtc_probability: Annotated[Raw, off(0)] = SILENT


class ContentPart(msgspec.Struct):
    """One part of a message's content: of type "text", or "refusal" where the assistant would not answer."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCalled(msgspec.Struct):
    """The function of a call that was made. arguments: JSON text."""

    name: str
    arguments: str


class CallGiven(msgspec.Struct):
    """A call that the assistant has made."""

    id: str
    function: FunctionCalled | None = None
    type: str = "function"


class Message(msgspec.Struct):
    """One message of a conversation. tool_call_id: of the call that a message of role tool answers.

    reasoning_content: what the assistant thought before it; an extension, which vLLM calls reasoning.
    refusal: what the assistant said instead of `content`.
    """

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[CallGiven] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None

    function_call: Annotated[Raw, off(instead="send tool_calls")] = SILENT
    audio: Annotated[Raw, off()] = SILENT


class FunctionGiven(msgspec.Struct):
    """A function that may be called. parameters: the JSON schema of its arguments.

    A call that is asked for obeys it, and so does one that the model chooses, if any tool is `strict` and the
    call begins with a mark, as all models write it but Llama 3's, whose calls mostly have none, and Qwen's
    coders and Seed where they leave out what stands before `<function=`. Else it is as the model wrote it.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolGiven(msgspec.Struct):
    """A tool that may be called."""

    type: str
    function: FunctionGiven | None = None


class FunctionChosen(msgspec.Struct):
    """The function of a ToolChoice."""

    name: str


class ToolNamed(msgspec.Struct):
    """One of the tools that AllowedTools leaves."""

    type: str
    function: FunctionChosen | None = None


class AllowedTools(msgspec.Struct):
    """`tool_choice.allowed_tools`: some of the tools. mode: "auto" or "required"."""

    mode: str
    tools: list[ToolNamed]


class ToolChoice(msgspec.Struct):
    """`tool_choice` where it names a tool, or says which are allowed."""

    type: str
    function: FunctionChosen | None = None
    allowed_tools: AllowedTools | None = None


class ChatBody(Generation, kw_only=True):
    """POST /v1/chat/completions and /apply-template.

    chat_template_kwargs, documents: for the template. add_generation_prompt, continue_final_message: how the
    prompt ends. Extensions that vLLM has as well.
    """

    messages: list[Message]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: list[ToolGiven] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    audio: Annotated[Raw, off()] = SILENT
    chat_template: Annotated[Raw, off()] = SILENT
    echo: Annotated[Raw, off(False)] = SILENT
    function_call: Annotated[Raw, off("none", instead="send tool_choice")] = SILENT
    functions: Annotated[Raw, off([], instead="send tools")] = SILENT
    include_reasoning: Annotated[Raw, off(True)] = SILENT
    modalities: Annotated[Raw, off(["text"])] = SILENT
    moderation: Annotated[Raw, off()] = SILENT
    parse_tool_calls: Annotated[Raw, off(True)] = SILENT
    reasoning_format: Annotated[Raw, off("auto", "deepseek")] = SILENT
    verbosity: Annotated[Raw, off("medium")] = SILENT
    web_search_options: Annotated[Raw, off()] = SILENT


class CompletionBody(Generation, kw_only=True):
    """POST /v1/completions. prompt: a text, token ids, or a list of either. logprobs: beside the token's own.

    echo: the answer begins with the prompt; then max_tokens may be 0.
    """

    prompt: str | list[int | str | list[int]]
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    logprobs: Logprobs | None = None
    echo: bool | None = None

    suffix: Annotated[Raw, off("")] = SILENT


class TokenizeBody(msgspec.Struct):
    """POST /tokenize."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True

    with_pieces: Annotated[Raw, off(False)] = SILENT


class DetokenizeBody(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
