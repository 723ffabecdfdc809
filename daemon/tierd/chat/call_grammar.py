"""The grammar of an answer that is calls of tools, or may be.

Its rules are in llguidance's dialect of Lark's notation. Schemas go with them as they came, for
`grammar_worker` to make rules of, which treats them as it treats those of answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

from tierd.chat.calls import CallSyntax
from tierd.chat.grammar import Source
from tierd.chat.tools import Tool
from tierd.errors import InvalidRequestError

MOST_CALLS = 16
# Of what may stand in the place of calls; the others are grammars for all of an answer.
_ANSWERS = ("json_object", "json_schema", "choice")


def call_grammar(
    syntax: CallSyntax,
    specials: Mapping[str, int],
    tools: Sequence[Tool],
    *,
    several: bool,
    answer: Source | None = None,
) -> Source:
    """Return the grammar of calls.

    specials: marks that are control tokens, with their ids. tools: those that may be called. several: more
    than one call may come. answer: what may stand there instead.
    Raises InvalidRequestError where that is a grammar for all of an answer.
    """
    if answer is not None and answer.kind not in _ANSWERS:
        raise InvalidRequestError(
            f"tools: not together with {answer.field}, a grammar for all of the answer; leave one out",
            param="tools",
        )

    def literal(text: str) -> str:
        parts = cut_at(specials, text)
        return " ".join(f"<[{specials[part]}]>" if part in specials else json.dumps(part) for part in parts)

    one = " | ".join(f"call{index}" for index in range(len(tools)))
    more = f"({literal(syntax.between)} call){{0,{MOST_CALLS - 1}}}" if several else ""
    rules = [
        "start: calls" if answer is None else "start: calls | answer",
        f"calls: {literal(syntax.first)} call {more} {literal(syntax.last)}",
        f"call: {one}",
    ]
    for index, tool in enumerate(tools):
        before = literal(syntax.before.replace("NAME", tool.name))
        rules.append(f"call{index}: {before} arguments{index} {literal(syntax.after)}")
    given = {
        "rules": "\n".join(rules),
        "arguments": [(tool.name, tool.closed_schema) for tool in tools],
        "answer": None if answer is None else (answer.kind, answer.text),
    }
    return Source("calls", json.dumps(given), "tools")


def cut_at(marks: Collection[str], text: str) -> list[str]:
    """Return the parts of a text, each a mark or what stands between two."""
    pattern = "|".join(map(re.escape, marks)) or r"(?!)"
    return [part for part in re.split(f"({pattern})", text) if part]
