"""Gives the log-probabilities of a model's tokens to the pieces of text that they have become."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from tierd.chat.reply import Piece, Said
from tierd.chat.tokenizer import Tokenizer
from tierd.core import TokenLogprobs


class Scoring:
    """Of one choice. A token belongs to the text that it begins in or reaches into; thoughts, calls and their
    marks have none.
    """

    def __init__(self, tokenizer: Tokenizer, spelled: Collection[int]) -> None:
        """`spelled`: control tokens whose spelling is part of the text."""
        self._tokenizer = tokenizer
        self._spelled = spelled
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0  # characters of all tokens that have come
        self._said = 0  # where the last text has ended
        self._waiting: deque[tuple[int, int, TokenLogprobs]] = deque()  # first character, end

    def score(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprobs]) -> list[Piece]:
        """Return pieces with what belongs to them; `logprobs` are of the tokens that have come since."""
        for entry in logprobs:
            raw = self._tokenizer.token_bytes(entry.token)
            if entry.token in self._spelled:
                raw = self._tokenizer.token_text(entry.token).encode()
            start = self._length
            self._length += len(self._decoder.decode(raw))
            self._waiting.append((start, self._length, entry))
        if not self._waiting:
            return list(pieces)
        return [
            replace(piece, logprobs=self._of(piece)) if isinstance(piece, Said) else piece for piece in pieces
        ]

    def rest(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the last pieces, and what belongs to the end of the text and shows nothing."""
        scored = self.score(pieces, ())
        left = tuple(entry for start, end, entry in self._waiting if start == end == self._said)
        return [*scored, Said("", left, self._said)] if left else scored

    def _of(self, said: Said) -> tuple[TokenLogprobs, ...]:
        self._said = said.at + len(said.text)
        mine = []
        while self._waiting and (self._waiting[0][0] < self._said or self._is_empty_at(said.at)):
            start, end, entry = self._waiting.popleft()
            if start >= said.at or end > said.at:
                mine.append(entry)
        return tuple(mine)

    def _is_empty_at(self, place: int) -> bool:
        start, end, _ = self._waiting[0]
        return start == end == place
