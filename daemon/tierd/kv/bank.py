"""The host bank: K/V rows outside of any executor, of all models, in bounded memory.

An entry has the rows of one conversation. Its room is reserved when it is opened; then its rows are copied
in, slice by slice; once they are all there it is kept, with its tokens, and can be found. Entries of live
streams stay until they are closed. Parked ones make room for others, the least recently used first.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from tierd.kv.openings import TOKEN_BYTES, longest_opening, pack, unpack

Rows = npt.NDArray[np.uint8]


class Banked:
    """The rows of one conversation. The bank alone changes it; whoever opened it writes its `layers`.

    layers: for each row store, shape (positions, its row's bytes); memory is touched as it is written.
    live: a stream will need it again. pins: who reads its rows. closing: it goes with the last of them.
    dropped: it had to make room, or was closed: its rows are gone.
    """

    __slots__ = (
        "closing",
        "dropped",
        "layers",
        "live",
        "model",
        "origin",
        "packed",
        "pins",
        "positions",
        "row_bytes",
    )

    def __init__(
        self, model: str, origin: str, row_bytes: tuple[int, ...], positions: int, *, live: bool
    ) -> None:
        self.model = model
        self.origin = origin
        self.row_bytes = row_bytes
        self.positions = positions
        self.live = live
        self.layers: list[Rows] = [np.empty((positions, count), np.uint8) for count in row_bytes]
        self.packed: bytes | None = None  # tokens, once it is kept
        self.pins = 0
        self.closing = False
        self.dropped = False

    @property
    def bytes(self) -> int:
        """What its rows take."""
        return self.positions * sum(self.row_bytes)

    @property
    def kept(self) -> bool:
        """Whether all of its rows are there, so that it can be found."""
        return self.packed is not None

    @property
    def tokens(self) -> list[int]:
        """The tokens whose rows it has, none before it is kept."""
        return unpack(self.packed or b"")

    @property
    def valid(self) -> int:
        """How many of its positions have rows that can be found."""
        return len(self.packed or b"") // TOKEN_BYTES

    @property
    def droppable(self) -> bool:
        """Whether it may make room for others."""
        return self.kept and not self.live and not self.pins


class Bank:
    """Entries of all models in `limit` bytes. Only the engine thread uses it.

    used: bytes that are reserved. dropped, dropped_positions: parked entries that had to make room, and their
    positions. on_drop: called with each of them.
    """

    def __init__(self, limit: int, *, on_drop: Callable[[Banked], None] | None = None) -> None:
        self.limit = limit
        self.used = 0
        self.dropped = 0
        self.dropped_positions = 0
        self._on_drop = on_drop
        self._entries: dict[Banked, None] = {}  # in order of last use, the oldest first

    @property
    def entries(self) -> tuple[Banked, ...]:
        """All that are open, the least recently used first."""
        return tuple(self._entries)

    def open(
        self, model: str, origin: str, row_bytes: tuple[int, ...], positions: int, *, live: bool
    ) -> Banked | None:
        """Reserve room for so many positions; parked entries are dropped to make it.

        origin: what computed the rows; nothing else may go on with what is found. None when there is no room,
        and then nothing is dropped, or when the system refuses so much memory.
        """
        if not self._make_room(positions * sum(row_bytes)):
            return None
        try:
            entry = Banked(model, origin, row_bytes, positions, live=live)
        except MemoryError:
            return None
        self.used += entry.bytes
        self._entries[entry] = None
        return entry

    def keep(self, entry: Banked, tokens: Ordered[int]) -> None:
        """Note that an entry has the rows of these tokens: it can be found and, unless live, dropped.

        ValueError without tokens, with more than it has positions, and for one that is closed.
        """
        self._refuse_closed(entry)
        if not 0 < len(tokens) <= entry.positions:
            raise ValueError(f"cannot keep {len(tokens)} tokens in {entry.positions} positions")
        entry.packed = pack(tokens)

    def parked(self, entry: Banked) -> None:
        """Note that no stream waits for a live entry any more: it may be dropped. Counts as its last use."""
        self._refuse_closed(entry)
        entry.live = False
        self.touch(entry)

    def find(
        self, model: str, origin: str, tokens: Ordered[int], minimum: int = 1
    ) -> tuple[Banked, int] | None:
        """Return the kept entry with the longest opening of these tokens, `minimum` or more, and its length.

        Pure. Of equals the one with the fewest tokens beyond wins, then the one used last.
        """
        held = (
            (entry, entry.packed)
            for entry in reversed(self._entries)
            if entry.packed is not None and entry.model == model and entry.origin == origin
        )
        return longest_opening(pack(tokens), held, minimum)

    def touch(self, entry: Banked) -> None:
        """Count this as an entry's last use. ValueError for one that is closed."""
        self._refuse_closed(entry)
        del self._entries[entry]
        self._entries[entry] = None

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

    def close(self, entry: Banked) -> None:
        """Give an entry's room back, once nobody reads it; it is not found any more. Again does nothing."""
        if entry.pins:
            entry.closing = True
            entry.packed = None
        elif entry in self._entries:
            self._remove(entry)

    def flush(self, model: str | None = None) -> int:
        """Close all that might be dropped, of one model or of all; return how many that were."""
        gone = [entry for entry in self._entries if entry.droppable and model in (None, entry.model)]
        for entry in gone:
            self.close(entry)
        return len(gone)

    def _make_room(self, wanted: int) -> bool:
        """Drop what must be dropped so that `wanted` bytes are free; nothing when that is not enough."""
        missing = self.used + wanted - self.limit
        going: list[Banked] = []
        for entry in self._entries:
            if missing <= 0:
                break
            if entry.droppable:
                going.append(entry)
                missing -= entry.bytes
        if missing > 0:
            return False
        for entry in going:
            self._drop(entry)
        return True

    def _drop(self, entry: Banked) -> None:
        self._remove(entry)
        self.dropped += 1
        self.dropped_positions += entry.valid
        if self._on_drop is not None:
            self._on_drop(entry)

    def _remove(self, entry: Banked) -> None:
        del self._entries[entry]
        self.used -= entry.bytes
        entry.dropped = True
        entry.layers = []

    def _refuse_closed(self, entry: Banked) -> None:
        if entry.closing or entry not in self._entries:
            raise ValueError("the entry is closed")
