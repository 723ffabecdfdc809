"""What every API says of a turn in its own words: messages, tools, the choice among them, effort.

Every error is an InvalidRequestError that names the field at fault, whose path the caller gives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from tierd.chat.tools import MAX_DEPTH, Tool, is_shallow
from tierd.errors import InvalidRequestError

Given = TypeVar("Given")
Value = TypeVar("Value")

MAX_TOOLS = 128
# Messages that the loop may look through by itself.
FEW = 32
CHOICES = ("auto", "none", "required")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class HasContent(Protocol):
    """A message, of whatever API."""

    @property
    def content(self) -> object:
        """Its text, or what it is made of."""


def read_tools(
    given: Sequence[Given], read: Callable[[Given, str], Tool], *, inside: str = ""
) -> tuple[Tool, ...]:
    """Return the tools of a request, each with a name of its own.

    read: makes a tool of one, whose path it is given. inside: the path from there to what has the name.
    """
    if len(given) > MAX_TOOLS:
        raise InvalidRequestError(f"tools: {len(given)}; at most {MAX_TOOLS}", param="tools")
    found: dict[str, Tool] = {}
    for i, one in enumerate(given):
        where = f"tools[{i}]"
        tool = read(one, where)
        if tool.name in found:
            path = f"{where}{inside}.name"
            raise InvalidRequestError(f"{path}: {tool.name!r} is there already", param=path)
        found[tool.name] = tool
    return tuple(found.values())


def tool_of(
    name: str,
    description: str | None,
    parameters: Mapping[str, object] | None,
    strict: bool | None,
    where: str,
) -> Tool:
    """Return a tool, checked. where: the path of what says it."""
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.name: {name[:80]!r}; 1 to 128 letters, digits, _, . and -", param=f"{where}.name"
        )
    if name in CHOICES:
        raise InvalidRequestError(
            f"{where}.name: {name!r} is a choice of tools and cannot be one; call it otherwise",
            param=f"{where}.name",
        )
    check_depth(parameters, f"{where}.parameters")
    return Tool(name=name, description=description, parameters=parameters or {}, strict=bool(strict))


def find_tool(name: str, offered: Iterable[Tool], field: str) -> Tool:
    """Return the tool of that name."""
    for tool in offered:
        if tool.name == name:
            return tool
    raise InvalidRequestError(f"{field}: there is no tool {name!r}", param=field)


def check_choice(choice: str | None, offered: Sequence[Tool]) -> str:
    """Return OpenAI's `tool_choice` where it names no tool."""
    field = "tool_choice"
    if choice not in (None, *CHOICES):
        raise InvalidRequestError(
            f"{field}: no such choice, {choice!r}; use {', '.join(CHOICES)}, or name a function", param=field
        )
    if choice == "required" and not offered:
        raise InvalidRequestError(f"{field}: required, but there are no tools", param=field)
    return choice or "auto"


def check_effort(effort: str | None, field: str, known: Sequence[str] = EFFORTS) -> str | None:
    """Return an effort that an API knows, or None where nobody says."""
    if effort not in (None, *known):
        raise InvalidRequestError(f"{field}: no such effort, {effort!r}; use {', '.join(known)}", param=field)
    return effort


def needed(value: Value | None, field: str) -> Value:
    """Return what has to be there."""
    if value is None:
        raise InvalidRequestError(f"{field} is missing", param=field)
    return value


def few_texts(messages: Sequence[HasContent]) -> bool:
    """Whether the loop may look through messages by itself."""
    return len(messages) <= FEW and all(isinstance(one.content, str) for one in messages)


def check_depth(value: object, field: str) -> None:
    """Refuse JSON of more than MAX_DEPTH levels."""
    if not is_shallow(value):
        raise InvalidRequestError(f"{field}: nested more than {MAX_DEPTH} levels deep", param=field)
