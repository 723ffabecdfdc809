"""Arguments of calls as they come, made JSON where they are not.

Where each argument stands between marks, as a text without quotation marks, the tool's schema says what of:
"5" is a number where that asks for one. Texts come as they are written, other values once they are whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tierd.chat.scanning import Marks, ValueEnd
from tierd.chat.schema_types import Types, as_json, types_of

_TEXT: Types = frozenset({"string"})


class ArgumentsReader(Protocol):
    """Takes what a model writes from a call's head on."""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return more of the arguments' JSON and, once they have ended, what stands behind them."""

    def finish(self) -> str:
        """Return what was held back of arguments that were cut off."""


class JsonArguments:
    """Of an object in JSON, which is taken as it is."""

    def __init__(self) -> None:
        self._value = ValueEnd()

    def feed(self, text: str) -> tuple[str, str | None]:
        """See ArgumentsReader."""
        end = self._value.feed(text)
        return (text, None) if end < 0 else (text[:end], text[end:])

    def finish(self) -> str:
        """See ArgumentsReader."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterMarks:
    """What stands around arguments: `key`, a name, `key_end`, then `value`, the value, `value_end`.

    last: stands behind all of them, unless what closes the call does. lines: a value has lines of its own.
    """

    key: str
    key_end: str
    value: str = ""
    value_end: str
    last: str = ""
    lines: bool = False


class Stepwise:
    """An ArgumentsReader but for its states. Each takes what it can of the text, says if there is more."""

    def __init__(self, state: Callable[[], bool], written: str = "") -> None:
        """`state`: the first one. written: what the JSON begins with."""
        self._state = state
        self._text = ""
        self._written = [written]
        self._ended = False

    def feed(self, text: str) -> tuple[str, str | None]:
        """See ArgumentsReader."""
        self._text += text
        while not self._ended and self._state():
            pass
        written = "".join(self._written)
        self._written.clear()
        return written, self._text if self._ended else None


class TaggedArguments(Stepwise):
    """Of arguments between marks. What stands between them is nobody's."""

    def __init__(self, marks: ParameterMarks, close: str, schema: Mapping[str, Any]) -> None:
        """close: what closes the call. schema: of the arguments' object."""
        self._marks = marks
        self._close = close
        self._schema = schema
        self._between_marks = Marks([mark for mark in (marks.key, marks.last, close) if mark])
        self._value_marks = Marks([marks.value_end])
        super().__init__(self._between, "{")
        self._count = 0
        self._looked = 0  # so much of a value has no end
        self._key = ""
        self._types: Types | None = None

    def finish(self) -> str:
        """See ArgumentsReader."""
        if self._state == self._in_text:
            return escaped(self._text)
        if self._state == self._in_value:
            return self._name() + self._text.strip()
        return ""

    def _between(self) -> bool:
        found = self._between_marks.search(self._text)
        if found is None:
            self._skip(len(self._text) - self._between_marks.held(self._text))
            return False
        if found[0] == self._marks.key:
            self._skip(found.end())
            self._state = self._in_key
            return True
        self._skip(found.start() if found[0] == self._close else found.end())
        self._written.append("}")
        self._ended = True
        return False

    def _in_key(self) -> bool:
        key, found, behind = self._text.partition(self._marks.key_end)
        if not found:
            return False
        self._key, self._text = key.strip(), behind
        self._types = types_of(self._schema, self._key)
        self._state = self._before_value
        return True

    def _before_value(self) -> bool:
        place = self._text.find(self._marks.value) + len(self._marks.value)
        if place < len(self._marks.value) or (self._marks.lines and not self._text):
            return False
        self._skip(place)
        if self._marks.lines:
            self._text = self._text.removeprefix("\n")
        if self._types == _TEXT:
            self._written.append(self._name() + '"')
            self._state = self._in_text
        else:
            self._state = self._in_value
        return True

    def _in_text(self) -> bool:
        found = self._value_marks.search(self._text)
        if found is None:
            count = len(self._text) - self._value_marks.held(self._text)
            if self._marks.lines and self._text[:count].endswith("\n"):
                count -= 1
            self._written.append(escaped(self._skip(count)))
            return False
        self._written.append(escaped(self._value(found.start())) + '"')
        self._skip(found.end())
        self._state = self._between
        return True

    def _in_value(self) -> bool:
        mark = self._marks.value_end
        end = self._text.find(mark, self._looked)
        if end < 0:
            self._looked = max(0, len(self._text) - len(mark) + 1)
            return False
        self._written.append(self._name() + as_json(self._value(end), self._types))
        self._skip(end + len(mark))
        self._looked = 0
        self._state = self._between
        return True

    def _name(self) -> str:
        """Return what an object has before its next value."""
        self._count += 1
        return f"{', ' if self._count > 1 else ''}{json.dumps(self._key, ensure_ascii=False)}: "

    def _value(self, end: int) -> str:
        text = self._text[:end]
        return text.removesuffix("\n") if self._marks.lines else text

    def _skip(self, count: int) -> str:
        text, self._text = self._text[:count], self._text[count:]
        return text


def escaped(text: str) -> str:
    """Return what stands between the quotation marks of a text's JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
