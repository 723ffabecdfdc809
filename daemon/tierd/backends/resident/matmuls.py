"""Which form of the matmul a step takes on a device. All give the same bits.

`matvec` reads a matrix once for few rows, its segments side by side; `matmul` computes a tile of outputs and
rows. A device whose loads are dear takes tiles for few rows as well, in the variant that loads least.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierd.backends.vkapi.facts import DeviceFacts

# Rows up to which a matrix is read once for all of them.
FEW_ROWS = (1, 2, 4, 8)
# Outputs that lie side by side in a device layout.
_LANES = 32


@dataclass(frozen=True, slots=True)
class Form:
    """A kernel, what its pipeline is made with, and the tile of one group of it: outputs, rows."""

    kernel: str
    variant: str
    constants: tuple[tuple[str, int], ...]
    outputs: int
    rows: int


def form_of(facts: DeviceFacts, layout: str, *, quantised: bool, rows: int) -> Form:
    """Return the form for steps of at most `rows` rows. quantised: the layout takes quantised activations."""
    few = next((few for few in FEW_ROWS if rows <= few), None)
    if facts.dear_loads:
        # Tiles of few rows stand in one row: narrow ones share a small matrix better among the cores.
        width = 4 if few is None else 2
        return _tile(facts, f"{layout}.shuffle", teams=1, width=width, rows=few or FEW_ROWS[-1])
    width = 4 if quantised else 2
    product = "dot" if facts.fast_dot else "nodot"
    variant = f"{layout}.{product}" if quantised else layout
    if few is None:
        return _tile(facts, variant, teams=8, width=width, rows=4)
    ahead = width if few <= 2 else width // 2
    return Form("matvec", variant, (("ROWS", few), ("AHEAD", ahead)), _LANES, few)


def _tile(facts: DeviceFacts, variant: str, *, teams: int, width: int, rows: int) -> Form:
    constants = (("TEAMS", teams), ("WIDTH", width), ("ROWS", rows), ("SUBGROUP", facts.limits.subgroup))
    return Form("matmul", variant, constants, width * _LANES, teams * rows)
