"""Arguments as Gemma's models write them: JSON but for its quotation marks, of which keys have none."""

from __future__ import annotations

import re

from tierd.chat.arguments import Stepwise, escaped
from tierd.chat.scanning import Marks
from tierd.chat.schema_types import as_json

_OPEN, _SHUT = "{[", "}]"
_BETWEEN = {",": ", ", ":": ": "}


class LooseArguments(Stepwise):
    """See ArgumentsReader. Words are keys where a colon may follow, else numbers and the like, or texts."""

    def __init__(self, quote: str) -> None:
        """`quote`: stands around texts."""
        self._quote = quote
        self._quotes = Marks([quote])
        self._word_ends = re.compile(rf"[{{}}\[\],:\"]|{re.escape(quote)}")
        self._value_ends = re.compile(rf"[{{}}\[\],\"]|{re.escape(quote)}")
        super().__init__(self._between)
        self._open: list[str] = []  # brackets
        self._key = False  # what comes next is one

    def finish(self) -> str:
        """See ArgumentsReader."""
        if self._state == self._in_text:
            return escaped(self._text)
        if self._state == self._in_json_text:
            return self._text
        word = self._text.strip()
        return f'"{escaped(word)}' if word and self._key else word

    def _between(self) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        letter = self._text[0]
        if letter in _OPEN:
            self._write(letter)
            self._open.append(letter)
            self._key = letter == "{"
        elif letter in _SHUT:
            self._write(letter)
            self._open.pop()
            self._ended = not self._open
        elif letter in _BETWEEN:
            self._write(_BETWEEN[letter])
            self._key = letter == "," and self._open[-1] == "{"
        elif letter == '"':
            self._write(letter)
            self._state = self._in_json_text
        elif self._text.startswith(self._quote):
            self._text = self._text.removeprefix(self._quote)
            self._written.append('"')
            self._state = self._in_text
        else:
            return self._word()
        return True

    def _write(self, written: str) -> None:
        """Settle a letter."""
        self._text = self._text[1:]
        self._written.append(written)

    def _word(self) -> bool:
        ends = self._word_ends if self._key else self._value_ends
        end = ends.search(self._text, 0, self._sure)
        if end is None:
            return False
        word = self._text[: end.start()].strip()
        self._text = self._text[end.start() :]
        self._written.append(f'"{escaped(word)}"' if self._key else as_json(word, None))
        return True

    @property
    def _sure(self) -> int:
        """How many characters there are before what may become a quotation mark."""
        return len(self._text) - self._quotes.held(self._text)

    def _in_text(self) -> bool:
        end = self._quotes.search(self._text)
        count = end.start() if end else self._sure
        self._written.append(escaped(self._text[:count]))
        self._text = self._text[count:]
        if end is None:
            return False
        self._text = self._text.removeprefix(self._quote)
        self._written.append('"')
        self._state = self._between
        return True

    def _in_json_text(self) -> bool:
        found = re.match(r'[^"\\]*(?:\\.[^"\\]*)*', self._text, re.DOTALL)
        assert found is not None
        self._written.append(found[0])
        self._text = self._text[found.end() :]
        if not self._text.startswith('"'):
            return False
        self._write('"')
        self._state = self._between
        return True
