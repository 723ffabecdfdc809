"""Finds out how a model takes chats and answers them.

What a template can do is seen by rendering: a text that should be in the prompt is there, or is not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tierd.chat.calls import SYNTAXES, CallSyntax
from tierd.chat.formats import ReplyFormat
from tierd.chat.reasoning import find_marks
from tierd.chat.renderer import Renderer
from tierd.chat.tokenizer import Tokenizer
from tierd.chat.tools import Message, Tool
from tierd.errors import InvalidRequestError


def find_format(renderer: Renderer, tokenizer: Tokenizer) -> ReplyFormat:
    """Find out how a model takes chats and answers them. Takes some renderings."""

    def special(text: str) -> int | None:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    marks, thinks = find_marks(renderer.template, lambda text: special(text) is not None)
    found = _Probing(renderer).find()
    around = (marks.start, marks.end) if marks else ()
    calls = found.calls
    ids = {
        text: special(text)
        for text in (*around, *calls.begin, *calls.closes, *calls.ends, *calls.marks)
        if text
    }
    return replace(
        found,
        marks=marks,
        thinks=thinks,
        specials={
            text: id
            for text, id in ids.items()
            if id is not None and tokenizer.is_control(id) and id not in tokenizer.end_ids
        },
    )


_USER = {"role": "user", "content": "probe-user"}
_NAMES = ("probe_first", "probe_second")
_RESULT = "probe-result"


class _Probing:
    """Renders made-up chats to see what a template makes of them."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._tools = [Tool(name=name).told() for name in _NAMES]

    def find(self) -> ReplyFormat:
        """Return what could be found out; a template that fails at the simplest chat is asked no more."""
        plain = ReplyFormat(renderer=self._renderer)
        if not self._render([_USER]):
            return plain
        system = "probe-system" in self._render([{"role": "system", "content": "probe-system"}, _USER])
        plain = replace(plain, system=system)
        for objects in (True, False):
            # What has least around the call: some write an answer's end where its text is not null.
            written, text = min(((self._called(objects, 1, text), text) for text in ("", None)), key=_length)
            syntax = next((row for row in SYNTAXES if _has(row, written)), None)
            if syntax is not None:
                calling = {"tool_calls": _calls(objects, 1)}
                return replace(
                    plain,
                    calls=syntax,
                    native=True,
                    objects=objects,
                    several=_NAMES[1] in self._called(objects, 2, text),
                    nulls=text is None,
                    lists=_NAMES[0] in self._render([_USER], self._tools),
                    thoughts=self._thoughts({"content": text, **calling}),
                    beside=self._thoughts({"content": "probe-answer", **calling}) != "",
                )
        return replace(plain, thoughts=self._thoughts({"content": "probe-answer"}))

    def _called(self, objects: bool, count: int, text: str | None) -> str:
        """Return what the template writes of calls and their results, "" where it leaves any out.

        One tool is told. text: of the message with the calls.
        """
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": _RESULT}
            for call in _calls(objects, count)
        ]
        calling = {"role": "assistant", "content": text, "tool_calls": _calls(objects, count)}
        written = self._render([_USER, calling, *results], self._tools[:1])
        return written if _RESULT in written and "probe-value" in written else ""

    def _thoughts(self, answer: Message) -> str:
        """Return the key under which the template takes a thought; "" where it takes none."""
        for key in ("reasoning_content", "thinking"):
            message = {"role": "assistant", **answer, key: "probe-thought"}
            if "probe-thought" in self._render([_USER, message]):
                return key
        return ""

    def _render(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
        try:
            return self._renderer.render(messages, tools=tools)
        except InvalidRequestError:
            return ""


def _calls(objects: bool, count: int) -> list[dict[str, Any]]:
    arguments: object = {"probe_key": "probe-value"}
    if not objects:
        arguments = json.dumps(arguments)
    return [
        {"id": f"probe000{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, name in enumerate(_NAMES[:count])
    ]


def _length(found: tuple[str, str | None]) -> float:
    return len(found[0]) or math.inf


def _has(syntax: CallSyntax, written: str) -> bool:
    return re.search(syntax.sign.replace("NAME", _NAMES[0]), written) is not None
