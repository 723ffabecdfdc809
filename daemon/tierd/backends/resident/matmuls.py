"""Which form of the matmul a step takes on a device. All give the same bits, but for one.

`matvec` reads a matrix once for few rows, its segments side by side; `matmul` computes a tile of outputs and
rows. A device whose loads are dear takes the variants that load least: `matvec_unrolled`, whose pipelines are
made for one number of blocks, or tiles where it would be too long.

On a device that was opened with its cooperative matrices (gpu.cooperative_matrix) all tiles are computed by
`matmul_coop`, which adds in an order of its own: there, a row's bits depend on whether its step has few rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tierd.backends.vkapi.choose import choose_matrix
from tierd.backends.vkapi.facts import DeviceFacts, MatrixShape
from tierd.errors import UnsupportedModelError

# Rows up to which a matrix is read once for all of them.
FEW_ROWS = (1, 2, 4, 8)
# Outputs that lie side by side in a device layout.
_LANES = 32
# Most products of a block and a row that code without loops is written out for.
_UNROLLED = 64
# The tile of a group on cooperative matrices, and the most lanes and subgroups it has: sums leave by way of
# shared memory, one matrix of each subgroup at a time.
_MATRIX_ROWS, _MATRIX_OUTPUTS = 64, 128
_MATRIX_LANES, _MATRIX_TEAMS = 256, 16


@dataclass(frozen=True, slots=True)
class Form:
    """A kernel, what its pipeline is made with, and the tile of one group of it: outputs, rows.

    subgroup: lanes that its subgroups must have, 0 where any number will do.
    """

    kernel: str
    variant: str
    constants: tuple[tuple[str, int], ...]
    outputs: int
    rows: int
    subgroup: int = 0


def check_outputs(facts: DeviceFacts, outputs: int) -> None:
    """Raise UnsupportedModelError for a matrix of more rows than a grid of any form has groups for."""
    most = facts.limits.groups[0] * _LANES
    if outputs > most:
        raise UnsupportedModelError(f"a matrix has {outputs} rows, and {facts.name} takes {most} at a time")


def form_of(facts: DeviceFacts, layout: str, *, terms: int, blocks: int, rows: int) -> Form:
    """Return the form for steps of at most `rows` rows.

    terms: quantised ones that the layout takes activations in, 0 for floats. blocks: of a row of the matrix.
    """
    few = next((few for few in FEW_ROWS if rows <= few), None)
    lines = max(terms, 1)  # of a row
    matrix = choose_matrix(facts)
    if matrix is not None and few is None:
        return _on_matrices(facts, layout, matrix, lines)
    if facts.dear_loads:
        return _of_dear_loads(facts, f"{layout}.shuffle", blocks, few, lines)
    width = 4 if terms else 2
    product = "dot" if facts.fast_dot else "nodot"
    variant = f"{layout}.{product}" if terms else layout
    if few is None:
        return _tile("matmul", variant, facts, teams=8, width=width, rows=4, lines=lines)
    ahead = width if few * lines <= 2 else width // 2
    return Form("matvec", variant, (("ROWS", few), ("AHEAD", ahead), ("TERMS", lines)), _LANES, few)


def _on_matrices(facts: DeviceFacts, layout: str, matrix: MatrixShape, lines: int) -> Form:
    """Return the form on cooperative matrices, its tile shared among subgroups, two or four of them down."""
    subgroup = facts.limits.subgroup
    teams = min(_MATRIX_LANES // subgroup, _MATRIX_TEAMS)
    rows = _MATRIX_ROWS // (2 if teams <= 8 else 4)
    constants = {
        "LANES": teams * subgroup,
        "TERMS": lines,
        "TILE_ROWS": _MATRIX_ROWS,
        "TILE_OUTPUTS": _MATRIX_OUTPUTS,
        "TEAM_ROWS": rows,
        "TEAM_OUTPUTS": _MATRIX_ROWS * _MATRIX_OUTPUTS // (teams * rows),
        "M": matrix.m,
        "N": matrix.n,
        "K": matrix.k,
    }
    variant = f"{layout}.coop"
    return Form("matmul_coop", variant, tuple(constants.items()), _MATRIX_OUTPUTS, _MATRIX_ROWS, subgroup)


def _of_dear_loads(facts: DeviceFacts, variant: str, blocks: int, few: int | None, lines: int) -> Form:
    rows = few or FEW_ROWS[-1]
    teams = next(teams for teams in (8, 4, 2, 1) if blocks % teams == 0)
    if rows * blocks // teams <= _UNROLLED:
        form = _tile("matvec_unrolled", variant, facts, teams=teams, width=2, rows=rows, lines=lines)
        return replace(form, constants=(*form.constants, ("BLOCKS", blocks)), rows=rows)
    # Tiles of few rows stand in one row: narrow ones share a small matrix better among the cores.
    return _tile("matmul", variant, facts, teams=1, width=4 if few is None else 2, rows=rows, lines=lines)


def _tile(
    kernel: str, variant: str, facts: DeviceFacts, *, teams: int, width: int, rows: int, lines: int
) -> Form:
    tile = (("TEAMS", teams), ("WIDTH", width), ("ROWS", rows), ("TERMS", lines))
    constants = (*tile, ("SUBGROUP", facts.limits.subgroup))
    return Form(kernel, variant, constants, width * _LANES, teams * rows)
