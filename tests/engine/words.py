"""A grammar whose texts are easily told, for tests of the engine."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise

from engine.harness import PATIENCE
from engine.null_slot import ByteTokenizer
from tierd.core import Constraint, TokenMask
from tierd.errors import InvalidRequestError

LETTERS = b"abcdefgh"


def is_word(ids: Sequence[int], length: int = 12) -> bool:
    return (
        len(ids) == length
        and set(ids) <= set(LETTERS)
        and all((one + other) % 3 for one, other in pairwise([0, *ids]))
    )


class Word:
    """A grammar of words: each letter may follow the one before it, and at a length the text ends.

    end, vocabulary: the id that ends a text, and how many there are. free: then anything may come.
    held: keeps whoever asks what may come next waiting, until it is set. fails_at: after so many letters.
    slow: see core.Constraint. askers: the names of the threads that have asked.
    """

    def __init__(
        self,
        length: int = 12,
        *,
        end: int = ByteTokenizer.eos_id,
        vocabulary: int = ByteTokenizer.vocabulary,
        held: threading.Event | None = None,
        fails_at: int = -1,
        free: bool = False,
        slow: bool = False,
    ) -> None:
        self.end = end
        self.vocabulary = vocabulary
        self.length = length
        self.held = held
        self.fails_at = fails_at
        self.free = free
        self.slow = slow
        self.askers: list[str] = []
        self.asked = threading.Semaphore(0)
        self.begun: list[weakref.ref[Constraint]] = []

    def begin(self) -> Constraint:
        constraint = _Letters(self)
        self.begun.append(weakref.ref(constraint))
        return constraint


class _Letters:
    def __init__(self, word: Word) -> None:
        self._word = word
        self._letters: list[int] = []

    @property
    def slow(self) -> bool:
        return self._word.slow

    def allowed(self) -> TokenMask | None:
        word = self._word
        word.askers.append(threading.current_thread().name)
        word.asked.release()
        if word.held is not None:
            assert word.held.wait(PATIENCE)
        if len(self._letters) == word.fails_at:
            raise InvalidRequestError("the grammar cannot go on: it has lost the thread")
        if word.free:
            return None
        if len(self._letters) == word.length:
            return TokenMask.of([word.end], word.vocabulary)
        last = self._letters[-1] if self._letters else 0
        return TokenMask.of([id for id in LETTERS if (id + last) % 3], word.vocabulary)

    def advance(self, token: int) -> None:
        assert self._word.free or (token + (self._letters[-1] if self._letters else 0)) % 3
        self._letters.append(token)
