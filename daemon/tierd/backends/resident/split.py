"""How attention over a long context is split among groups, so that one row can fill a device.

With one split a group goes through all tiles of its row. With several each takes a contiguous part of them,
leaves every tile's result in memory, and the one that comes last combines them: the same sums in the same
order, so the number of splits changes no bit. That memory is bounded, and shared by as many rows as a
recording is made for: the fewer these are, the more tiles of each it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tierd.backends.resident import ops
from tierd.backends.resident.attention import SINGLE_ROWS, form_of
from tierd.backends.resident.matmuls import FEW_ROWS
from tierd.backends.resident.regions import TILE
from tierd.backends.vkapi import DeviceFacts

# What attention leaves in memory at most, unless one row does.
_PARTIALS_BYTES = 256 << 20
# Tiles worth a group of their own, and most groups of a row and K/V head.
_TILES = 4
_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Split:
    """What splits of a model need.

    tiles: that all rows of a step have room for together, 0 where none is split. partials, counters: bytes.
    A software device has few cores, which one row fills.
    """

    tiles: int
    partials: int
    counters: int

    @classmethod
    def of(cls, attends: Iterable[ops.Attend], positions: int, facts: DeviceFacts) -> Split:
        """Work it out for the attention ops of a model; positions: of a region."""
        region = positions // TILE
        tile, groups = 0, 0
        for op in attends:
            form = form_of(op, facts, 1)
            of_row = op.store.heads * form.parts
            groups = max(groups, of_row)
            tile = max(tile, of_row * form.tile_bytes)
        if not tile or region <= _TILES or facts.dear_loads:
            return cls(0, 0, 4)
        tiles = max(region, min(SINGLE_ROWS * region, _PARTIALS_BYTES // tile))
        return cls(tiles, tiles * tile, SINGLE_ROWS * groups * 4)

    def tiles_of(self, rows: int) -> int:
        """Return how many tiles of each row there is room for in steps of at most so many rows.

        It is the same for all numbers of rows that share a recording, whose groups keep this distance.
        """
        few = next((few for few in FEW_ROWS if rows <= few), None)
        return self.tiles // few if few else 0

    def count(self, rows: int, last_position: int) -> int:
        """Return in how many parts a step of so many rows is split, by the highest of their positions."""
        tiles = last_position // TILE + 1
        if tiles > self.tiles_of(rows):
            return 1
        return min(_SPLITS, max(1, tiles // _TILES))
