"""The host bank: K/V rows outside of any executor, of all models, in bounded memory and, beyond it, in files.

An entry has the rows of one conversation. Its room is reserved when it is opened; then its rows are copied
in, slice by slice; once they are all there it is kept, with its tokens, and can be found. Entries of live
streams stay until they are closed. Parked ones make room for others, the least recently used first.

With a spill, parked entries are written to files in the background, so that half of the bank can be had at
once: the memory of an entry whose file is complete is given up and nothing lost. What is found in a file only
must be fetched before it is read. Files of an earlier process are entries from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tierd.kv.banked import Banked
from tierd.kv.filing import Filing
from tierd.kv.holdings import Holdings
from tierd.kv.openings import Tokens, owner_of, pack
from tierd.kv.origin import place_of, strangeness
from tierd.kv.spill import Spill, SpillDone
from tierd.kv.times import unix_time

__all__ = ["Bank", "Banked"]

log = logging.getLogger(__name__)


class Bank:
    """Entries of all models, in so many bytes of memory. Only the engine thread uses it.

    filing: writes entries to files. spill: posts what `settle` is to be called with; None where there are no
    files. on_drop: called with each entry that is dropped.
    """

    def __init__(
        self, limit: int, *, on_drop: Callable[[Banked], None] | None = None, spill: Spill | None = None
    ) -> None:
        self._saves = spill is not None
        self._holdings = Holdings(limit, on_drop, spill)
        self._entries = self._holdings.entries
        self.filing = Filing(self._holdings, spill)

    @property
    def limit(self) -> int:
        """Bytes of memory that may be reserved."""
        return self._holdings.limit

    @property
    def used(self) -> int:
        """Bytes of memory that are reserved."""
        return self._holdings.used

    @property
    def spilled(self) -> int:
        """Bytes of files, those being written among them."""
        return self._holdings.spilled

    @property
    def dropped(self) -> int:
        """Parked entries that had to make room or could not be fetched, so far."""
        return self._holdings.dropped

    @property
    def dropped_positions(self) -> int:
        """How many positions those had."""
        return self._holdings.dropped_positions

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._entries)

    @property
    def entries(self) -> tuple[Banked, ...]:
        """All that are open, the least recently used first."""
        return tuple(self._entries)

    def open(
        self,
        model: str,
        origin: str,
        row_bytes: tuple[int, ...],
        positions: int,
        *,
        live: bool,
        used: float | None = None,
        drops: bool = True,
    ) -> Banked | None:
        """Reserve room for so many positions; parked entries leave memory to make it, or are dropped.

        origin: what computed the rows; nothing else may go on with what is found. used: when the conversation
        was last, seconds since the epoch; None: now. drops: False: only those leave that lie in a file. None
        when there is no room, and then nothing is dropped, or when the system refuses so much memory.
        """
        if not self._holdings.make_room(positions * sum(row_bytes), drops=drops):
            return None
        try:
            entry = Banked(model, origin, row_bytes, positions, live=live)
        except MemoryError:
            return None
        self._holdings.used += entry.bytes
        if used is not None:
            entry.use(used)
        self._entries.enter(entry)
        self.filing.go_on()
        return entry

    def keep(self, entry: Banked, tokens: Tokens) -> None:
        """Note that an entry has the rows of these tokens: it can be found and, unless live, dropped.

        They change no more. Parked entries that have nothing but rows of an opening of them go, for nobody
        needs those any more; where they have a file, once this entry has one too. ValueError without tokens,
        with more than it has positions, and for an entry that is closed or kept already.
        """
        self._refuse_closed(entry)
        if entry.kept:
            raise ValueError("the entry is kept already")
        if not 0 < len(tokens) <= entry.positions:
            raise ValueError(f"cannot keep {len(tokens)} tokens in {entry.positions} positions")
        entry.packed, entry.owner = pack(tokens), owner_of(tokens)
        self._entries.shelve(entry)
        self._holdings.replace(entry, lambda other: other.path is None)
        self.filing.go_on()

    def parked(self, entry: Banked) -> None:
        """Note that no stream waits for a live entry any more: it may be dropped. Counts as its last use."""
        self._refuse_closed(entry)
        entry.live = False
        self.touch(entry)
        self.filing.go_on()

    def find(self, model: str, origin: str, tokens: Tokens, minimum: int = 1) -> tuple[Banked, int] | None:
        """Return the kept entry with the longest opening of these tokens, `minimum` or more, and its length.

        Pure. It is of the same owner. Of equals the one with the fewest tokens beyond wins, then the one used
        last.
        """
        return self._entries.find(model, origin, tokens, minimum)

    def holds(self, model: str, origin: str, tokens: Tokens) -> bool:
        """Whether a kept entry has all of these tokens. Pure."""
        return self._entries.holds(model, origin, tokens)

    def fetch(self, entry: Banked, then: Callable[[bool], None]) -> None:
        """Have an entry's rows in memory, out of its file where they are not; who wants them pins it.

        then: called once, told whether they are there: now where they are or where there is no room, as for
        `open`, else by `settle`. They are not where the file was no good; then the entry is `dropped`; nor
        where the entry was closed while it had pins, and its file is gone. ValueError for one that is closed.
        """
        self._refuse_closed(entry)
        if entry.fetching:
            entry.waiting.append(then)
        elif entry.in_memory or entry.path is None or not self.filing.fetch(entry):
            then(entry.in_memory)
        else:
            entry.waiting.append(then)
            self.filing.go_on()

    def settle(self, done: SpillDone) -> Banked:
        """Book what the spill has posted; return the entry whose file was written or read.

        Tells those who wait for its rows.
        """
        entry = self.filing.settle(done)
        if entry.damaged and not entry.closing:
            self._holdings.count_drop(entry)
            self.close(entry)
        waiting, entry.waiting = entry.waiting, []
        for then in waiting:
            then(entry.in_memory)
        if entry.closing:
            self.filing.let_go(entry)
        self.unpin(entry)
        return entry

    def touch(self, entry: Banked) -> None:
        """Count this as an entry's last use. ValueError for one that is closed."""
        self._refuse_closed(entry)
        self._entries.take_out(entry)
        entry.unwritable = False
        entry.use(unix_time())
        self._entries.enter(entry)

    def pin(self, entry: Banked) -> None:
        """Keep an entry's rows there while they are being read, until it is unpinned as often."""
        self._refuse_closed(entry)
        entry.pins += 1

    def unpin(self, entry: Banked) -> None:
        """Take a pin off. ValueError for an entry without one."""
        if not entry.pins:
            raise ValueError("the entry has no pin")
        entry.pins -= 1
        if entry.closing and not entry.pins:
            self._holdings.remove(entry)
        self.filing.go_on()

    def close(self, entry: Banked) -> None:
        """Give an entry's room back. Again does nothing.

        One with pins is not found any more, but what it has in memory is there for those who hold them, until
        the last is off.
        """
        if entry.pins:
            if not entry.closing:
                entry.closing = True
                self._entries.unshelve(entry)
            self.filing.let_go(entry)
        elif entry in self._entries:
            self._holdings.remove(entry)

    def turn_away(self, model: str, origin: str, tokens: Tokens) -> None:
        """Count a parked conversation for which there was no room as one that was dropped."""
        entry = Banked(model, origin, (), 0, live=False)
        entry.packed, entry.owner = pack(tokens), owner_of(tokens)
        self._holdings.count_drop(entry)

    def flush(self, model: str | None = None) -> int:
        """Close all parked entries, of one model or of all; return how many there were."""
        gone = [
            entry for entry in self._entries if entry.kept and not entry.live and model in (None, entry.model)
        ]
        self._holdings.remove_all({entry for entry in gone if not entry.pins})
        for entry in gone:
            if entry.pins:
                self.close(entry)
        return len(gone)

    # ---- Over a restart

    @property
    def saves(self) -> bool:
        """Whether what lies in files outlives the process."""
        return self._saves

    @property
    def filed(self) -> int:
        """How many entries have a file."""
        return len(self._entries.filed)

    @property
    def unfiled(self) -> int:
        """How many entries have none."""
        return len(self._entries.unfiled)

    def rest(self, entry: Banked) -> None:
        """Give up the memory of an entry, if it lies in a file and nobody reads its rows."""
        if entry.droppable and entry.in_memory and entry.path is not None:
            self._holdings.leave_memory(entry)

    def review(self, model: str, origin: str, row_bytes: tuple[int, ...]) -> None:
        """Look through what an earlier process has left of a model that has been loaded.

        Rows of another file, codec or version are forgotten, those that were computed elsewhere ignored; each
        with a line in the log.
        """
        left = [entry for entry in self._entries if entry.found and entry.model == model]
        for entry in left:
            entry.found = False
            strange = strangeness(entry.origin, origin) or (
                "other layers" if entry.row_bytes != row_bytes else ""
            )
            if strange:
                log.warning("model=%s ignored and removed %s: it is of %s", model, entry.path, strange)
                self.close(entry)
            elif entry.origin != origin:
                log.warning(
                    "model=%s ignores %s: its rows were computed by %s, not by %s",
                    model,
                    entry.path,
                    place_of(entry.origin),
                    place_of(origin),
                )

    def _refuse_closed(self, entry: Banked) -> None:
        if entry not in self._entries:
            raise ValueError("the entry is closed")
