"""From Anthropic's messages to those that a Turn has. Pure; every error names the field at fault.

A tool's result becomes a message of its own. All other neighbours of one role become one message, as
Anthropic has it for turns that follow one another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tierd.errors import InvalidRequestError
from tierd.http.messages.requests import Block, MessageGiven
from tierd.http.turns.fields import check_depth, needed

# What a message may hold, by its role.
_BLOCKS: Mapping[str, Sequence[str]] = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}


@dataclass(slots=True)
class _Draft:
    """A message of a Turn that may grow. answers: the id of the call whose result it is."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, object]] = field(default_factory=list)
    answers: str = ""

    def message(self) -> dict[str, object]:
        """Return it as Turn has it."""
        message: dict[str, object] = {"role": self.role, "content": "\n".join(filter(None, self.texts))}
        if thought := "\n".join(filter(None, self.thoughts)):
            message["reasoning_content"] = thought
        if self.calls:
            message["tool_calls"] = self.calls
        if self.role == "tool":
            message["tool_call_id"] = self.answers
        return message


def messages(given: Sequence[MessageGiven], system: str | Sequence[Block] | None) -> list[dict[str, object]]:
    """Return a conversation in the shape that Turn has it. Raises InvalidRequestError."""
    if not given:
        raise InvalidRequestError("messages: empty; send at least one", param="messages")
    drafts: list[_Draft] = []
    if system:
        _add(drafts, "system", system, "system")
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if message.role not in _BLOCKS:
            raise InvalidRequestError(
                f"{where}.role: no such role, {message.role!r}; use {', '.join(_BLOCKS)}",
                param=f"{where}.role",
            )
        _add(drafts, message.role, message.content, f"{where}.content")
    if drafts[-1].calls:
        where = f"messages[{len(given) - 1}]"
        raise InvalidRequestError(
            f"{where}: calls of tools without results; end with a message that holds a tool_result for each",
            param=where,
        )
    return [draft.message() for draft in drafts]


def _add(drafts: list[_Draft], role: str, given: str | Sequence[Block], where: str) -> None:
    """Add a message, to the last one if that is of the same role."""
    if isinstance(given, str):
        _growing(drafts, role).texts.append(given)
    elif not given:
        _growing(drafts, role)
    else:
        for i, block in enumerate(given):
            _add_block(drafts, role, block, f"{where}[{i}]")


def _add_block(drafts: list[_Draft], role: str, block: Block, where: str) -> None:
    _check(block, _BLOCKS[role], where)
    match block.type:
        case "text":
            _growing(drafts, role).texts.append(needed(block.text, f"{where}.text"))
        case "thinking":
            _growing(drafts, role).thoughts.append(needed(block.thinking, f"{where}.thinking"))
        case "redacted_thinking":  # encrypted by whoever thought it
            _growing(drafts, role)
        case "tool_use":
            _growing(drafts, role).calls.append(_call(block, where))
        case "tool_result":
            id = needed(block.tool_use_id, f"{where}.tool_use_id")
            drafts.append(_Draft("tool", [_result(block, where)], answers=id))


def _growing(drafts: list[_Draft], role: str) -> _Draft:
    """Return the message that more of a role belongs to."""
    if not drafts or drafts[-1].role != role:
        drafts.append(_Draft(role))
    return drafts[-1]


def _check(block: Block, known: Sequence[str], where: str) -> None:
    if block.type not in known:
        raise InvalidRequestError(
            f"{where}.type: {block.type!r} is not supported here; send {' or '.join(known)}",
            param=f"{where}.type",
        )


def _call(block: Block, where: str) -> dict[str, object]:
    """Return a call. Its JSON has the spaces that models write, so that its tokens may be theirs."""
    given = needed(block.input, f"{where}.input")
    check_depth(given, f"{where}.input")
    function = {
        "name": needed(block.name, f"{where}.name"),
        "arguments": json.dumps(given, ensure_ascii=False),
    }
    return {"id": needed(block.id, f"{where}.id"), "type": "function", "function": function}


def _result(block: Block, where: str) -> str:
    """Return the text of a tool's result. That it is an error stands in front, as templates do not know."""
    if block.content is None or isinstance(block.content, str):
        text = block.content or ""
    else:
        texts = []
        for i, part in enumerate(block.content):
            inside = f"{where}.content[{i}]"
            _check(part, ("text",), inside)
            texts.append(needed(part.text, f"{inside}.text"))
        text = "\n".join(texts)
    return f"Error: {text}" if block.is_error else text
