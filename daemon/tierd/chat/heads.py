"""The heads of calls, in each way that models write them: whose tool it is, and where the arguments begin."""

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

    start: where they begin; -1 where the call has none. depth: brackets around them. own: they are written in
    the syntax's own way; else they are a JSON object.
    """

    name: str
    start: int
    depth: int = 0
    own: bool = False


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
_FUNCTION = re.compile(r"\s*(?:<function=)?([\w.-]+)>")
_KEYED = re.compile(r"\s*([\w.-]+)\s*(?=<arg_key>|</tool_call>)")
_CALLED = re.compile(r"\s*call:\s*([\w.-]+)\s*(?=\{)")
_FENCED = re.compile(
    r"\s*(?:<｜tool▁call▁begin｜>\s*)?(?:function<｜tool▁sep｜>)?([\w.-]+)\s*(?:<｜tool▁sep｜>|```json)?\s*(?=\{)"
)
# Characters of a head; what has none of its end in so many is text.
_LONGEST = 256


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
        return Head(found[1], found.end())
    return UNSURE if _NAME_BEGUN.match(text) else None


def read_function(text: str) -> Head | Literal["unsure"] | None:
    """Read a call as Qwen's coders write it: <function=NAME>, or an object."""
    return _own(_FUNCTION, text)


def read_keyed(text: str) -> Head | Literal["unsure"] | None:
    """Read a call as GLM's models write it: NAME before keys and values, or an object."""
    return _own(_KEYED, text)


def read_fenced(text: str) -> Head | Literal["unsure"] | None:
    """Read a call as DeepSeek's models write it: a name, then a mark or the beginning of a fence."""
    found = _FENCED.match(text[:_LONGEST])
    return Head(found[1], found.end()) if found else _begun(text)


def read_called(text: str) -> Head | Literal["unsure"] | None:
    """Read a call as Gemma's models write it: call:NAME{…}, or an object."""
    return _own(_CALLED, text)


def _own(pattern: re.Pattern[str], text: str) -> Head | Literal["unsure"] | None:
    if text.lstrip().startswith("{"):
        return read_object(text)
    found = pattern.match(text[:_LONGEST])
    return Head(found[1], found.end(), own=True) if found else _begun(text)


def _begun(text: str) -> Literal["unsure"] | None:
    return UNSURE if len(text) < _LONGEST else None
