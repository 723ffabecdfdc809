"""How models write calls of tools: the syntaxes that are known.

Sources: the chat templates of the models that are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tierd.chat.arguments import ArgumentsReader, JsonArguments, ParameterMarks, TaggedArguments
from tierd.chat.heads import (
    Read,
    read_called,
    read_fenced,
    read_function,
    read_keyed,
    read_named,
    read_object,
)
from tierd.chat.loose_json import LooseArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """A way to write calls.

    sign: a pattern of what a template writes of a call, of a tool NAME.
    read: finds the head of a call. arguments: makes what reads arguments in the syntax's own way, by the
    schema of the tool. begin: marks that stand before a call, or before several. closes: may stand behind
    one. ends: so do these, and end the answer. separator: between those that share a mark. bare: a call may
    also be the beginning of the answer, without a mark. marks: others that occur. stands_for: texts that a
    call may begin with and are not written out so, with what is there in their place.
    Written out with arguments as JSON, calls are `first`, then `before` (with NAME), arguments and `after` of
    each, `between` them, and `last`; so they are written where they are forced, whatever the model prefers,
    for then their arguments obey all of a schema. short_ids: ids of calls are 9 letters and digits.
    """

    sign: str
    read: Read
    arguments: Callable[[Mapping[str, Any]], ArgumentsReader] = lambda schema: JsonArguments()
    begin: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    separator: str = ""
    bare: bool = False
    marks: tuple[str, ...] = ()
    stands_for: Mapping[str, str] = field(default_factory=dict)
    first: str = ""
    before: str
    after: str = ""
    between: str = ""
    last: str = ""
    short_ids: bool = False

    @property
    def leads(self) -> dict[str, str]:
        """How calls are written out up to each mark by which one can be held to a schema from there on."""
        written = self.first + self.before
        inside = {one: written[: written.index(one) + len(one)] for one in self.begin if one in written}
        return {**inside, **self.stands_for}


HERMES = CallSyntax(
    sign=r'<tool_call>\s*\{[^<]*"name":\s*"NAME"',
    read=read_object,
    begin=("<tool_call>",),
    closes=("</tool_call>",),
    before='<tool_call>\n{"name": "NAME", "arguments": ',
    after="}\n</tool_call>",
    between="\n",
)
# Mistral's models of 2024; the later ones are the next row.
MISTRAL_LIST = CallSyntax(
    sign=r"\[TOOL_CALLS\]\s*\[\s*\{",
    read=read_named,
    begin=("[TOOL_CALLS]",),
    closes=("]",),
    separator=",",
    first="[TOOL_CALLS][",
    before='{"name": "NAME", "arguments": ',
    after="}",
    between=", ",
    last="]",
    short_ids=True,
)
MISTRAL = CallSyntax(
    sign=r"\[TOOL_CALLS\]\s*NAME",
    read=read_named,
    begin=("[TOOL_CALLS]",),
    marks=("[ARGS]", "[CALL_ID]"),
    before="[TOOL_CALLS]NAME[ARGS]",
    short_ids=True,
)
LLAMA3 = CallSyntax(
    sign=r'\{\s*(?:"type":\s*"function",\s*)?"name":\s*"NAME",\s*"parameters"',
    read=read_object,
    begin=("<|python_tag|>",),
    separator=";",
    bare=True,
    stands_for={"<|python_tag|>": ""},
    before='{"name": "NAME", "parameters": ',
    after="}",
    between="; ",
)
# Qwen3-Coder, and Qwen's models from 3.5 on.
_PARAMETERS = ParameterMarks(
    key="<parameter=", key_end=">", value_end="</parameter>", last="</function>", lines=True
)
QWEN_CODER = replace(
    HERMES,
    sign=r"<tool_call>\s*<function=NAME>",
    read=read_function,
    arguments=partial(TaggedArguments, _PARAMETERS, "</tool_call>"),
    begin=("<tool_call>", "<function="),
)
SEED = replace(
    QWEN_CODER,
    sign=r"<seed:tool_call>\s*<function=NAME>",
    arguments=partial(TaggedArguments, _PARAMETERS, "</seed:tool_call>"),
    begin=("<seed:tool_call>", "<function="),
    closes=("</seed:tool_call>",),
    before='<seed:tool_call>\n{"name": "NAME", "arguments": ',
    after="}\n</seed:tool_call>",
)
# GLM from 4.5 on.
_KEYS = ParameterMarks(key="<arg_key>", key_end="</arg_key>", value="<arg_value>", value_end="</arg_value>")
GLM = replace(
    HERMES,
    sign=r"<tool_call>\s*NAME\s*<arg_key>",
    read=read_keyed,
    arguments=partial(TaggedArguments, _KEYS, "</tool_call>"),
    marks=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
GEMMA = CallSyntax(
    sign=r"<\|tool_call>call:NAME\{",
    read=read_called,
    arguments=lambda schema: LooseArguments('<|"|>'),
    begin=("<|tool_call>",),
    closes=("<tool_call|>",),
    ends=("<|tool_response>",),
    marks=('<|"|>',),
    before='<|tool_call>{"name": "NAME", "arguments": ',
    after="}<tool_call|>",
)
FUNCTION_GEMMA = replace(
    GEMMA,
    sign=r"<start_function_call>call:NAME\{",
    arguments=lambda schema: LooseArguments("<escape>"),
    begin=("<start_function_call>",),
    closes=("<end_function_call>",),
    ends=("<start_function_response>",),
    marks=("<escape>",),
    before='<start_function_call>{"name": "NAME", "arguments": ',
    after="}<end_function_call>",
)
# DeepSeek V3.1; V3 and R1 are the next row.
DEEPSEEK = CallSyntax(
    sign=r"<｜tool▁call▁begin｜>\s*NAME\s*<｜tool▁sep｜>",
    read=read_fenced,
    begin=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    closes=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    marks=("<｜tool▁sep｜>",),
    first="<｜tool▁calls▁begin｜>",
    before="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
    after="<｜tool▁call▁end｜>",
    last="<｜tool▁calls▁end｜>",
)
DEEPSEEK_FENCED = replace(
    DEEPSEEK,
    sign=r"<｜tool▁call▁begin｜>\s*function<｜tool▁sep｜>NAME",
    closes=("```", *DEEPSEEK.closes),
    before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
    after="\n```<｜tool▁call▁end｜>",
    between="\n",
)
_COMMENTARY = "<|channel|>commentary to=functions."
# The heads are those of messages, which `harmony` reads.
HARMONY = CallSyntax(
    sign=r"to=functions\.NAME",
    read=lambda text: None,
    marks=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    stands_for={
        _COMMENTARY: _COMMENTARY,
        "<|channel|>analysis to=functions.": _COMMENTARY,
        "<|start|>assistant to=functions.": _COMMENTARY,
    },
    before=_COMMENTARY + "NAME <|constrain|>json<|message|>",
    between="<|call|><|start|>assistant",
)

# The generic way is Hermes', which more models have seen than any other.
GENERIC = HERMES
SYNTAXES = (
    HARMONY, HERMES, QWEN_CODER, SEED, GLM, GEMMA, FUNCTION_GEMMA, DEEPSEEK, DEEPSEEK_FENCED,
    MISTRAL_LIST, MISTRAL, LLAMA3,
)  # fmt: skip
