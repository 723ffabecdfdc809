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
from tierd.backends.resident.matmuls import FEW_ROWS
from tierd.backends.resident.regions import TILE
from tierd.backends.vkapi import DeviceFacts

# Most query vectors (heads of a K/V head, times rows) that one group takes, and most of their values.
_VECTORS = 12
_VECTOR_VALUES = 4096
# What attention leaves in memory at most, unless one row does; and most rows that are split.
_PARTIALS_BYTES = 256 << 20
_ROWS = FEW_ROWS[-1]
# Tiles worth a group of their own, and most groups of a row and K/V head.
_TILES = 4
_SPLITS = 64
_QUAD = 16


def lanes_of(facts: DeviceFacts) -> int:
    """Return how many lanes a group of attention has: a part of the order of its sums."""
    return 8 if facts.dear_loads else 64


def ahead_of(facts: DeviceFacts) -> int:
    """Return for how many positions values are asked for at once."""
    return 1 if facts.dear_loads else 4


def queries_of(op: ops.Attend) -> int:
    """Return how many query heads a group takes: a divisor of those that share a K/V head."""
    group = op.heads // op.store.heads
    most = _most_vectors(op)
    return max(count for count in range(1, group + 1) if group % count == 0 and count <= most)


def query_rows_of(op: ops.Attend, rows: int) -> int:
    """Return how many rows share a group in steps of at most so many rows; 1 where splits may be."""
    return 1 if rows <= _ROWS else _most_vectors(op) // queries_of(op)


def groups_of(op: ops.Attend) -> int:
    """Return how many groups a row has without splits."""
    return op.heads // queries_of(op)


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
            groups = max(groups, groups_of(op))
            tile = max(tile, groups_of(op) * _tile_bytes(op, lanes_of(facts)))
        if not tile or region <= _TILES or facts.dear_loads:
            return cls(0, 0, 4)
        tiles = max(region, min(_ROWS * region, _PARTIALS_BYTES // tile))
        return cls(tiles, tiles * tile, _ROWS * groups * 4)

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


def _most_vectors(op: ops.Attend) -> int:
    return min(_VECTORS, _VECTOR_VALUES // op.store.head_size)


def _tile_bytes(op: ops.Attend, lanes: int) -> int:
    """Return the bytes of one tile of one group, as `shaders/attention.comp` lays it out (TILE_QUADS)."""
    queries, quads = queries_of(op), op.store.head_size // 4
    parts, lane_quads = max(lanes // quads, 1), -(-quads // lanes)
    return (-(-queries // parts) * lane_quads * lanes + queries) * _QUAD
