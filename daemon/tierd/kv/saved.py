"""A stream's own rows in the bank: out of the pages of one executor, into those of another."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from tierd.core import Sequence
from tierd.kv.bank import Bank, Banked
from tierd.kv.home import Home
from tierd.kv.moves import Move
from tierd.kv.openings import opening_of

# The origin of rows of several.
_MIXED = "mixed"


class SavedEntry:
    """The first positions of an entry; see `core.SavedRows`. They stay in the bank until it is closed.

    Then a live entry is closed with it, or, if it is kept, stays there as a parked one.
    """

    def __init__(self, bank: Bank, entry: Banked, positions: int) -> None:
        self._bank = bank
        self._entry = entry
        self._positions = positions
        self._open = True
        bank.pin(entry)

    @property
    def origin(self) -> str:
        """See SavedRows."""
        return self._entry.origin

    @property
    def positions(self) -> int:
        """See SavedRows."""
        return self._positions

    @property
    def layers(self) -> Ordered[npt.NDArray[np.uint8]]:
        """See SavedRows."""
        return self._entry.layers

    def fetch(self, then: Callable[[bool], None]) -> None:
        """See SavedRows."""
        self._bank.fetch(self._entry, then)

    def close(self) -> None:
        """See SavedRows."""
        if not self._open:
            return
        self._open = False
        self._bank.unpin(self._entry)
        if not self._entry.live:
            return
        if self._entry.kept:
            self._bank.parked(self._entry)
        else:
            self._bank.close(self._entry)


def evacuate(
    home: Home, bank: Bank, sequence: Sequence, finish: Callable[[bool], None], *, keep: bool
) -> None:
    """Have the rows of a stream's fed tokens brought out of its pages, to be its `saved`.

    No step may be writing them. finish: called on the engine thread, told whether they are there: at once
    where the bank has no room. keep: later streams may find them, unless they are of more than one origin.
    """
    model, positions = sequence.request.model, sequence.fed
    origin = _MIXED if sequence.mixed else home.origin
    entry = bank.open(model, origin, home.executor.row_bytes, positions, live=True) if positions else None
    if entry is None:
        finish(False)
        return

    def out(moved: bool) -> None:
        sequence.moves -= 1
        if moved:
            if keep and sequence.request.shares and not sequence.mixed:
                bank.keep(entry, opening_of(sequence, positions))
            sequence.saved = SavedEntry(bank, entry, positions)
        else:
            bank.close(entry)
        finish(moved)

    sequence.moves += 1
    home.moves.append(
        Move(sequence, tuple(sequence.pages), entry.layers, 0, positions, inward=False, finish=out)
    )
