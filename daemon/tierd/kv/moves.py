"""Rows of K/V on their way between an executor's pages and memory outside, in slices between steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import MOVE_BYTES, Executor
from tierd.core import Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """Positions start to stop - 1 of one layer."""

    layer: int
    start: int
    stop: int


# What is moved between two steps: together at most MOVE_BYTES.
Slice = tuple[Part, ...]


@dataclass(slots=True, eq=False)
class Move:
    """Positions start to stop - 1 of every layer, into pages (`inward`) or out of them.

    sequence: who waits for it, None when nobody does. layers: the rows outside, of these positions and
    perhaps some behind, by layer, shape (positions, bytes of one).
    finish: called on the engine thread once, told whether all of it has been moved. left: slices to come.
    """

    sequence: Sequence | None
    pages: tuple[int, ...]
    layers: Ordered[npt.NDArray[np.uint8]]
    start: int
    stop: int
    inward: bool
    finish: Callable[[bool], None]
    left: deque[Slice] = field(init=False)

    def __post_init__(self) -> None:
        self.left = deque(self._slices())

    def run(self, parts: Slice, executor: Executor) -> None:
        """Move a slice. Called on the executor's runner thread; raises what its row calls do."""
        for part in parts:
            rows = self.layers[part.layer][part.start - self.start : part.stop - self.start]
            if self.inward:
                executor.write_rows(part.layer, self.pages, part.start, part.stop, rows)
            else:
                executor.read_rows(part.layer, self.pages, part.start, part.stop, rows)

    def _slices(self) -> Iterator[Slice]:
        parts: list[Part] = []
        room = MOVE_BYTES
        for part, size in self._parts():
            if parts and size > room:
                yield tuple(parts)
                parts, room = [], MOVE_BYTES
            parts.append(part)
            room -= size
        if parts:
            yield tuple(parts)

    def _parts(self) -> Iterator[tuple[Part, int]]:
        """Yield all parts, each what one call may move, with their bytes."""
        for layer, rows in enumerate(self.layers):
            most = max(1, MOVE_BYTES // rows.shape[1])
            for start in range(self.start, self.stop, most):
                part = Part(layer, start, min(start + most, self.stop))
                yield part, (part.stop - part.start) * rows.shape[1]
