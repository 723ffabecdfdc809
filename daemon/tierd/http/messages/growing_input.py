"""The input of a call while it comes: JSON that is certain, whatever the model goes on to write."""

from __future__ import annotations

import json
import re

_MARK = re.compile(r'["{}\[\],]')
_IN_STRING = re.compile(r'["\\]')


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_values = json.JSONDecoder(parse_constant=_refuse)


class GrowingInput:
    """Takes a model's text; gives members that are complete, and in the end the JSON of an object.

    So does Anthropic's, unless a tool asks for eager_input_streaming. Where the text breaks off, or is no
    JSON from some place on, the object has the members before.
    """

    def __init__(self) -> None:
        self._member: list[str] = []
        self._depth = 0  # brackets that are open
        self._in_string = False
        self._escaped = False
        self._given = False
        self._over = False

    def push(self, text: str) -> str:
        """Take more of the text; return what follows of the object."""
        given = ""
        start = place = 0
        while not self._over:
            place = self._next(text, place)
            if place < 0:
                self._member.append(text[start:])
                break
            mark, member = text[place - 1], text[start : place - 1]
            if self._depth == 0:
                self._over = mark != "{" or bool("".join([*self._member, member]).strip())
                self._member = []
                self._depth, start = 1, place
                continue
            self._depth += (mark in "{[") - (mark in "}]")
            if self._depth == 0 or (self._depth == 1 and mark == ","):
                given += self._end_member(member)
                self._over |= self._depth == 0
                start = place
        return given

    def finish(self) -> str:
        """Return the rest of the object; called once, after all of the text."""
        return "}" if self._given else "{}"

    def _next(self, text: str, place: int) -> int:
        """Return where the next mark ends that stands outside of strings, -1 where none does."""
        while place < len(text):
            if self._escaped:
                self._escaped = False
                place += 1
                continue
            found = (_IN_STRING if self._in_string else _MARK).search(text, place)
            if found is None:
                return -1
            place = found.end()
            if found[0] == '"':
                self._in_string = not self._in_string
            elif found[0] == "\\":
                self._escaped = True
            else:
                return place
        return -1

    def _end_member(self, rest: str) -> str:
        """Return a member as it stands in the object, nothing where it is none; then there are no more."""
        member = "".join([*self._member, rest])
        self._member = []
        try:
            self._over = not _values.decode("{" + member + "}")
        except (ValueError, RecursionError):
            self._over = True
        if self._over:
            return ""
        before = "," if self._given else "{"
        self._given = True
        return before + member


def whole_input(text: str) -> str:
    """Return the input of a call as the JSON of an object, whatever the model wrote."""
    growing = GrowingInput()
    return growing.push(text) + growing.finish()
