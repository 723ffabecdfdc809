"""Which form of attention a step takes on a device. All give the same bits; see `shaders/attention.comp`.

On a GPU a group reads K and V for all query heads that share a K/V head, and for several rows of a chunk, as
many as its shared memory and its lanes' registers have room for. On a device whose loads are dear a group is
as small as its subgroups, and its lanes read for themselves.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tierd.backends.resident import ops
from tierd.backends.resident.matmuls import FEW_ROWS
from tierd.backends.resident.regions import TILE
from tierd.backends.vkapi.facts import DeviceFacts

# Most rows of a step each of which has groups of its own, which may be split.
SINGLE_ROWS = FEW_ROWS[-1]
_QUAD = 16
_FLOAT = 4
_UNIT = 16
# Values of a unit at least: the more of them, the fewer units a row has.
_UNIT_VALUES = 8
# Bytes of shared memory that a group has less than.
_SHARED = 32 << 10
# Most query vectors (heads of a K/V head, times rows) of a group with several rows, and that a lane scores.
_CHUNK_VECTORS = 32
_SCORED = 24
# Values of the output that are worth a lane, most that a lane has registers for, and most lanes.
_LANE_VALUES = 32
_MOST_LANE_VALUES = 64
_LANES = 512
# Units that a group asks for at once, most of them by one lane.
_STAGED = 512
_UNITS = (8, 4, 2, 1)
# Query values that are kept in shared memory, and those for which it has room where the queries are not.
_HELD_VALUES = 4096
_OUTPUT_VALUES = 1024
# Where loads are dear: lanes, and most vectors of a row's group and of a chunk's. More take long to compile.
_DEAR_LANES = 8
_DEAR_VECTORS = 32
_DEAR_CHUNK_VECTORS = 12


@dataclass(frozen=True, slots=True)
class Form:
    """What a pipeline is made with; see `shaders/attention.comp`. parts: groups of a row and K/V head."""

    head_size: int
    group: int
    parts: int
    queries: int
    query_rows: int
    lanes: int
    held: int
    scored: int
    units: int

    @property
    def constants(self) -> dict[str, int]:
        """Specialisation constants, that of the output's form aside."""
        return {
            "HEAD_SIZE": self.head_size,
            "LANES": self.lanes,
            "GROUP": self.group,
            "QUERIES": self.queries,
            "QUERY_ROWS": self.query_rows,
            "HELD": self.held,
            "SCORED": self.scored,
            "UNITS": self.units,
        }

    @property
    def vectors(self) -> int:
        """Query vectors of a group."""
        return self.queries * self.query_rows

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile that a group leaves in memory (TILE_QUADS)."""
        quads = self.head_size // 4
        sharers, lane_quads = max(self.lanes // quads, 1), -(-quads // self.lanes)
        return (-(-self.vectors // sharers) * lane_quads * self.lanes + self.vectors) * _QUAD

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory at most, whatever the codec."""
        weights = self.vectors * (TILE // 4 + 2) * _QUAD
        scales = self.lanes * self.units if self.units else TILE * self.head_size // 32
        staged = self.lanes * self.units * _UNIT
        quantise = 2 * self.lanes * _FLOAT
        held = self.held * self.head_size * _FLOAT
        return held + weights + staged + (scales + TILE) * _FLOAT + quantise + _QUAD


def form_of(op: ops.Attend, facts: DeviceFacts, rows: int) -> Form:
    """Return the form for steps of at most `rows` rows."""
    fitted = ((parts, _fitted(op, facts, parts, 1)) for parts in itertools.count(1))
    parts, form = next((parts, form) for parts, form in fitted if form is not None)
    if rows <= SINGLE_ROWS:
        return form
    most = _DEAR_CHUNK_VECTORS if facts.dear_loads else _CHUNK_VECTORS
    for query_rows in range(most // form.queries, 1, -1):
        several = _fitted(op, facts, parts, query_rows)
        if several is not None and several.held == several.vectors:
            return several
    return form


def _fitted(op: ops.Attend, facts: DeviceFacts, parts: int, query_rows: int) -> Form | None:
    """Return the form for so many groups of a row and K/V head, None where it does not fit the device."""
    group, size = op.heads // op.store.heads, op.store.head_size
    queries = -(-group // parts)
    vectors = queries * query_rows

    def form(lanes: int, held: int, scored: int, units: int) -> Form:
        return Form(size, group, -(-group // queries), queries, query_rows, lanes, held, scored, units)

    if facts.dear_loads:
        dear = form(_DEAR_LANES, vectors, vectors, 0)
        return dear if vectors <= _DEAR_VECTORS and dear.shared_bytes < _SHARED else None
    teams = max(-(-vectors // _SCORED), -(-vectors * size // (_LANE_VALUES * TILE)))
    lanes = min(teams * TILE, _LANES, facts.limits.invocations // TILE * TILE)
    scored = -(-vectors // (lanes // TILE))
    if scored > _SCORED or vectors * size > lanes * _MOST_LANE_VALUES:
        return None
    holdings = [vectors] if vectors * size <= _HELD_VALUES else []
    holdings += [max(_OUTPUT_VALUES // size, 1)]
    least = max(TILE, 4 * -(-size // _UNIT_VALUES))
    for held, units in itertools.product(holdings, _UNITS):
        fitted = form(lanes, min(held, vectors), scored, units)
        if least <= lanes * units <= _STAGED and fitted.shared_bytes < _SHARED:
            return fitted
    return None
