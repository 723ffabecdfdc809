"""Entries of the bank in the order of their last use; many cost little more than few."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from operator import attrgetter

from tierd.kv.banked import Banked

_ORDER = attrgetter("order")


class Recency:
    """A set of entries, the least recently used first. One that is in it must not be used meanwhile.

    Who changes it while going through it goes through a copy.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[Banked] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Banked]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[Banked]:
        return reversed(self._entries)

    def __contains__(self, entry: Banked) -> bool:
        at = bisect_left(self._entries, entry.order, key=_ORDER)
        return at < len(self._entries) and self._entries[at] is entry

    def add(self, entry: Banked) -> None:
        """Take in an entry that is not there."""
        if not self._entries or self._entries[-1].order < entry.order:
            self._entries.append(entry)
        else:
            self._entries.insert(bisect_left(self._entries, entry.order, key=_ORDER), entry)

    def discard(self, entry: Banked) -> None:
        """Take an entry out, if it is there."""
        at = bisect_left(self._entries, entry.order, key=_ORDER)
        if at < len(self._entries) and self._entries[at] is entry:
            del self._entries[at]

    def discard_all(self, gone: AbstractSet[Banked]) -> None:
        """Take many out at once, those that are there."""
        self._entries = [entry for entry in self._entries if entry not in gone]
