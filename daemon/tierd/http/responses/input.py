"""The input of a response: items as they are given become items as they are kept, and messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tierd.errors import InvalidRequestError
from tierd.http.responses.draft import Names, names
from tierd.http.responses.requests import ItemGiven, ItemStatus, PartGiven
from tierd.http.responses.shapes import (
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    InputText,
    Item,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
)
from tierd.http.responses.store import Kept
from tierd.http.turns.fields import needed

TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
ROLES = ("user", "system", "developer", "assistant")


# Finds a kept item by its id.
Refer = Callable[[str], Item | None]


class _Output(msgspec.Struct):
    output: list[ItemGiven]


_input = msgspec.json.Decoder(list[ItemGiven])
_output = msgspec.json.Decoder(_Output)
_TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


def read_input(given: str | Sequence[ItemGiven], name: Names, refer: Refer) -> list[Item]:
    """Return the items of an input; those without an id get one. Raises InvalidRequestError."""
    if isinstance(given, str):
        return [InputMessage(id=name("msg"), content=[InputText(text=given)], role="user")]
    return [
        _referred(item, f"input[{i}].id", refer)
        if item.type == "item_reference"
        else _item(item, f"input[{i}]", name)
        for i, item in enumerate(given)
    ]


def recall(kept: Kept) -> list[Item]:
    """Return what the model was given for a response, and what it gave."""
    items = [*_input.decode(kept.input), *_output.decode(kept.response).output]
    return [_item(item, kept.id, names("")) for item in items]


def _referred(given: ItemGiven, where: str, refer: Refer) -> Item:
    id = needed(given.id, where)
    item = refer(id)
    if item is None:
        raise InvalidRequestError(
            f"{where}: there is no item {id!r}, or none is kept any more; send the item itself", param=where
        )
    return item


def _item(given: ItemGiven, where: str, name: Names) -> Item:
    """Return an item. where: its path."""
    status = given.status or "completed"
    match given.type:
        case "message":
            return _message(given, where, status, name)
        case "function_call":
            return FunctionCall(
                id=given.id or name("fc"),
                status=status,
                arguments=needed(given.arguments, f"{where}.arguments"),
                call_id=needed(given.call_id, f"{where}.call_id"),
                name=needed(given.name, f"{where}.name"),
            )
        case "function_call_output":
            return FunctionCallOutput(
                id=given.id or name("fco"),
                status=status,
                call_id=needed(given.call_id, f"{where}.call_id"),
                output="\n".join(_texts(given.output, f"{where}.output")),
            )
        case "reasoning":
            thoughts = _texts(given.content or given.summary or [], f"{where}.content")
            texts = [ReasoningText(text=thought) for thought in thoughts]
            return Reasoning(id=given.id or name("rs"), status=status, content=texts)
    raise InvalidRequestError(
        f"{where}.type: {given.type!r} is not supported; send {', '.join(TYPES)}", param=f"{where}.type"
    )


def messages(
    instructions: str | None, before: Sequence[Item], given: Sequence[Item]
) -> list[dict[str, object]]:
    """Return a conversation in the shape that Turn has it.

    before: what the response that it goes on from had and gave. What the model did in one turn, thought, said
    and called, is one message, and so are all system messages at the beginning.
    Raises InvalidRequestError: nothing is there, or an output of a call that nobody has made.
    """
    if not before and not given:
        raise InvalidRequestError("input: empty; send at least one item", param="input")
    spoken = _Conversation(instructions)
    for i, item in enumerate([*before, *given], -len(before)):
        if isinstance(item, FunctionCallOutput) and item.call_id not in spoken.calls:
            raise InvalidRequestError(
                f"input[{i}].call_id: there is no call {item.call_id!r} before it",
                param=f"input[{i}].call_id",
            )
        spoken.add(item)
    return spoken.messages()


@dataclass(slots=True)
class _Answer:
    """What the model did in one turn."""

    thoughts: list[str] = field(default_factory=list)
    text: str | None = None
    calls: list[dict[str, object]] = field(default_factory=list)

    def takes(self, item: OutputMessage | Reasoning | FunctionCall) -> bool:
        """Whether an item can be of the same turn."""
        if isinstance(item, FunctionCall):
            return True
        return not self.calls and self.text is None

    def message(self) -> dict[str, object]:
        """Return it as a message."""
        plain: dict[str, object] = {"role": "assistant", "content": self.text or ""}
        if self.thoughts:
            plain["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            plain["tool_calls"] = self.calls
        return plain


class _Conversation:
    """Messages, and turns of the model that may still get more. calls: ids of all calls so far."""

    def __init__(self, instructions: str | None) -> None:
        self.calls: set[str] = set()
        self._system = [] if instructions is None else [instructions]
        self._messages: list[dict[str, object] | _Answer] = []

    def add(self, item: Item) -> None:
        """Add an item."""
        match item:
            case InputMessage():
                text = "\n".join(part.text for part in item.content)
                role = "user" if item.role == "user" else "system"
                if role == "system" and not self._messages:
                    self._system.append(text)
                else:
                    self._messages.append({"role": role, "content": text})
            case FunctionCallOutput():
                self._messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
            case OutputMessage():
                self._answer(item).text = "\n".join(part.text for part in item.content)
            case Reasoning():
                if item.content:
                    self._answer(item).thoughts += [part.text for part in item.content]
            case FunctionCall():
                self.calls.add(item.call_id)
                function = {"name": item.name, "arguments": item.arguments}
                self._answer(item).calls.append(
                    {"id": item.call_id, "type": "function", "function": function}
                )

    def messages(self) -> list[dict[str, object]]:
        """Return all of them."""
        plain = [each.message() if isinstance(each, _Answer) else each for each in self._messages]
        if self._system:
            plain.insert(0, {"role": "system", "content": "\n\n".join(self._system)})
        return plain

    def _answer(self, item: OutputMessage | Reasoning | FunctionCall) -> _Answer:
        last = self._messages[-1] if self._messages else None
        if not isinstance(last, _Answer) or not last.takes(item):
            last = _Answer()
            self._messages.append(last)
        return last


def _message(given: ItemGiven, where: str, status: ItemStatus, name: Names) -> InputMessage | OutputMessage:
    texts = _texts(given.content, f"{where}.content")
    id = given.id or name("msg")
    role = needed(given.role, f"{where}.role")
    match role:
        case "assistant":
            return OutputMessage(id=id, status=status, content=[OutputText(text=text) for text in texts])
        case "user" | "system" | "developer":
            return InputMessage(
                id=id, status=status, content=[InputText(text=text) for text in texts], role=role
            )
    raise InvalidRequestError(
        f"{where}.role: no such role, {role!r}; use {', '.join(ROLES)}", param=f"{where}.role"
    )


def _texts(given: str | Iterable[PartGiven] | None, where: str) -> list[str]:
    if given is None:
        raise InvalidRequestError(f"{where} is missing", param=where)
    if isinstance(given, str):
        return [given]
    texts = []
    for i, part in enumerate(given):
        if part.type not in _TEXTS:
            raise InvalidRequestError(
                f"{where}[{i}].type: {part.type!r} is not supported; send texts", param=f"{where}[{i}].type"
            )
        key: Literal["refusal", "text"] = "refusal" if part.type == "refusal" else "text"
        texts.append(needed(getattr(part, key), f"{where}[{i}].{key}"))
    return texts
