"""The grammar of an answer that is calls of tools, or may be: in llguidance's dialect of Lark's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from tierd.chat.calls import CallSyntax
from tierd.chat.grammar import Source
from tierd.chat.schema_dates import with_real_dates
from tierd.chat.tools import Tool
from tierd.errors import InvalidRequestError

MOST_CALLS = 16
# Of what is written for programs: no white space that nobody needs.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


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
    Raises InvalidRequestError where that is no JSON schema, or a grammar of its own.
    """

    def literal(text: str) -> str:
        marks = "|".join(map(re.escape, specials)) or r"(?!)"
        parts = [part for part in re.split(f"({marks})", text) if part]
        return " ".join(f"<[{specials[part]}]>" if part in specials else json.dumps(part) for part in parts)

    rules = []
    for index, tool in enumerate(tools):
        before = literal(syntax.before.replace("NAME", tool.name))
        rules.append(f"call{index}: {before} arguments{index} {literal(syntax.after)}")
        rules.append(f"arguments{index}: {_schema(tool.closed_schema)}")
    one = " | ".join(f"call{index}" for index in range(len(tools)))
    more = f"({literal(syntax.between)} call){{0,{MOST_CALLS - 1}}}" if several else ""
    start = "start: calls"
    if answer is not None:
        start += " | answer"
        rules.append(f"answer: {_rule(answer)}")
    calls = f"calls: {literal(syntax.first)} call {more} {literal(syntax.last)}"
    return Source("lark", "\n".join([start, calls, f"call: {one}", *rules]), "tools")


def _schema(schema: Mapping[str, object]) -> str:
    """Return a JSON schema in Lark's notation."""
    return f"%json {json.dumps({**with_real_dates(dict(schema)), 'x-guidance': _COMPACT})}"


def _rule(source: Source) -> str:
    """Return what a source describes as the body of a rule."""
    match source.kind:
        case "json_object":
            return _schema({"type": "object"})
        case "json_schema":
            return _schema(_read(source))
        case "choice":
            return " | ".join(json.dumps(text) for text in json.loads(source.text))
        case _:
            raise InvalidRequestError(
                f"tools: not together with {source.field}, a grammar for all of the answer; leave one out",
                param="tools",
            )


def _read(source: Source) -> Mapping[str, object]:
    """Return the schema of a source."""
    try:
        schema = json.loads(source.text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{source.field}: must be a JSON schema, an object", param=source.field)
    return schema
