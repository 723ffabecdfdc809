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
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path

from tierd.kv.banked import Banked
from tierd.kv.openings import Tokens, owner_of, pack
from tierd.kv.origin import place_of, strangeness
from tierd.kv.recency import Recency
from tierd.kv.row_files import Header, Rows
from tierd.kv.shelf import Shelf
from tierd.kv.spill import Spill, SpillDone, SpillJob
from tierd.kv.times import unix_time

__all__ = ["Bank", "Banked"]

log = logging.getLogger(__name__)


class Bank:
    """Entries of all models in `limit` bytes of memory. Only the engine thread uses it.

    used: bytes of memory that are reserved. spilled: bytes of files, those being written among them.
    dropped, dropped_positions: parked entries that had to make room or could not be fetched, and their
    positions. problem: why a file could not be written, since all were to be saved, "" while all could.
    on_drop: called with each of them. spill: posts what `settle` is to be called with.
    """

    def __init__(
        self, limit: int, *, on_drop: Callable[[Banked], None] | None = None, spill: Spill | None = None
    ) -> None:
        self.limit = limit
        self.used = 0
        self.spilled = 0
        self.dropped = 0
        self.dropped_positions = 0
        self._on_drop = on_drop
        self._spill = spill
        self._spill_fails = False  # since the last file that was written
        self._entries = Recency()
        self._unfiled, self._spare, self._filed = Recency(), Recency(), Recency()  # see `_enter`
        self._unfiled_bytes = 0  # in memory
        # What can be found, by model, origin and owner.
        self._shelves: defaultdict[tuple[str, str, str], Shelf] = defaultdict(Shelf)
        self._leaving: set[Banked] = set()  # closed, but a file of theirs is being written or read
        self._to_clear: list[Callable[[str], None]] = []
        self._at_work: Banked | None = None  # whose file is being written or read
        self._to_fetch: deque[Banked] = deque()
        self._saving = False
        self.problem = ""
        if spill is not None:
            self._take_up(spill)

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
        if not self._make_room(positions * sum(row_bytes), drops=drops):
            return None
        try:
            entry = Banked(model, origin, row_bytes, positions, live=live)
        except MemoryError:
            return None
        self.used += entry.bytes
        if used is not None:
            entry.use(used)
        self._enter(entry)
        self._go_on()
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
        self._shelf_of(entry).add(entry)
        self._replace(entry, lambda other: other.path is None)
        self._go_on()

    def parked(self, entry: Banked) -> None:
        """Note that no stream waits for a live entry any more: it may be dropped. Counts as its last use."""
        self._refuse_closed(entry)
        entry.live = False
        self.touch(entry)
        self._go_on()

    def find(self, model: str, origin: str, tokens: Tokens, minimum: int = 1) -> tuple[Banked, int] | None:
        """Return the kept entry with the longest opening of these tokens, `minimum` or more, and its length.

        Pure. It is of the same owner. Of equals the one with the fewest tokens beyond wins, then the one used
        last.
        """
        return self._shelves[model, origin, owner_of(tokens)].find(pack(tokens), minimum)

    def holds(self, model: str, origin: str, tokens: Tokens) -> bool:
        """Whether a kept entry has all of these tokens. Pure."""
        return self._shelves[model, origin, owner_of(tokens)].holds(pack(tokens))

    def fetch(self, entry: Banked, then: Callable[[bool], None]) -> None:
        """Have an entry's rows in memory, out of its file where they are not; who wants them pins it.

        then: called once, told whether they are there: now where they are or where there is no room, as for
        `open`, else by `settle`. They are not where the file was no good; then the entry is `dropped`; nor
        where the entry was closed while it had pins, and its file is gone. ValueError for one that is closed.
        """
        self._refuse_closed(entry)
        if entry.fetching:
            entry.waiting.append(then)
        elif entry.in_memory or entry.path is None or not self._start_to_fetch(entry):
            then(entry.in_memory)
        else:
            entry.waiting.append(then)
            self._go_on()

    def settle(self, done: SpillDone) -> Banked:
        """Book what the spill has posted; return the entry whose file was written or read.

        Tells those who wait for its rows.
        """
        entry, self._at_work = self._at_work, None
        assert entry is not None
        if done.job.reads:
            self._settle_fetched(entry, done)
        else:
            self._settle_written(entry, done)
        if entry.closing:
            self._let_file_go(entry)
        self.unpin(entry)
        return entry

    def touch(self, entry: Banked) -> None:
        """Count this as an entry's last use. ValueError for one that is closed."""
        self._refuse_closed(entry)
        self._take_out(entry)
        entry.unwritable = False
        entry.use(unix_time())
        self._enter(entry)

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
            self._remove(entry)
        self._go_on()

    def close(self, entry: Banked) -> None:
        """Give an entry's room back. Again does nothing.

        One with pins is not found any more, but what it has in memory is there for those who hold them, until
        the last is off.
        """
        if entry.pins:
            if not entry.closing:
                entry.closing = True
                self._unshelve(entry)
            self._let_file_go(entry)
        elif entry in self._entries:
            self._remove(entry)

    def turn_away(self, model: str, origin: str, tokens: Tokens) -> None:
        """Count a parked conversation for which there was no room as one that was dropped."""
        entry = Banked(model, origin, (), 0, live=False)
        entry.packed, entry.owner = pack(tokens), owner_of(tokens)
        self._count_drop(entry)

    def flush(self, model: str | None = None) -> int:
        """Close all parked entries, of one model or of all; return how many there were."""
        gone = [
            entry for entry in self._entries if entry.kept and not entry.live and model in (None, entry.model)
        ]
        free = {entry for entry in gone if not entry.pins}
        for entries in (self._entries, self._unfiled, self._spare, self._filed):
            entries.discard_all(free)
        for shelf in self._shelves.values():
            shelf.discard_all(free)
        self._unfiled_bytes = sum(entry.bytes for entry in self._unfiled)
        for entry in gone:
            if entry in free:
                self._end(entry)
            else:
                self.close(entry)
        return len(gone)

    def when_cleared(self, then: Callable[[str], None]) -> None:
        """Call `then` once the disk has no file of an entry that is closed by now.

        At once without files, else by `settle` or a message of the spill. It is told why a file could not be
        removed, "" when all is well.
        """
        if self._spill is None:
            then("")
        else:
            self._to_clear.append(then)
            self._clear(self._spill)

    # ---- Over a restart

    @property
    def saves(self) -> bool:
        """Whether what lies in files outlives the process."""
        return self._spill is not None

    @property
    def filed(self) -> int:
        """How many entries have a file."""
        return len(self._filed)

    @property
    def unfiled(self) -> int:
        """How many entries have none."""
        return len(self._unfiled)

    @property
    def at_work(self) -> bool:
        """Whether a file is being written or read, or will be."""
        return self._at_work is not None

    def begin_to_save(self) -> None:
        """Write all parked entries to files from now on, those used last first."""
        self._saving, self.problem = True, ""
        for entry in self._unfiled:
            entry.unwritable = False
        self._go_on()

    def end_saving(self) -> None:
        """Write only what makes room in memory again."""
        self._saving = False

    def rest(self, entry: Banked) -> None:
        """Give up the memory of an entry, if it lies in a file and nobody reads its rows."""
        if entry.droppable and entry.in_memory and entry.path is not None:
            self._leave_memory(entry)

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

    def _take_up(self, spill: Spill) -> None:
        """Enter the files that an earlier process has left, as far as they may stay."""
        for path, header in sorted(spill.found.items(), key=lambda item: item[1].used):
            entry = Banked.left_in(path, header)
            self._enter(entry)
            self._shelf_of(entry).add(entry)
            self.spilled += entry.file_bytes
        for entry in self.entries:
            if self.spilled > spill.limit:
                self._remove(entry)

    def _replace(self, entry: Banked, going: Callable[[Banked], bool]) -> None:
        """Remove those that are going, that nobody holds on to, and of which an entry has all they have."""
        assert entry.packed is not None
        for other in [*self._shelf_of(entry).openings(entry.packed)]:
            if other is not entry and other.droppable and going(other):
                self._remove(other)

    # ---- Order

    def _enter(self, entry: Banked) -> None:
        """Take an entry into the sets that it belongs to, by when it was used.

        unfiled: in memory, without a file. spare: in memory, with one. filed: with one.
        """
        self._entries.add(entry)
        if entry.path is not None:
            self._filed.add(entry)
        if entry.in_memory and entry.path is not None:
            self._spare.add(entry)
        elif entry.in_memory:
            self._unfiled.add(entry)
            self._unfiled_bytes += entry.bytes

    def _take_out(self, entry: Banked) -> None:
        """Take an entry out of them, before anything changes by which they go."""
        self._entries.discard(entry)
        if entry.path is not None:
            self._filed.discard(entry)
        if entry.in_memory and entry.path is not None:
            self._spare.discard(entry)
        elif entry.in_memory:
            self._unfiled.discard(entry)
            self._unfiled_bytes -= entry.bytes

    def _shelf_of(self, entry: Banked) -> Shelf:
        return self._shelves[entry.model, entry.origin, entry.owner]

    def _unshelve(self, entry: Banked) -> None:
        """Let an entry not be found any more."""
        if entry.packed is not None:
            self._shelf_of(entry).discard(entry)

    # ---- Room

    def _make_room(self, wanted: int, *, drops: bool = True) -> bool:
        """Let parked entries leave memory until `wanted` bytes are free; none when that is not enough.

        Those that stay in a file go first, for nothing is lost with them. drops: others may go, too.
        """
        missing = self.used + wanted - self.limit
        going: list[Banked] = []
        for entries in (self._spare, self._unfiled) if drops else (self._spare,):
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
                self._leave_memory(entry)
        return True

    def _leave_memory(self, entry: Banked) -> None:
        self._take_out(entry)
        self._free(entry)
        self._enter(entry)

    def _free(self, entry: Banked) -> None:
        """Give the memory of an entry back that is in no set."""
        if self._spill is not None:
            self._spill.free(entry.layers)
        entry.layers = []
        self.used -= entry.bytes

    def _drop(self, entry: Banked) -> None:
        self._count_drop(entry)
        self._remove(entry)

    def _count_drop(self, entry: Banked) -> None:
        self.dropped += 1
        self.dropped_positions += entry.valid
        if self._on_drop is not None:
            self._on_drop(entry)

    def _refuse_closed(self, entry: Banked) -> None:
        if entry not in self._entries:
            raise ValueError("the entry is closed")

    def _remove(self, entry: Banked) -> None:
        self._take_out(entry)
        if not entry.closing:
            self._unshelve(entry)
        self._end(entry)

    def _end(self, entry: Banked) -> None:
        """Give back what an entry has that is in no set."""
        if entry.in_memory:
            self._free(entry)
        self._forget_file(entry)
        entry.dropped = True

    # ---- Files

    def _go_on(self) -> None:
        """Give the spill its next job when it has none: what somebody waits for first."""
        if self._spill is None or self._at_work is not None:
            return
        if self._to_fetch:
            self._start_fetching(self._spill, self._to_fetch.popleft())
            return
        while (entry := self._next_to_write()) is not None:
            if self._start_writing(self._spill, entry):
                return
            entry.unwritable = True

    def _next_to_write(self) -> Banked | None:
        """Return the parked entry to be written next, None while half of the memory can be had at once.

        While all are to be saved, that used last.
        """
        if not self._saving and min(self.used, self._unfiled_bytes) <= self.limit // 2:
            return None
        entries = reversed(self._unfiled) if self._saving else self._unfiled
        return next((entry for entry in entries if entry.droppable and not entry.unwritable), None)

    def _start_writing(self, spill: Spill, entry: Banked) -> bool:
        job = _job(entry, spill.new_path(), _header(entry), entry.layers, reads=False)
        if not self._make_file_room(entry, self.spilled + job.size - spill.limit):
            return False
        self.spilled += job.size
        entry.pins += 1
        self._at_work = entry
        spill.start(job)
        return True

    def _settle_written(self, entry: Banked, done: SpillDone) -> None:
        if not done.problem:
            self._spill_fails = False
            self._take_out(entry)
            entry.path, entry.header, entry.file_bytes = done.job.path, done.job.header, done.job.size
            self._enter(entry)
            if not entry.closing:
                self._replace(entry, lambda other: other.path is not None)
            return
        self.spilled -= done.job.size
        if entry.closing:
            return
        if not self._spill_fails:
            self._spill_fails = True
            log.warning(
                "state.dir: cannot write %s: %s; K/V that memory does not hold is dropped",
                done.job.path,
                done.problem,
            )
        entry.unwritable = not (done.full and self._make_file_room(entry, done.job.size))
        if entry.unwritable:
            self.problem = f"cannot write {done.job.path}: {done.problem}"

    def _start_to_fetch(self, entry: Banked) -> bool:
        """Reserve memory for an entry's rows and let it wait for its turn; False when there is none."""
        if not self._make_room(entry.bytes):
            return False
        try:
            entry.incoming = entry.new_layers()
        except MemoryError:
            return False
        self.used += entry.bytes
        entry.pins += 1
        self._to_fetch.append(entry)
        return True

    def _start_fetching(self, spill: Spill, entry: Banked) -> None:
        assert entry.path is not None
        self._at_work = entry
        spill.start(_job(entry, entry.path, entry.header, entry.incoming, reads=True))

    def _settle_fetched(self, entry: Banked, done: SpillDone) -> None:
        layers, entry.incoming = entry.incoming, []
        if not done.problem:
            self._take_out(entry)
            entry.layers = layers
            self._enter(entry)
        else:
            log.warning(
                "model=%s cannot read %s back: %s; %d positions are computed again",
                entry.model,
                done.job.path,
                done.problem,
                entry.valid,
            )
            self.used -= entry.bytes
            entry.damaged = entry.dropped = True
            if not entry.closing:
                self._count_drop(entry)
                self.close(entry)
        waiting, entry.waiting = entry.waiting, []
        for then in waiting:
            then(entry.in_memory)

    def _make_file_room(self, entry: Banked, missing: int) -> bool:
        """Remove files of entries used before this one, of `missing` bytes; none when that is not enough."""
        going: list[Banked] = []
        for other in self._filed:
            if missing <= 0 or other.order >= entry.order:
                break
            if other.droppable:
                going.append(other)
                missing -= other.file_bytes
        if missing > 0:
            return False
        for other in going:
            if other.in_memory:
                self._remove_file(other)
            else:
                self._drop(other)
        return True

    def _remove_file(self, entry: Banked) -> None:
        self._take_out(entry)
        self._forget_file(entry)
        self._enter(entry)

    def _forget_file(self, entry: Banked) -> None:
        """Remove the file, if there is one, of an entry that is in no set."""
        if entry.path is None:
            return
        assert self._spill is not None
        self._spill.remove(entry.path)
        self.spilled -= entry.file_bytes
        entry.path, entry.header, entry.file_bytes = None, b"", 0

    def _let_file_go(self, entry: Banked) -> None:
        """Remove the file of a closed entry, once it is neither being written nor read."""
        if entry is self._at_work or entry.fetching:
            self._leaving.add(entry)
            return
        self._leaving.discard(entry)
        if entry.path is not None:
            self._remove_file(entry)
        if self._spill is not None:
            self._clear(self._spill)

    def _clear(self, spill: Spill) -> None:
        """Pass on who waits for removals, once all of them are asked for."""
        if not self._leaving:
            for then in self._to_clear:
                spill.clear(then)
            self._to_clear.clear()


def _header(entry: Banked) -> bytes:
    header = Header(
        model=entry.model,
        origin=entry.origin,
        owner=entry.owner,
        row_bytes=entry.row_bytes,
        tokens=entry.packed or b"",
        used=int(1000 * entry.used),
    )
    return header.pack()


def _job(entry: Banked, path: Path, header: bytes, layers: list[Rows], *, reads: bool) -> SpillJob:
    """Return the job that moves an entry's valid rows to or from its file."""
    rows = tuple(layer[: entry.valid] for layer in layers)
    return SpillJob(path=path, header=header, rows=rows, reads=reads)
