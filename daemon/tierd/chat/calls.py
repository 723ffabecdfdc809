"""How models write calls of tools: the syntaxes that are known, and how a call's head is read in each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tierd.chat.scanning import ValueEnd

# What has come of a head may become one.
UNSURE: Literal["unsure"] = "unsure"


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a call, up to its arguments.

    start: where they begin, a JSON object; -1 where the call has none. depth: brackets around them.
    """

    name: str
    start: int
    depth: int


# None: it is no call.
Read = Callable[[str], Head | Literal["unsure"] | None]

_OPEN = re.compile(r"\s*\{\s*")
_KEY = re.compile(r'"(\w+)"\s*:\s*')
_KEY_BEGUN = re.compile(r'(?:"\w*(?:"\s*)?)?\Z')
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_COMMA = re.compile(r"\s*,\s*")
_CLOSE = re.compile(r"\s*\}")
_ARGUMENTS = ("arguments", "parameters")
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w*\s*)?(?:\[ARGS\])?\s*(?=\{)")
_NAME_BEGUN = re.compile(r"\s*(?:[\w.-]+\s*(?:\[[\w\]]*\s*)*)?\Z")


def read_object(text: str) -> Head | Literal["unsure"] | None:
    """Read a call that is an object: a name, arguments or parameters, perhaps more strings."""
    opened = _OPEN.match(text)
    if opened is None:
        return None if text.strip() else UNSURE
    name, first, place = None, -1, opened.end()
    while True:
        key = _KEY.match(text, place)
        if key is None or key.end() == len(text):
            return UNSURE if key or _KEY_BEGUN.match(text, place) else None
        place = key.end()
        if key[1] in _ARGUMENTS:
            if text[place] != "{":
                return None
            if name is not None:
                return Head(name, place, 1)
            first = place
        end = _value_end(text, place)
        if end is None or end < 0:
            return None if end is None else UNSURE
        if key[1] == "name":
            if text[place] != '"':
                return None
            name = json.loads(text[place:end])
            if first >= 0:
                return Head(name, first, 1)
        comma, close = _COMMA.match(text, end), _CLOSE.match(text, end)
        if comma is None:
            if close is None:
                return None if text[end:].strip() else UNSURE
            return None if name is None else Head(name, -1, 1)
        place = comma.end()


def _value_end(text: str, place: int) -> int | None:
    """Return where a string or an object ends, -1 where it has not; None for what is neither, or no JSON."""
    if text[place] == '"':
        found = _STRING.match(text, place)
        end = found.end() if found else -1
    elif text[place] == "{":
        length = ValueEnd().feed(text[place:])
        end = place + length if length >= 0 else -1
    else:
        return None
    if end >= 0:
        try:
            json.loads(text[place:end])
        except ValueError:
            return None
    return end


def read_named(text: str) -> Head | Literal["unsure"] | None:
    """Read a call as Mistral's models write it: NAME[ARGS]{…}, or a list of objects."""
    rest = text.lstrip()
    if rest[:1] in ("[", "{"):
        skipped = len(text) - len(rest) + (rest[0] == "[")
        head = read_object(text[skipped:])
        if isinstance(head, Head) and head.start >= 0:
            return Head(head.name, head.start + skipped, head.depth)
        return head
    found = _NAMED.match(text)
    if found:
        return Head(found[1], found.end(), 0)
    return UNSURE if _NAME_BEGUN.match(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """A way to write calls.

    sign: a pattern of what a template writes of a call, of a tool NAME.
    read: finds the head of a call. begin: marks that stand before a call, or before several. close: may stand
    behind one. separator: between those that share a mark. bare: a call may also be the beginning of the
    answer, without a mark. marks: others that occur.
    Written out, calls are `first`, then `before` (with NAME), arguments and `after` of each, `between` them,
    and `last`. short_ids: ids of calls are 9 letters and digits.
    """

    sign: str
    read: Read
    begin: tuple[str, ...] = ()
    close: str = ""
    separator: str = ""
    bare: bool = False
    marks: tuple[str, ...] = ()
    first: str = ""
    before: str
    after: str = ""
    between: str = ""
    last: str = ""
    short_ids: bool = False


HERMES = CallSyntax(
    sign=r'<tool_call>\s*\{[^<]*"name":\s*"NAME"',
    read=read_object,
    begin=("<tool_call>",),
    close="</tool_call>",
    before='<tool_call>\n{"name": "NAME", "arguments": ',
    after="}\n</tool_call>",
    between="\n",
)
# Mistral's models of 2024; the later ones are the next row.
MISTRAL_LIST = CallSyntax(
    sign=r"\[TOOL_CALLS\]\s*\[\s*\{",
    read=read_named,
    begin=("[TOOL_CALLS]",),
    close="]",
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
    before='{"name": "NAME", "parameters": ',
    after="}",
    between="; ",
)
# The heads are those of messages, which `harmony` reads.
HARMONY = CallSyntax(
    sign=r"to=functions\.NAME",
    read=lambda text: None,
    marks=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    before="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
    between="<|call|><|start|>assistant",
)

# The generic way is Hermes', which more models have seen than any other.
GENERIC = HERMES
SYNTAXES = (HARMONY, HERMES, MISTRAL_LIST, MISTRAL, LLAMA3)
