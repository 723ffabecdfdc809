"""Matrices and activations on a device, and their product by numpy in the device's one numeric definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from device_planes import read_blocks, read_floats
from hostkernels import calls
from hostkernels.calls import Floats, Planes
from tierd.models.formats import weight_format
from tiny import random_tensor_bytes

SEGMENTS = 8
# A format of each layout.
FORMATS = {
    "q8": "Q8_0",
    "q6": "Q6_K",
    "q5": "Q5_1",
    "q5s": "Q5_0",
    "q4": "Q4_1",
    "q4s": "Q4_0",
    "q3": "Q3_K",
    "q2": "Q2_K",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
}
FLOAT_LAYOUTS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Weights:
    """A random matrix, shape (outputs, columns). values: as the host's kernels read it."""

    layout: str
    planes: Planes
    outputs: int
    columns: int
    values: Floats

    @classmethod
    def random(cls, layout: str, outputs: int, columns: int, seed: int = 0) -> Weights:
        """Make one."""
        entry = weight_format(FORMATS[layout])
        raw = random_tensor_bytes(entry.name, outputs, columns, seed)
        planes = calls.device_planes(entry, outputs, columns)
        calls.device_pack(entry, raw, columns, planes)
        return cls(layout, planes, outputs, columns, calls.device_unpack(entry, planes, outputs, columns))

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.columns // 32)


@dataclass(frozen=True)
class Quantised:
    """Random rows of quantised activations: q, shape (rows, blocks, 32), and scale, shape (rows, blocks)."""

    q: npt.NDArray[np.int8]
    scale: Floats

    @classmethod
    def random(cls, rows: int, blocks: int, seed: int = 0) -> Quantised:
        """Make some; one block is all zeros, one as large as can be."""
        random = np.random.default_rng(seed)
        q = random.integers(-127, 128, (rows, blocks, 32)).astype(np.int8)
        scale = random.uniform(0.01, 1.0, (rows, blocks)).astype(np.float32)
        q[0, 0], scale[0, 0] = 0, 0.0
        q[-1, -1] = 127
        return cls(q, scale)

    @property
    def half_sums(self) -> npt.NDArray[np.int64]:
        """Sums of the first and the last 16 bytes of each block, shape (rows, blocks, 2)."""
        return self.q.reshape(*self.scale.shape, 2, 16).sum(axis=-1, dtype=np.int64)

    @property
    def plane(self) -> npt.NDArray[np.uint32]:
        """The scales' plane, shape (rows, blocks, 2)."""
        sums = self.half_sums.astype(np.int16).view(np.uint16).astype(np.uint32)
        return np.stack([self.scale.view(np.uint32), sums[..., 0] | sums[..., 1] << 16], axis=-1)


def _by_segments(terms: npt.NDArray[Any]) -> Floats:
    """Add terms, shape (..., blocks, terms of a block), to one number each."""
    blocks = terms.shape[-2]
    total = np.zeros(terms.shape[:-2], np.float32)
    for segment in range(SEGMENTS):
        part = np.zeros_like(total)
        for block in range(segment * blocks // SEGMENTS, (segment + 1) * blocks // SEGMENTS):
            for term in range(terms.shape[-1]):
                part = part + terms[..., block, term]
        total = total + part
    return total


def product(weights: Weights, x: Quantised | Floats, terms: int = 1) -> Floats:
    """Return x times the weights, transposed: shape (rows, outputs). Floats have whole blocks.

    terms: rows of x, one below the other, whose sum is a row.
    """
    shape = (weights.layout, weights.planes, weights.outputs, weights.columns)
    if not isinstance(x, Quantised):
        matrix = read_floats(*shape)[: weights.outputs]
        return _by_segments((x[:, None] * matrix[None]).reshape(len(x), weights.outputs, -1, 32))
    matrix = read_blocks(*shape)
    q = matrix.q[: weights.outputs]
    parts = matrix.scale.shape[-1]
    dots = np.einsum(
        "obhi,rbhi->robh",
        q.reshape(*q.shape[:2], parts, -1),
        x.q.astype(np.int64).reshape(*x.scale.shape, parts, -1),
    )
    sums = x.half_sums.reshape(*x.scale.shape, parts, -1).sum(axis=-1)[:, None].astype(np.float32)
    scale, low = matrix.scale[None, : weights.outputs], matrix.low[None, : weights.outputs]
    halves = scale * dots.astype(np.float32) + low * sums
    whole = halves[..., 0] if parts == 1 else halves[..., 0] + halves[..., 1]
    values = x.scale[:, None] * whole  # shape (rows of x, outputs, blocks)
    return _by_segments(np.moveaxis(values.reshape(-1, terms, *values.shape[1:]), 1, -1))
