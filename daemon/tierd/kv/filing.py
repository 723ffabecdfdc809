"""Files of the bank: which entry is written to one next, or fetched out of its own, and what came of that."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tierd.kv.banked import Banked
from tierd.kv.holdings import Holdings
from tierd.kv.row_files import Header, Rows
from tierd.kv.spill import Spill, SpillDone, SpillJob

log = logging.getLogger(__name__)


class Filing:
    """Gives the spill one job at a time, if there is one.

    at_work: whose file is being written or read. problem: why a file could not be written, since all were to
    be saved; "" while all could.
    """

    def __init__(self, holdings: Holdings, spill: Spill | None) -> None:
        self.problem = ""
        self.at_work: Banked | None = None
        self._holdings = holdings
        self._spill = spill
        self._fails = False  # since the last file that was written
        self._saving = False
        self._to_fetch: deque[Banked] = deque()
        self._leaving: set[Banked] = set()  # closed, but a file of theirs is being written or read
        self._to_clear: list[Callable[[str], None]] = []

    def begin_to_save(self) -> None:
        """Write all parked entries to files from now on, those used last first."""
        self._saving, self.problem = True, ""
        for entry in self._holdings.entries.unfiled:
            entry.unwritable = False
        self.go_on()

    def end_saving(self) -> None:
        """Write only what makes room in memory again."""
        self._saving = False

    def go_on(self) -> None:
        """Give the spill its next job when it has none: what somebody waits for first."""
        if self._spill is None or self.at_work is not None:
            return
        if self._to_fetch:
            self._start_fetching(self._spill, self._to_fetch.popleft())
            return
        while (entry := self._next_to_write()) is not None:
            if self._start_writing(self._spill, entry):
                return
            entry.unwritable = True

    def fetch(self, entry: Banked) -> bool:
        """Reserve memory for an entry's rows and let it wait for its turn; False when there is none."""
        if not self._holdings.make_room(entry.bytes):
            return False
        try:
            entry.incoming = entry.new_layers()
        except MemoryError:
            return False
        self._holdings.used += entry.bytes
        entry.pins += 1
        self._to_fetch.append(entry)
        return True

    def settle(self, done: SpillDone) -> Banked:
        """Book what the spill has posted; return the entry whose file was written or read."""
        entry, self.at_work = self.at_work, None
        assert entry is not None
        if done.job.reads:
            self._settle_fetched(entry, done)
        else:
            self._settle_written(entry, done)
        return entry

    def let_go(self, entry: Banked) -> None:
        """Remove the file of a closed entry, once it is neither being written nor read."""
        if entry is self.at_work or entry.fetching:
            self._leaving.add(entry)
            return
        self._leaving.discard(entry)
        if entry.path is not None:
            self._holdings.remove_file(entry)
        if self._spill is not None:
            self._clear(self._spill)

    def when_cleared(self, then: Callable[[str], None]) -> None:
        """Call `then` once the disk has no file of an entry that is closed by now.

        At once without files, else once the spill has done its jobs. It is told why a file could not be
        removed, "" when all is well.
        """
        if self._spill is None:
            then("")
        else:
            self._to_clear.append(then)
            self._clear(self._spill)

    def _next_to_write(self) -> Banked | None:
        """Return the parked entry to be written next, None while half of the memory can be had at once.

        While all are to be saved, that used last.
        """
        holdings, unfiled = self._holdings, self._holdings.entries.unfiled
        if not self._saving and min(holdings.used, holdings.entries.unfiled_bytes) <= holdings.limit // 2:
            return None
        entries = reversed(unfiled) if self._saving else unfiled
        return next((entry for entry in entries if entry.droppable and not entry.unwritable), None)

    def _start_writing(self, spill: Spill, entry: Banked) -> bool:
        job = _job(entry, spill.new_path(), _header(entry), entry.layers, reads=False)
        if not self._holdings.make_file_room(entry, self._holdings.spilled + job.size - spill.limit):
            return False
        self._holdings.spilled += job.size
        entry.pins += 1
        self.at_work = entry
        spill.start(job)
        return True

    def _settle_written(self, entry: Banked, done: SpillDone) -> None:
        entries = self._holdings.entries
        if not done.problem:
            self._fails = False
            entries.take_out(entry)
            entry.path, entry.header, entry.file_bytes = done.job.path, done.job.header, done.job.size
            entries.enter(entry)
            if not entry.closing:
                self._holdings.replace(entry, lambda other: other.path is not None)
            return
        self._holdings.spilled -= done.job.size
        if entry.closing:
            return
        if not self._fails:
            self._fails = True
            log.warning(
                "state.dir: cannot write %s: %s; K/V that memory does not hold is dropped",
                done.job.path,
                done.problem,
            )
        entry.unwritable = not (done.full and self._holdings.make_file_room(entry, done.job.size))
        if entry.unwritable:
            self.problem = f"cannot write {done.job.path}: {done.problem}"

    def _start_fetching(self, spill: Spill, entry: Banked) -> None:
        assert entry.path is not None
        self.at_work = entry
        spill.start(_job(entry, entry.path, entry.header, entry.incoming, reads=True))

    def _settle_fetched(self, entry: Banked, done: SpillDone) -> None:
        layers, entry.incoming = entry.incoming, []
        if not done.problem:
            self._holdings.entries.take_out(entry)
            entry.layers = layers
            self._holdings.entries.enter(entry)
            return
        log.warning(
            "model=%s cannot read %s back: %s; %d positions are computed again",
            entry.model,
            done.job.path,
            done.problem,
            entry.valid,
        )
        self._holdings.used -= entry.bytes
        entry.damaged = entry.dropped = True

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
