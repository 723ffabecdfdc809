"""A grammar for an answer that may come to calls: it is free until the mark of one, and these obey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tierd.chat.tokenizer import Tokenizer
from tierd.core import Constraint, Grammar, TokenMask

# What may come behind the beginning of a mark, by how many bytes of it there are; see `_masks`.
Masks = Mapping[int, TokenMask]

_known: WeakKeyDictionary[Tokenizer, dict[bytes, Masks]] = WeakKeyDictionary()


class CallsBehind:
    """See core.Grammar. Once its mark has come, which always ends a token, an inner grammar holds from there.

    The inner one has the mark as its beginning. Making one goes through a vocabulary, the first time: it is
    for a thread.
    """

    def __init__(self, inner: Grammar, tokenizer: Tokenizer, mark: str) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._mark = mark.encode()
        ids = tokenizer.encode(mark, add_special=False, parse_special=True)
        self._ids = ids if len(ids) == 1 else tokenizer.encode_part(mark)
        self._masks = _masks_of(tokenizer, self._mark)

    def begin(self) -> Constraint:
        """See core.Grammar."""
        return _Following(self._inner.begin(), self._tokenizer, self._mark, self._ids, self._masks)


class _Following:
    """free: the mark has not come yet. tail: the last bytes of the text, fewer than make the mark."""

    def __init__(
        self, inner: Constraint, tokenizer: Tokenizer, mark: bytes, ids: Sequence[int], masks: Masks
    ) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._mark = mark
        self._mark_ids = ids
        self._masks = masks
        self._free = True
        self._tail = b""

    @property
    def slow(self) -> bool:
        return self._inner.slow

    def allowed(self) -> TokenMask | None:
        return self._masks.get(len(self._tail)) if self._free else self._inner.allowed()

    def advance(self, token: int) -> None:
        if not self._free:
            self._inner.advance(token)
            return
        text = self._tail + _spelled(self._tokenizer, token)
        if text.endswith(self._mark):
            self._free = False
            for part in self._mark_ids:
                self._inner.advance(part)
        self._tail = _begun(text, self._mark)


def _begun(text: bytes, mark: bytes) -> bytes:
    """Return how much of a mark, though not all, a text ends with."""
    return next(mark[:count] for count in range(len(mark) - 1, -1, -1) if text.endswith(mark[:count]))


def _masks_of(tokenizer: Tokenizer, mark: bytes) -> Masks:
    kept = _known.setdefault(tokenizer, {})
    if mark not in kept:
        kept[mark] = _masks(tokenizer, mark)
    return kept[mark]


def _masks(tokenizer: Tokenizer, mark: bytes) -> Masks:
    """Return masks without the tokens that end a mark and say more, which would be free of the grammar.

    There are those alone from which some are missing.
    """
    rests = [mark[count:] for count in range(len(mark))]
    starts = tuple(rests)
    everything = TokenMask.of(range(tokenizer.vocabulary), tokenizer.vocabulary).words
    masks: dict[int, npt.NDArray[np.uint32]] = {}
    for token in range(tokenizer.vocabulary):
        text = _spelled(tokenizer, token)
        if not (text.startswith(starts) or mark in text):
            continue
        for count, rest in enumerate(rests):
            more = text.startswith(rest) and text != rest
            if more or (mark in text and not text.endswith(mark)):
                words = masks.setdefault(count, everything.copy())
                words[token // 32] &= ~np.uint32(1 << token % 32)
    return {count: TokenMask(words) for count, words in masks.items()}


def _spelled(tokenizer: Tokenizer, token: int) -> bytes:
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()
