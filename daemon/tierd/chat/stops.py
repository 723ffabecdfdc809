"""Turns a stream of token ids into text that is safe to send: whole characters, nothing of a stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from tierd.chat.tokenizer import Tokenizer
from tierd.core import TextStream
from tierd.errors import InvalidRequestError


def text_stream(tokenizer: Tokenizer, stop: Sequence[str] = (), spelled: Collection[int] = ()) -> TextStream:
    """Return a TextStream over the tokens of one answer.

    spelled: control tokens that show as they are spelled.
    The pieces joined are the bytes of the tokens decoded as a whole, bad UTF-8 replaced by U+FFFD, cut
    before the stop string that is completed first (the longest, where several end together). The tokens
    follow a prompt, so a space that a first token begins with is kept. Raises InvalidRequestError for an
    empty stop string.
    """
    if "" in stop:
        raise InvalidRequestError("a stop string must not be empty", param="stop")
    return _Stream(tokenizer, tuple(stop), {id: tokenizer.token_text(id).encode() for id in spelled})


class _Stream:
    """held: decoded text that may be the beginning of a stop string.

    returned: characters handed out. starts: where the text of each token that is not shown yet begins.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], spelled: Mapping[int, bytes]) -> None:
        self._tokenizer = tokenizer
        self._spelled = spelled
        self._stops = [_Search(text) for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._stopped_by: str | None = None
        self._returned = 0
        self._starts: deque[int] = deque()
        self._shown = 0

    @property
    def stopped_by(self) -> str | None:
        return self._stopped_by

    @property
    def shown(self) -> int:
        return self._shown

    def push(self, token: int) -> str:
        self._starts.append(self._returned + len(self._held))
        raw = self._spelled.get(token) or self._tokenizer.token_bytes(token)
        text = self._release(self._decoder.decode(raw))
        self._returned += len(text)
        while self._starts and self._starts[0] < self._returned:
            self._starts.popleft()
            self._shown += 1
        return text

    def finish(self) -> str:
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        self._shown += len(self._starts)
        self._starts.clear()
        return text + held

    def _release(self, text: str) -> str:
        """Take in new text and return what can no longer become part of a stop string."""
        if self._stopped_by is not None:
            return ""
        matches = [
            (len(self._held) + end, -len(stop.text), stop.text)
            for stop in self._stops
            if (end := stop.feed(text))
        ]
        text = self._held + text
        if matches:
            end, length, self._stopped_by = min(matches)
            self._held = ""
            return text[: end + length]
        sure = len(text) - max((stop.matched for stop in self._stops), default=0)
        self._held = text[sure:]
        return text[:sure]


class _Search:
    """Looks for one string in a text that comes in pieces, in time that grows with the text alone.

    Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977. matched: characters at the end of
    what has come that begin the string.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = _borders(text)

    def feed(self, piece: str) -> int:
        """Take in a piece; return where in it the string ends first, 0 if it does not."""
        text, borders, matched = self.text, self._borders, self.matched
        if not matched and text[0] not in piece:
            return 0
        for end, letter in enumerate(piece, 1):
            while matched and text[matched] != letter:
                matched = borders[matched - 1]
            matched += text[matched] == letter
            if matched == len(text):
                return end
        self.matched = matched
        return 0


def _borders(text: str) -> list[int]:
    """Return, for each beginning of a text, the length of the longest shorter one that it ends with."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        length += text[index] == text[length]
        borders[index] = length
    return borders
