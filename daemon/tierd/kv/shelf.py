"""Kept entries of one model and origin, in the order of their tokens: what begins alike stands together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from tierd.kv.banked import Banked
from tierd.kv.openings import TOKEN_BYTES, shared_opening

# Behind an opening it is greater than any tokens: no model has one of that number.
_BEHIND = b"\xff" * TOKEN_BYTES


class Shelf:
    """A set of entries that have tokens. What it is asked costs little more with many than with few."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[Banked] = []

    def add(self, entry: Banked) -> None:
        """Take in an entry that is not there."""
        insort(self._entries, entry, key=_tokens)

    def discard(self, entry: Banked) -> None:
        """Take an entry out, if it is there."""
        at = self._place(_tokens(entry))
        while at < len(self._entries) and self._entries[at].packed == entry.packed:
            if self._entries[at] is entry:
                del self._entries[at]
                return
            at += 1

    def discard_all(self, gone: AbstractSet[Banked]) -> None:
        """Take many out at once, those that are there."""
        self._entries = [entry for entry in self._entries if entry not in gone]

    def find(self, tokens: bytes, minimum: int = 1) -> tuple[Banked, int] | None:
        """Return the entry with the longest opening of packed tokens, `minimum` or more, and its length.

        Of equals the one with the fewest tokens beyond wins, then the one used last.
        """
        at = self._place(tokens)
        beside = self._entries[max(0, at - 1) : at + 1]
        most = max((shared_opening(_tokens(entry), tokens) for entry in beside), default=0)
        if most < max(1, minimum):
            return None
        opening = tokens[: most * TOKEN_BYTES]
        equals = self._entries[self._place(opening) : self._place(opening + _BEHIND)]
        return max(equals, key=lambda entry: (-len(_tokens(entry)), entry.order)), most

    def holds(self, tokens: bytes) -> bool:
        """Whether an entry has all of these packed tokens."""
        at = self._place(tokens)
        return at < len(self._entries) and _tokens(self._entries[at]).startswith(tokens)

    def openings(self, tokens: bytes) -> Iterator[Banked]:
        """Go through the entries that have nothing but an opening of packed tokens, or just these."""
        at = bisect_right(self._entries, tokens, key=_tokens)
        while at:
            other = _tokens(self._entries[at - 1])
            if tokens.startswith(other):
                yield self._entries[at - 1]
                at -= 1
            else:  # what opens these stands before the part that both share
                shared = tokens[: shared_opening(other, tokens) * TOKEN_BYTES]
                at = bisect_right(self._entries, shared, hi=at - 1, key=_tokens)

    def _place(self, tokens: bytes) -> int:
        return bisect_left(self._entries, tokens, key=_tokens)


def _tokens(entry: Banked) -> bytes:
    assert entry.packed is not None
    return entry.packed
