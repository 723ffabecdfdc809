"""Group counts that depend on what a step holds: known when it is submitted, read by indirect dispatches."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


class Live(enum.IntEnum):
    """A number that changes from step to step."""

    ROWS = 0
    SELECTED = 1
    SCORED = 2
    SPLITS = 3


@dataclass(frozen=True, slots=True)
class Per:
    """One group for every `count` of a live number, rounded up."""

    live: Live
    count: int = 1


Term = int | Per
Grid = tuple[Term, Term, Term]

# Bytes of a grid's groups in a step's block; the last word is unused.
STRIDE = 16


class Grids:
    """The different grids of a program, numbered in the order in which they came."""

    def __init__(self) -> None:
        self._numbers: dict[Grid, int] = {}
        self._live = np.zeros((0, 3), np.intp)
        self._counts = np.zeros((0, 3), np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, grid: Grid) -> int:
        """Return a grid's number, a new one if need be."""
        number = self._numbers.setdefault(grid, len(self._numbers))
        if number == len(self._live):
            # A number that is fixed stands as itself, less than 0.
            live = [0 if isinstance(term, int) else term.live for term in grid]
            counts = [-term if isinstance(term, int) else term.count for term in grid]
            self._live = np.vstack([self._live, np.array(live, np.intp)])
            self._counts = np.vstack([self._counts, np.array(counts, np.int64)])
        return number

    def groups(self, rows: int, selected: int, scored: int, splits: int) -> npt.NDArray[np.int64]:
        """Return the groups of all grids, shape (grids, 3)."""
        live = np.array([rows, selected, scored, splits], np.int64)[self._live]
        return np.where(self._counts < 0, -self._counts, -(-live // np.abs(self._counts)))
