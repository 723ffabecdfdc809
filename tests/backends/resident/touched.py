"""Which bytes of device memory a dispatch reads and writes, by its push struct and the shaders' descriptions.

Nothing here comes from what dispatches declare. Memory is told in units of 16 bytes. Of what no dispatch
writes (weights, tables, what the host has put there) the first unit stands for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tierd.backends.resident import grid, manifest
from tierd.backends.resident.assembly import Dispatch

UNIT = 16
FLOAT = 4
BLOCK = 32
BLOCK_SCALES = 8
Things = list[set[int]]


@dataclass(frozen=True)
class Live:
    """How many rows a step has, of how many something is wanted, of how many logits are; and regions."""

    rows: int
    selected: int
    scored: int
    regions: int


class Touch:
    """A dispatch's push fields and constants, and what they are found to name so far. K and V are f16."""

    def __init__(self, dispatch: Dispatch, live: Live) -> None:
        kernel = manifest.kernel(dispatch.shader.kernel)
        values = kernel.layout.unpack(dispatch.push)
        self.push = dict(zip([name for name, _ in kernel.push], values, strict=True))
        self.constants = dict(dispatch.shader.constants)
        self.variant = dispatch.shader.variant
        self.live = live
        rows = dispatch.grid[1]
        assert isinstance(rows, grid.Per)
        counts = {grid.Live.ROWS: live.rows, grid.Live.SELECTED: live.selected, grid.Live.SCORED: live.scored}
        self.rows = counts[rows.live]
        self.read: Things = []
        self.written: Things = []

    def marks(self, *fields: str) -> None:
        """Read what these point to, the first unit of it; 0 points to nothing."""
        self.read.append({self.push[field] // UNIT for field in fields if self.push[field]})

    def span(self, field: str, size: int) -> set[int]:
        """Return the units of so many bytes."""
        address = self.push[field]
        assert address
        return set(range(address // UNIT, -(-(address + size) // UNIT)))

    def floats(self, field: str, width: int, *, rows: int | None = None, stride: str = "") -> set[int]:
        """Return the units of rows of `width` floats."""
        step = self.push[stride or f"{field}_stride"] * FLOAT
        address = self.push[field]
        assert address
        assert address % UNIT == step % UNIT == 0
        return {
            unit
            for row in range(self.rows if rows is None else rows)
            for unit in range(
                (address + row * step) // UNIT, -(-(address + row * step + width * FLOAT) // UNIT)
            )
        }

    def quantised(self, quants: str, scales: str, width: int) -> set[int]:
        """Return the units of rows of `width` quantised values, in as many terms as the dispatch has them."""
        blocks = self.rows * self.constants.get("TERMS", 1) * -(-width // BLOCK)
        return self.span(quants, blocks * BLOCK) | self.span(scales, blocks * BLOCK_SCALES)

    def keys_and_values(self, kv_heads: int) -> set[int]:
        """Return the units of K and V of one layer, all regions."""
        assert self.variant == "f16"
        size = self.live.regions * kv_heads * self.push["positions"] * self.constants["HEAD_SIZE"] * 2
        return self.span("k_quants", size) | self.span("v_quants", size)

    def scratch(self) -> set[int]:
        """Return the first units of what attention keeps between its groups."""
        return self.span("partials", UNIT) | self.span("counters", UNIT)


def of(dispatch: Dispatch, live: Live) -> tuple[Things, Things]:
    """Return what a dispatch reads and what it writes, thing by thing, each as its units."""
    touch = Touch(dispatch, live)
    _KERNELS[dispatch.shader.kernel](touch)
    return touch.read, touch.written


def scratch_of(attention: Dispatch, live: Live) -> set[int]:
    """Return the units of what an attention keeps between its groups."""
    return Touch(attention, live).scratch()


def _embed(touch: Touch) -> None:
    touch.marks("quants", "high", "scales", "step")
    touch.read += [touch.span("sampled", touch.live.scored * FLOAT)]
    touch.written += [touch.floats("out", touch.push["blocks"] * BLOCK)]


def _norm(touch: Touch) -> None:
    width, flags = touch.push["width"], touch.constants
    touch.marks("post_weight", "weight")
    touch.read += [touch.floats("src", width)]
    if flags["ADD"]:
        touch.read += [touch.floats("residual", width)]
    if flags["ADD"] or flags["POST"]:
        touch.written += [touch.floats("sum_out", width, stride="sum_stride")]
    if flags["OUT_FLOAT"]:
        touch.written += [touch.floats("out", width)]
    if flags["TERMS"]:
        touch.written += [touch.quantised("quants", "scales", width)]


def _product(touch: Touch) -> None:
    width, outputs = touch.push["blocks"] * BLOCK, touch.push["outputs"]
    touch.marks("quants", "high", "scales", "bias")
    if touch.push["x_scales"]:
        touch.read += [touch.quantised("x_quants", "x_scales", width)]
    else:
        touch.read += [touch.floats("x_quants", width, stride="x_stride")]
    if touch.push["residual"]:
        touch.read += [touch.floats("residual", outputs)]
    touch.written += [touch.floats("out", outputs)]


def _heads(touch: Touch) -> None:
    size, heads, kv_heads = (touch.constants[name] for name in ("HEAD_SIZE", "HEADS", "KV_HEADS"))
    touch.marks("q_norm", "k_norm", "rope", "step")
    q = touch.floats("q", heads * size)
    touch.read += [q, touch.floats("k", kv_heads * size), touch.floats("v", kv_heads * size)]
    touch.written += [q, touch.keys_and_values(kv_heads)]


def _attention(touch: Touch) -> None:
    width = touch.push["kv_heads"] * touch.constants["GROUP"] * touch.constants["HEAD_SIZE"]
    touch.marks("step")
    touch.read += [touch.floats("q", width), touch.keys_and_values(touch.push["kv_heads"])]
    if touch.constants["OUT_QUANTISED"]:
        touch.written += [touch.quantised("out", "out_scales", width)]
    else:
        touch.written += [touch.floats("out", width)]
    # Of that it reads only what it has written. It has no name of its own: that of its output stands for it.
    touch.written[-1] |= touch.scratch()


def _gate(touch: Touch) -> None:
    width = touch.push["width"]
    touch.read += [touch.floats("gate", width), touch.floats("up", width)]
    if touch.constants["OUT_FLOAT"]:
        touch.written += [touch.floats("out", width)]
    if touch.constants["OUT_QUANTISED"]:
        touch.written += [touch.quantised("quants", "scales", width)]


def _quantise(touch: Touch) -> None:
    width = touch.push["width"]
    touch.read += [touch.floats("x", width)]
    touch.written += [touch.quantised("quants", "scales", width)]


def _add(touch: Touch) -> None:
    width = touch.push["width"]
    touch.read += [touch.floats("a", width), touch.floats("b", width)]
    touch.written += [touch.floats("out", width)]


def _select(touch: Touch) -> None:
    width = touch.push["width"]
    touch.marks("selection")
    touch.read += [touch.floats("src", width, rows=touch.live.rows)]
    touch.written += [touch.floats("out", width)]


def _parts(touch: Touch) -> set[int]:
    """Return the units that candidates.comp leaves to draw.comp."""
    parts = touch.rows * -(-touch.push["vocabulary"] // 4096)
    return touch.span("peaks", parts * 64 * 4) | touch.span("masses", parts * 16)


def _candidates(touch: Touch) -> None:
    touch.marks("draws", "changes")
    touch.read += [touch.floats("logits", touch.push["vocabulary"], stride="stride")]
    touch.written += [_parts(touch)]


def _draw(touch: Touch) -> None:
    touch.marks("draws", "changes")
    touch.read += [touch.floats("logits", touch.push["vocabulary"], stride="stride"), _parts(touch)]
    touch.written += [touch.span("picked", touch.rows * (16 + 64 * 8))]
    touch.written += [touch.span("sampled", touch.rows * FLOAT)]


_KERNELS: dict[str, Callable[[Touch], None]] = {
    "embed": _embed,
    "norm": _norm,
    "matvec": _product,
    "matvec_unrolled": _product,
    "matmul": _product,
    "heads": _heads,
    "attention": _attention,
    "gate": _gate,
    "quantise": _quantise,
    "add": _add,
    "select": _select,
    "candidates": _candidates,
    "draw": _draw,
}
