"""A stream's own rows in the bank, to be brought into pages of some executor."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from tierd.kv.bank import Bank, Banked


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
