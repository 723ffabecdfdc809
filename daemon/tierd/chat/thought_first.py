"""A grammar for the answer of a model that may think before it: the thought is free."""

from __future__ import annotations

import numpy as np

from tierd.chat.reasoning import ThoughtMarks
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Constraint, Grammar, TokenMask


class ThoughtFirst:
    """See core.Grammar. Lets a thought come, and what ends it; then an inner grammar holds."""

    def __init__(self, inner: Grammar, tokenizer: Tokenizer, marks: ThoughtMarks, *, begun: bool) -> None:
        """begun: the answer begins in a thought. Else it may begin one where its mark is one token."""
        self._inner = inner
        self._tokenizer = tokenizer
        self._end = marks.end.encode()
        ids = tokenizer.encode(marks.start, add_special=False, parse_special=True)
        self._start = ids[0] if len(ids) == 1 and not begun else None
        self._begun = begun

    def begin(self) -> Constraint:
        """See core.Grammar."""
        return _Following(self._inner.begin(), self._tokenizer, self._end, self._start, self._begun)


class _Following:
    """free: a thought goes on. start: the token that may begin one now."""

    def __init__(
        self, inner: Constraint, tokenizer: Tokenizer, end: bytes, start: int | None, free: bool
    ) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._end = end
        self._start = start
        self._free = free
        self._tail = b""

    @property
    def slow(self) -> bool:
        return self._inner.slow

    def allowed(self) -> TokenMask | None:
        if self._free:
            return None
        mask = self._inner.allowed()
        if self._start is None or mask is None:
            return mask
        words = np.array(mask.words)
        words[self._start // 32] |= np.uint32(1 << self._start % 32)
        return TokenMask(words)

    def advance(self, token: int) -> None:
        if self._free:
            raw = self._tokenizer.token_bytes(token) or self._tokenizer.token_text(token).encode()
            self._tail = (self._tail + raw)[-len(self._end) - len(raw) :]
            self._free = self._end not in self._tail
        elif token == self._start:
            self._free = True
        else:
            self._inner.advance(token)
        self._start = None
