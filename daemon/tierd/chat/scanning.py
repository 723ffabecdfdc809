"""Reading a text that comes in pieces: marks that pieces may cut in two, and where a JSON value ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from tierd.chat.reply import Piece

# Reads from `_text` what it can, appends pieces, and returns whether another state is to go on with the rest.
State = Callable[[list[Piece]], bool]


class Scanner:
    """A ReplyParser that goes through states.

    _text: what is not settled yet. _at: characters before it. _over: no more will come.
    """

    def __init__(self, first: State) -> None:
        self.ended = False
        self._state = first
        self._text = ""
        self._at = 0
        self._over = False

    def push(self, text: str) -> Sequence[Piece]:
        """See ReplyParser."""
        self._text += text
        return self._run()

    def finish(self) -> Sequence[Piece]:
        """See ReplyParser."""
        self._over = True
        return self._run()

    def _run(self) -> Sequence[Piece]:
        pieces: list[Piece] = []
        while not self.ended and self._state(pieces):
            pass
        return pieces

    def _skip(self, count: int) -> str:
        """Settle so many characters and return them."""
        text, self._text = self._text[:count], self._text[count:]
        self._at += count
        return text

    def _skip_space(self) -> bool:
        """Settle the white space that the text begins with; return whether anything is left."""
        self._skip(len(self._text) - len(self._text.lstrip()))
        return bool(self._text)


class Marks:
    """Strings to look for, none of which begins another."""

    def __init__(self, marks: Collection[str]) -> None:
        self._marks = tuple(marks)
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first mark in a text."""
        return self._pattern.search(text)

    def match(self, text: str) -> str | None:
        """Return the mark that a text begins with, "" where it may become one, None where it cannot."""
        found = self._pattern.match(text)
        if found:
            return found[0]
        return "" if any(mark.startswith(text) for mark in self._marks) else None

    def held(self, text: str) -> int:
        """Return how many characters at the end of a text may begin a mark."""
        return max((_overlap(text, mark) for mark in self._marks), default=0)


def _overlap(text: str, mark: str) -> int:
    start = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while start >= 0:
        if mark.startswith(text[start:]):
            return len(text) - start
        start = text.find(mark[0], start + 1)
    return 0


_IN_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BETWEEN = re.compile(r'[^"{}\[\]<]*')


class ValueEnd:
    """Finds where a JSON object or array ends that comes in pieces; only brackets and strings are looked at.

    broken: a "<" stood outside of strings, where no JSON has one.
    """

    def __init__(self, depth: int = 0) -> None:
        """`depth`: brackets that are open already."""
        self.broken = False
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """Return where in this piece the value has ended, -1 where it goes on."""
        place = 0
        while place < len(text):
            if self._in_string:
                place = self._leave_string(text, place)
                continue
            found = _BETWEEN.match(text, place)
            assert found is not None
            place = found.end()
            if place == len(text):
                break
            letter = text[place]
            if letter == "<":
                self.broken = True
                return place
            place += 1
            if letter == '"':
                self._in_string = True
                continue
            self._depth += 1 if letter in "{[" else -1
            if self._depth <= 0:
                return place
        return -1

    def _leave_string(self, text: str, place: int) -> int:
        """Return where a string ends or the text does."""
        if self._escaped:
            self._escaped = False
            return place + 1
        found = _IN_STRING.match(text, place)
        assert found is not None
        place = found.end()
        if place < len(text):
            if text[place] == "\\":
                self._escaped = True
            else:
                self._in_string = False
            place += 1
        return place
