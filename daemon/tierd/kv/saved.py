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


class SavedEntry:
    """The first positions of an entry; see `core.SavedRows`. They stay in the bank until it is closed."""

    def __init__(self, bank: Bank, entry: Banked, positions: int, *, spend: bool) -> None:
        """spend: the entry is closed with it."""
        self._bank = bank
        self._entry = entry
        self._positions = positions
        self._spend = spend
        self._open = True
        bank.pin(entry)

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
        if self._spend:
            self._bank.close(self._entry)


def evacuate(home: Home, bank: Bank, origin: str, sequence: Sequence, finish: Callable[[bool], None]) -> None:
    """Have the rows of a stream's fed tokens brought out of its pages, to be its `saved`.

    No step may be writing them. origin: of the rows. finish: called on the engine thread, told whether they
    are there: at once where the bank has no room.
    """
    row_bytes = home.executor.row_bytes
    model, positions = sequence.request.model, sequence.fed
    entry = bank.open(model, origin, row_bytes, positions, live=True) if positions else None
    if entry is None:
        finish(False)
        return

    def out(moved: bool) -> None:
        sequence.moves -= 1
        if moved:
            sequence.saved = SavedEntry(bank, entry, positions, spend=True)
        else:
            bank.close(entry)
        finish(moved)

    sequence.moves += 1
    home.moves.append(
        Move(sequence, tuple(sequence.pages), entry.layers, 0, positions, inward=False, finish=out)
    )
