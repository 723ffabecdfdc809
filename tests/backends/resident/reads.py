"""How many bytes of weights, K and V a step's dispatches read, by their constants and the step's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tierd.backends.resident import manifest
from tierd.backends.resident.assembly import Dispatch
from tierd.backends.resident.grid import Live, Per
from tierd.models.formats import KV_CODECS

TILE = 64
BLOCK = 32
SCALE = 2
# Of a step: each row's position and region.
Rows = Sequence[tuple[int, int]]


def weight_bytes(dispatches: Sequence[Dispatch], rows: int) -> int:
    """Return the bytes of weights that are read for so many rows."""
    total = 0
    for dispatch in dispatches:
        match dispatch.grid:
            case (_, Per(_, count), _) if dispatch.weights:
                total += -(-rows // count) * dispatch.weights
    return total


def row_bytes(dispatches: Sequence[Dispatch], rows: Rows) -> int:
    """Return the bytes of K and V that are read for these rows."""
    return sum(
        _attention_bytes(dispatch, rows) for dispatch in dispatches if dispatch.shader.kernel == "attention"
    )


def _attention_bytes(dispatch: Dispatch, rows: Rows) -> int:
    kernel, constants = manifest.kernel(dispatch.shader.kernel), dict(dispatch.shader.constants)
    push = dict(zip([name for name, _ in kernel.push], kernel.layout.unpack(dispatch.push), strict=True))
    groups, per_row, _ = dispatch.grid
    assert isinstance(groups, int)
    assert per_row == Per(Live.ROWS)
    assert groups == push["kv_heads"] * -(-constants["GROUP"] // constants["QUERIES"])
    size, codec = constants["HEAD_SIZE"], KV_CODECS[dispatch.shader.variant]
    scales = 0 if codec.name == "f16" else size // BLOCK * SCALE
    quants = codec.row_bytes(size) - scales
    total = 0
    for first, last in _runs(rows, constants["QUERY_ROWS"]):
        for start, end in _tiles(first, last, push["window"]):
            if constants["UNITS"]:
                keys = values = value_scales = end - start
                key_scales = _rounded(start, end, 2)
            else:
                # Each lane for itself: keys in strips, values four by four, the scales of the whole tile.
                keys = key_scales = _rounded(start, end, 4 * constants["LANES"])
                values, value_scales = _rounded(start, end, 4), TILE
            total += (keys + values) * quants + (key_scales + value_scales) * scales
    return groups * total


def _runs(rows: Rows, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of each run of rows that a group takes."""
    first = 0
    for row in range(1, len(rows) + 1):
        follows = row < len(rows) and rows[row] == (rows[row - 1][0] + 1, rows[row - 1][1])
        if not follows or row % most == 0:
            yield rows[first][0], rows[row - 1][0]
            first = row


def _tiles(first: int, last: int, window: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of each tile that a run sees, from the first to behind the last."""
    lowest = max(0, first + 1 - window) if window else 0
    for start in range(lowest // TILE * TILE, last + 1, TILE):
        yield max(lowest, start), min(last + 1, start + TILE)


def _rounded(start: int, end: int, unit: int) -> int:
    """Return how many positions lie in the whole units that a range touches."""
    return -(-end // unit) * unit - start // unit * unit
