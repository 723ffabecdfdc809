"""The bank's entries: by when they were used last, by where their rows are, and by their tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from tierd.kv.banked import Banked
from tierd.kv.openings import Tokens, owner_of, pack
from tierd.kv.recency import Recency
from tierd.kv.shelf import Shelf


class Entries:
    """Those that are open; the least recently used first.

    unfiled: in memory, without a file; unfiled_bytes: what these take there. spare: in memory, with a file.
    filed: with one.
    """

    def __init__(self) -> None:
        self.unfiled, self.spare, self.filed = Recency(), Recency(), Recency()
        self.unfiled_bytes = 0
        self._all = Recency()
        # What can be found, by model, origin and owner.
        self._shelves: defaultdict[tuple[str, str, str], Shelf] = defaultdict(Shelf)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Banked]:
        return iter(self._all)

    def __contains__(self, entry: Banked) -> bool:
        return entry in self._all

    def enter(self, entry: Banked) -> None:
        """Take an entry in, wherever it belongs."""
        self._all.add(entry)
        if entry.path is not None:
            self.filed.add(entry)
        if entry.in_memory and entry.path is not None:
            self.spare.add(entry)
        elif entry.in_memory:
            self.unfiled.add(entry)
            self.unfiled_bytes += entry.bytes

    def take_out(self, entry: Banked) -> None:
        """Take an entry out before anything changes by which it has its places; it can be found still."""
        self._all.discard(entry)
        if entry.path is not None:
            self.filed.discard(entry)
        if entry.in_memory and entry.path is not None:
            self.spare.discard(entry)
        elif entry.in_memory:
            self.unfiled.discard(entry)
            self.unfiled_bytes -= entry.bytes

    def discard_all(self, gone: AbstractSet[Banked]) -> None:
        """Take many out at once, which cannot be found then."""
        for entries in (self._all, self.unfiled, self.spare, self.filed):
            entries.discard_all(gone)
        for shelf in self._shelves.values():
            shelf.discard_all(gone)
        self.unfiled_bytes = sum(entry.bytes for entry in self.unfiled)

    def shelve(self, entry: Banked) -> None:
        """Let an entry be found by its tokens."""
        self._shelf_of(entry).add(entry)

    def unshelve(self, entry: Banked) -> None:
        """Let an entry not be found any more."""
        if entry.packed is not None:
            self._shelf_of(entry).discard(entry)

    def find(self, model: str, origin: str, tokens: Tokens, minimum: int) -> tuple[Banked, int] | None:
        """Return who has the longest opening of these tokens; see `bank.Bank.find`."""
        return self._shelves[model, origin, owner_of(tokens)].find(pack(tokens), minimum)

    def holds(self, model: str, origin: str, tokens: Tokens) -> bool:
        """Whether one has all of these tokens."""
        return self._shelves[model, origin, owner_of(tokens)].holds(pack(tokens))

    def openings(self, entry: Banked) -> list[Banked]:
        """Return the others that have nothing but rows of an opening of an entry's tokens."""
        assert entry.packed is not None
        return [other for other in self._shelf_of(entry).openings(entry.packed) if other is not entry]

    def _shelf_of(self, entry: Banked) -> Shelf:
        return self._shelves[entry.model, entry.origin, entry.owner]
