"""K and V of one layer as the device keeps them (shaders/codec.glsl), and what is put there, for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu import Gpu
from hostkernels.calls import Bytes, Floats
from tierd.models.formats import KVCodec

STRIP = 32
_BLOCK = 32
_UNIT = 16
_SCALE = 2
ROPE_FINE = 256
GPU_CODECS = ("f16", "q8_0", "tq4")


class Regions:
    """Regions of `positions` positions each, every byte `fill`.

    push: the addresses of the four planes, by push field. Rows have the host codec's bytes.
    """

    def __init__(
        self,
        gpu: Gpu,
        codec: KVCodec,
        *,
        regions: int,
        heads: int,
        head_size: int,
        positions: int,
        fill: int = 0,
    ) -> None:
        self.blocks = 0 if codec.name == "f16" else head_size // _BLOCK
        self.positions = positions
        units = (codec.row_bytes(head_size) - self.blocks * _SCALE) // _UNIT
        of_head = (regions, heads)
        shapes = {
            "k_quants": (*of_head, positions // STRIP, units, STRIP, _UNIT),
            "k_scales": (*of_head, positions // STRIP, max(self.blocks, 1), STRIP, _SCALE),
            "v_quants": (*of_head, positions, units, _UNIT),
            "v_scales": (*of_head, positions, max(self.blocks, 1), _SCALE),
        }
        self._planes = {name: gpu.place(np.full(shape, fill, np.uint8)) for name, shape in shapes.items()}
        self.push = {name: plane.address for name, plane in self._planes.items()}

    def row(self, which: str, region: int, head: int, position: int) -> Bytes:
        """Return a row's bytes. which: "k" or "v"."""
        units, scales = self._views(which, region, head, position)
        if not self.blocks:
            return units.reshape(-1).copy()
        return np.concatenate([scales, units.reshape(self.blocks, -1)], axis=1).reshape(-1)

    def put(self, which: str, region: int, head: int, position: int, row: Bytes) -> None:
        """Set a row's bytes."""
        units, scales = self._views(which, region, head, position)
        if self.blocks:
            row = row.reshape(self.blocks, -1)
            scales[...] = row[:, :_SCALE]
            row = row[:, _SCALE:]
        units[...] = row.reshape(units.shape)

    def copy(self) -> list[Bytes]:
        """Return the bytes of all planes."""
        return [plane.values.copy() for plane in self._planes.values()]

    def _views(self, which: str, region: int, head: int, position: int) -> tuple[Bytes, Bytes]:
        """A row's units, shape (units, 16), and its scales, shape (blocks, 2)."""
        quants, scales = (
            self._planes[f"{which}_{plane}"].values[region, head] for plane in ("quants", "scales")
        )
        if which == "v":
            return quants[position], scales[position]
        strip, lane = divmod(position, STRIP)
        return quants[strip, :, lane], scales[strip, :, lane]


def step_block(rows: list[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """Return the block of a step with these (position, region) rows."""
    block = np.zeros((1 + len(rows), 4), np.int32)
    block[0, 0] = len(rows)
    block[1:, 1:3] = rows
    return block


def rope_table(frequencies: npt.NDArray[np.float64], positions: int, magnitude: float = 1.0) -> Floats:
    """Return the table that shaders/rope.glsl reads, shape (rows, pairs, 2)."""
    coarse = np.arange(-(-positions // ROPE_FINE)) * ROPE_FINE
    angles = np.concatenate([np.arange(ROPE_FINE), coarse])[:, None] * frequencies
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    table[ROPE_FINE:] *= magnitude
    return table.astype(np.float32)


def codec_signs(size: int) -> npt.NDArray[np.float64]:
    """Return the fixed signs that a rotating codec begins with."""
    h = (np.arange(1, size + 1) * 0x9E3779B9) & 0xFFFFFFFF
    h = ((h ^ h >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    return np.where(h >> 31, -1.0, 1.0)


def rotated(
    codec: KVCodec, heads: npt.NDArray[np.float64], signs: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return heads, on the last axis, in the codec's basis; `signs` are multiplied in first."""
    if codec.name == "f16":
        return heads
    size = heads.shape[-1] if codec.name == "tq4" else _BLOCK
    transform = np.ones((1, 1))
    while len(transform) < size:
        transform = np.block([[transform, transform], [transform, -transform]])
    runs = (heads * signs).reshape(*heads.shape[:-1], -1, size)
    return (runs @ (transform / np.sqrt(size))).reshape(heads.shape)
