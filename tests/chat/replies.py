"""Reading answers in tests: whole, in pieces, and what came of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from tierd.chat.calls import HERMES, CallSyntax
from tierd.chat.harmony import HarmonyParser
from tierd.chat.reasoning import ThoughtMarks
from tierd.chat.reply import Arguments, Called, Piece, ReplyParser, Said, Thought
from tierd.chat.tagged import TaggedParser
from tierd.chat.tools import Tool

THINK = ThoughtMarks("<think>", "</think>")


def tagged(
    marks: ThoughtMarks = THINK, calls: CallSyntax = HERMES, tools: Sequence[str | Tool] = (), **more: Any
) -> TaggedParser:
    """Return a parser of tagged answers, by default of one that was not to think. tools: or their names."""
    ids = count(1)
    options = {"parallel": True, "guarded": True, "stage": "opening"} | more
    given = [Tool(name=tool) if isinstance(tool, str) else tool for tool in tools]
    known = {tool.name: tool for tool in given}
    return TaggedParser(marks=marks, calls=calls, tools=known, identify=lambda: f"id{next(ids)}", **options)


def harmony(tools: Sequence[str] = (), **more: Any) -> HarmonyParser:
    ids = count(1)
    options = {"parallel": True, "guarded": False, "stage": "opening"} | more
    return HarmonyParser(tools=tools, identify=lambda: f"id{next(ids)}", **options)


def read(parser: ReplyParser, texts: Iterable[str]) -> list[Piece]:
    """Return the pieces of an answer, those of a kind joined."""
    pieces: list[Piece] = []
    for text in texts:
        if parser.ended:
            break
        pieces += parser.push(text)
    if not parser.ended:
        pieces += parser.finish()
    return joined(pieces)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        match last, piece:
            case Said(before, _, at), Said(after, _, place):
                assert place >= at + len(before)
                result[-1] = Said(before + after)
            case Thought(before), Thought(after):
                result[-1] = Thought(before + after)
            case Arguments(index, before), Arguments(other, after) if index == other:
                result[-1] = Arguments(index, before + after)
            case _, Said(text):
                result.append(Said(text))
            case _, _:
                result.append(piece)
    return result


def call(index: int, name: str, arguments: str) -> list[Piece]:
    """Return the pieces of a call."""
    return [Called(index, f"id{index + 1}", name), Arguments(index, arguments)]
