"""What the bank holds, in memory and in files, and who goes to make room: what is dropped, and why."""

from __future__ import annotations

from collections.abc import Callable

from tierd.kv.banked import Banked
from tierd.kv.entries import Entries
from tierd.kv.spill import Spill


class Holdings:
    """Entries, and what they take. See `bank.Bank` for the numbers and arguments."""

    def __init__(self, limit: int, on_drop: Callable[[Banked], None] | None, spill: Spill | None) -> None:
        self.limit = limit
        self.used = 0
        self.spilled = 0
        self.dropped = 0
        self.dropped_positions = 0
        self.entries = Entries()
        self._on_drop = on_drop
        self._spill = spill
        if spill is not None:
            self._take_up(spill)

    def make_room(self, wanted: int, *, drops: bool = True) -> bool:
        """Let parked entries leave memory until `wanted` bytes are free; none when that is not enough.

        Those that stay in a file go first, for nothing is lost with them. drops: others may go, too.
        """
        missing = self.used + wanted - self.limit
        going: list[Banked] = []
        for entries in (self.entries.spare, self.entries.unfiled) if drops else (self.entries.spare,):
            for entry in entries:
                if missing <= 0:
                    break
                if entry.droppable:
                    going.append(entry)
                    missing -= entry.bytes
        if missing > 0:
            return False
        for entry in going:
            if entry.path is None:
                self._drop(entry)
            else:
                self.leave_memory(entry)
        return True

    def make_file_room(self, entry: Banked, missing: int) -> bool:
        """Remove files of entries used before this one, of `missing` bytes; none when that is not enough."""
        going: list[Banked] = []
        for other in self.entries.filed:
            if missing <= 0 or other.order >= entry.order:
                break
            if other.droppable:
                going.append(other)
                missing -= other.file_bytes
        if missing > 0:
            return False
        for other in going:
            if other.in_memory:
                self.remove_file(other)
            else:
                self._drop(other)
        return True

    def replace(self, entry: Banked, going: Callable[[Banked], bool]) -> None:
        """Remove those that are going, that nobody holds on to, and of which an entry has all they have."""
        for other in self.entries.openings(entry):
            if other.droppable and going(other):
                self.remove(other)

    def leave_memory(self, entry: Banked) -> None:
        """Give up the memory of an entry that lies in a file."""
        self.entries.take_out(entry)
        self._free(entry)
        self.entries.enter(entry)

    def remove_file(self, entry: Banked) -> None:
        """Give up the file of an entry that has one."""
        self.entries.take_out(entry)
        self._forget_file(entry)
        self.entries.enter(entry)

    def remove(self, entry: Banked) -> None:
        """Give up all of an entry."""
        self.entries.take_out(entry)
        if not entry.closing:
            self.entries.unshelve(entry)
        self._end(entry)

    def remove_all(self, gone: set[Banked]) -> None:
        """Give up all of many."""
        self.entries.discard_all(gone)
        for entry in gone:
            self._end(entry)

    def count_drop(self, entry: Banked) -> None:
        """Note that rows are lost that might have been needed."""
        self.dropped += 1
        self.dropped_positions += entry.valid
        if self._on_drop is not None:
            self._on_drop(entry)

    def _take_up(self, spill: Spill) -> None:
        """Enter the files that an earlier process has left, as far as they may stay."""
        for path, header in sorted(spill.found.items(), key=lambda item: item[1].used):
            entry = Banked.left_in(path, header)
            self.entries.enter(entry)
            self.entries.shelve(entry)
            self.spilled += entry.file_bytes
        for entry in [*self.entries]:
            if self.spilled > spill.limit:
                self.remove(entry)

    def _drop(self, entry: Banked) -> None:
        self.count_drop(entry)
        self.remove(entry)

    # Of an entry that is in no set:

    def _end(self, entry: Banked) -> None:
        if entry.in_memory:
            self._free(entry)
        self._forget_file(entry)
        entry.dropped = True

    def _free(self, entry: Banked) -> None:
        if self._spill is not None:
            self._spill.free(entry.layers)
        entry.layers = []
        self.used -= entry.bytes

    def _forget_file(self, entry: Banked) -> None:
        if entry.path is None:
            return
        assert self._spill is not None
        self._spill.remove(entry.path)
        self.spilled -= entry.file_bytes
        entry.path, entry.header, entry.file_bytes = None, b"", 0
