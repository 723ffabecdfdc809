"""A grammar for an answer that may come to calls: it is free until the mark of one, and these obey."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tierd.chat.tokenizer import Tokenizer
from tierd.core import Constraint, Grammar, TokenMask
from tierd.errors import InvalidRequestError

# What may come behind the beginning of a mark, by those bytes; see `_masks`.
Masks = Mapping[bytes, TokenMask]

# Characters behind a mark in what an answer begins with; behind more of them it is free.
_LONGEST = 256

_known: WeakKeyDictionary[Tokenizer, dict[tuple[bytes, ...], Masks]] = WeakKeyDictionary()


class CallsBehind:
    """See core.Grammar. Once a mark has come, which always ends a token, an inner grammar holds from there.

    Making one goes through a vocabulary, the first time: it is for a thread.
    """

    def __init__(
        self, inner: Grammar, tokenizer: Tokenizer, leads: Mapping[str, Sequence[int]], begun: str = ""
    ) -> None:
        """leads: by mark, none of which ends in another, the tokens that the inner grammar has had with it.

        begun: what the answer has begun with; the inner grammar holds from the beginning where that ends in a
        mark, or in what it allows behind one.
        """
        self._inner = inner
        self._tokenizer = tokenizer
        self._leads = {mark.encode(): ids for mark, ids in leads.items()}
        self._masks = _masks_of(tokenizer, tuple(self._leads))
        self._begun = _begun(begun[-_LONGEST:].encode(), self._leads)
        self._first = self._lead_of(begun)

    def begin(self) -> Constraint:
        """See core.Grammar."""
        inner = self._inner.begin()
        for token in self._first or ():
            inner.advance(token)
        free = self._first is None
        return _Following(inner, self._tokenizer, self._leads, self._masks, free, self._begun)

    def _lead_of(self, begun: str) -> Sequence[int] | None:
        """Return what the inner grammar has had of a text, None where that has no call under way."""
        place, mark = max(((begun.rfind(mark.decode()), mark) for mark in self._leads), default=(-1, b""))
        rest = begun[place + len(mark.decode()) :]
        if place < 0 or len(rest) > _LONGEST:
            return None
        ids = [*self._leads[mark], *self._tokenizer.encode_part(rest)]
        inner = self._inner.begin()
        try:
            for token in ids:
                inner.advance(token)
        except InvalidRequestError:
            return None
        return ids


class _Following:
    """free: no mark has come yet. tail: the last bytes of the text, which begin one."""

    def __init__(
        self,
        inner: Constraint,
        tokenizer: Tokenizer,
        leads: Mapping[bytes, Sequence[int]],
        masks: Masks,
        free: bool,
        tail: bytes,
    ) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._leads = leads
        self._masks = masks
        self._free = free
        self._tail = tail

    @property
    def slow(self) -> bool:
        return self._inner.slow

    def allowed(self) -> TokenMask | None:
        return self._masks.get(self._tail) if self._free else self._inner.allowed()

    def advance(self, token: int) -> None:
        if not self._free:
            self._inner.advance(token)
            return
        text = self._tail + _spelled(self._tokenizer, token)
        mark = next((mark for mark in self._leads if text.endswith(mark)), None)
        if mark is not None:
            self._free = False
            for part in self._leads[mark]:
                self._inner.advance(part)
        self._tail = _begun(text, self._leads)


def _begun(text: bytes, marks: Collection[bytes]) -> bytes:
    """Return the longest end of a text that begins a mark and is not all of it."""
    longest = max(map(len, marks), default=1)
    ends = (text[len(text) - count :] for count in range(min(longest - 1, len(text)), 0, -1))
    return next((end for end in ends if any(m.startswith(end) and m != end for m in marks)), b"")


def _masks_of(tokenizer: Tokenizer, marks: tuple[bytes, ...]) -> Masks:
    kept = _known.setdefault(tokenizer, {})
    if marks not in kept:
        kept[marks] = _masks(tokenizer, marks)
    return kept[marks]


def _masks(tokenizer: Tokenizer, marks: tuple[bytes, ...]) -> Masks:
    """Return masks without the tokens that end a mark and say more, which would be free of the grammar.

    There are those alone from which some are missing.
    """
    begun = {mark[:count] for mark in marks for count in range(len(mark))}
    rests = {start: [mark[len(start) :] for mark in marks if mark.startswith(start)] for start in begun}
    ends = {start: {_begun(start[skip:], marks) for skip in range(len(start) + 1)} for start in begun}
    starts = tuple({rest for each in rests.values() for rest in each})
    everything = TokenMask.of(range(tokenizer.vocabulary), tokenizer.vocabulary).words
    masks: dict[bytes, npt.NDArray[np.uint32]] = {}
    for token in range(tokenizer.vocabulary):
        text = _spelled(tokenizer, token)
        if not (text.startswith(starts) or any(mark in text for mark in marks)):
            continue
        says_more = {start: any(_goes_beyond(text, rest) for rest in rests[start]) for start in begun}
        inside = any(mark in text and not text.endswith(mark) for mark in marks)
        for start in begun:
            if inside or any(says_more[end] for end in ends[start]):
                words = masks.setdefault(start, everything.copy())
                words[token // 32] &= ~np.uint32(1 << token % 32)
    return {start: TokenMask(words) for start, words in masks.items()}


def _goes_beyond(text: bytes, rest: bytes) -> bool:
    return text.startswith(rest) and text != rest


def _spelled(tokenizer: Tokenizer, token: int) -> bytes:
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()
