"""From Anthropic's messages to those that a Turn has. Pure; every error names the field at fault.

Each block of content becomes a message of its own, a tool's result too; then neighbours of one role become
one message, as Anthropic has it for turns that follow one another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tierd.errors import InvalidRequestError
from tierd.http.messages_requests import Block, MessageGiven
from tierd.http.turn_body import check_depth

# What a message may hold, by its role.
_BLOCKS: Mapping[str, Sequence[str]] = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
}


def messages(given: Sequence[MessageGiven], system: str | Sequence[Block] | None) -> list[dict[str, Any]]:
    """Return a conversation in the shape that Turn has it. Raises InvalidRequestError."""
    if not given:
        raise InvalidRequestError("messages: empty; send at least one", param="messages")
    plain: list[dict[str, Any]] = []
    if system:
        _add(plain, "system", system, "system")
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if message.role not in _BLOCKS:
            raise InvalidRequestError(
                f"{where}.role: no such role, {message.role!r}; use {', '.join(_BLOCKS)}",
                param=f"{where}.role",
            )
        _add(plain, message.role, message.content, f"{where}.content")
    if plain[-1].get("tool_calls"):
        where = f"messages[{len(given) - 1}]"
        raise InvalidRequestError(
            f"{where}: calls of tools without results; end with a message that holds a tool_result for each",
            param=where,
        )
    return plain


def _add(plain: list[dict[str, Any]], role: str, given: str | Sequence[Block], where: str) -> None:
    """Add a message, to the last one if that is of the same role."""
    if isinstance(given, str) or not given:
        _join(plain, {"role": role, "content": given or ""})
        return
    for i, block in enumerate(given):
        _join(plain, _read(role, block, f"{where}[{i}]"))


def _join(plain: list[dict[str, Any]], message: dict[str, Any]) -> None:
    last: dict[str, Any] = plain[-1] if plain else {"role": None}
    if message["role"] == "tool" or message["role"] != last["role"]:
        plain.append(message)
        return
    for key, more in message.items():
        before = last.get(key)
        if key == "tool_calls":
            last[key] = [*(before or ()), *more]
        elif key != "role":
            last[key] = f"{before}\n{more}" if before and more else before or more


def _read(role: str, block: Block, where: str) -> dict[str, Any]:
    """Return the message that one block becomes."""
    _check(block, _BLOCKS[role], where)
    message: dict[str, Any] = {"role": role, "content": ""}
    match block.type:
        case "text":
            message["content"] = _given(block.text, where, "text")
        case "thinking":
            if thought := _given(block.thinking, where, "thinking"):
                message["reasoning_content"] = thought
        case "tool_use":
            message["tool_calls"] = [_call(block, where)]
        case "tool_result":
            message |= {
                "role": "tool",
                "tool_call_id": _given(block.tool_use_id, where, "tool_use_id"),
                "content": _result(block, where),
            }
    return message


def _check(block: Block, known: Sequence[str], where: str) -> None:
    if block.type not in known:
        raise InvalidRequestError(
            f"{where}.type: {block.type!r} is not supported here; send {' or '.join(known)}",
            param=f"{where}.type",
        )


def _call(block: Block, where: str) -> dict[str, Any]:
    """Return a call. Its JSON has the spaces that models write, so that its tokens may be theirs."""
    if block.input is None:
        raise _missing(where, "input")
    check_depth(block.input, f"{where}.input")
    function = {
        "name": _given(block.name, where, "name"),
        "arguments": json.dumps(block.input, ensure_ascii=False),
    }
    return {"id": _given(block.id, where, "id"), "type": "function", "function": function}


def _result(block: Block, where: str) -> str:
    """Return the text of a tool's result. That it is an error stands in front, as templates do not know."""
    if block.content is None or isinstance(block.content, str):
        text = block.content or ""
    else:
        texts = []
        for i, part in enumerate(block.content):
            inside = f"{where}.content[{i}]"
            _check(part, ("text",), inside)
            texts.append(_given(part.text, inside, "text"))
        text = "\n".join(texts)
    return f"Error: {text}" if block.is_error else text


def _given(value: str | None, where: str, name: str) -> str:
    if value is None:
        raise _missing(where, name)
    return value


def _missing(where: str, name: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}.{name} is missing", param=f"{where}.{name}")
