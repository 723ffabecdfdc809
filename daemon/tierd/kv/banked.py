"""An entry of the host bank: the K/V rows of one conversation, in memory or in a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tierd.kv.openings import TOKEN_BYTES, unpack
from tierd.kv.row_files import Header, Rows
from tierd.kv.times import unix_time

_uses = itertools.count()


class Banked:
    """The rows of one conversation. The bank alone changes it; whoever opened it writes its `layers`.

    layers: for each row store, shape (positions, its row's bytes); memory is touched as it is written. Empty
    while the rows are in a file only, or are being fetched from there.
    owner: whose conversation it is, once it is kept; see `openings.Packed`.
    live: a stream will need it again. pins: who reads its rows. closing: it goes with the last of them.
    dropped: it had to make room, or was closed, or could not be fetched (`damaged`), or another has its rows
    and more: its own are gone.
    incoming: where `layers` are being fetched to. waiting: who is called then.
    used: when that was last, seconds since the epoch. order: by that; no two have the same.
    path, header, file_bytes: of its file, once that is complete; header: what it begins with.
    found: an earlier process has left it, and its model has not been loaded since.
    unwritable: there will be no file, at least until it is used again.
    """

    __slots__ = (
        "closing",
        "damaged",
        "dropped",
        "file_bytes",
        "found",
        "header",
        "incoming",
        "layers",
        "live",
        "model",
        "order",
        "origin",
        "owner",
        "packed",
        "path",
        "pins",
        "positions",
        "row_bytes",
        "unwritable",
        "used",
        "waiting",
    )

    def __init__(
        self,
        model: str,
        origin: str,
        row_bytes: tuple[int, ...],
        positions: int,
        *,
        live: bool,
        in_memory: bool = True,
    ) -> None:
        """in_memory: with memory for its rows; MemoryError when the system refuses so much."""
        self.model = model
        self.origin = origin
        self.row_bytes = row_bytes
        self.positions = positions
        self.live = live
        self.layers = self.new_layers() if in_memory else []
        self.packed: bytes | None = None  # tokens, once it is kept
        self.owner = ""
        self.pins = 0
        self.closing = False
        self.dropped = False
        self.damaged = False
        self.incoming: list[Rows] = []
        self.waiting: list[Callable[[bool], None]] = []
        self.use(unix_time())
        self.path: Path | None = None
        self.header = b""
        self.file_bytes = 0
        self.found = False
        self.unwritable = False

    @classmethod
    def left_in(cls, path: Path, header: Header) -> Banked:
        """Return a parked entry of rows that lie in a file with that header; its time is none to come."""
        entry = cls(
            header.model, header.origin, header.row_bytes, header.positions, live=False, in_memory=False
        )
        entry.packed, entry.owner, entry.found = header.tokens, header.owner, True
        entry.use(min(entry.used, header.used / 1000))
        entry.path, entry.header = path, header.pack()
        entry.file_bytes = header.file_bytes
        return entry

    def use(self, when: float) -> None:
        """Note a use, seconds since the epoch, as the last one."""
        self.used = when
        self.order = (when, next(_uses))

    def new_layers(self) -> list[Rows]:
        """Return memory for its rows."""
        return [np.empty((self.positions, count), np.uint8) for count in self.row_bytes]

    @property
    def bytes(self) -> int:
        """What its rows take in memory."""
        return self.positions * sum(self.row_bytes)

    @property
    def kept(self) -> bool:
        """Whether all of its rows are there, so that it can be found."""
        return self.packed is not None and not self.closing

    @property
    def tokens(self) -> list[int]:
        """The tokens whose rows it has, none before it is kept."""
        return unpack(self.packed or b"")

    @property
    def valid(self) -> int:
        """How many of its positions have rows that can be found."""
        return len(self.packed or b"") // TOKEN_BYTES

    @property
    def in_memory(self) -> bool:
        """Whether its `layers` are there."""
        return bool(self.layers)

    @property
    def fetching(self) -> bool:
        """Whether its rows are on their way back into memory."""
        return bool(self.incoming)

    @property
    def droppable(self) -> bool:
        """Whether it may make room for others."""
        return self.kept and not self.live and not self.pins
