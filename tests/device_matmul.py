"""Matrices and activations on a device, and their product by numpy in the device's one numeric definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from device_planes import read_blocks, read_floats
from gpu import Gpu
from hostkernels import calls
from hostkernels.calls import Floats, Planes
from tierd.backends.resident.matmuls import Form
from tierd.models.formats import weight_format
from tiny import random_tensor_bytes

SEGMENTS = 8
_BEYOND = np.float32(-7.0)
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


@dataclass(frozen=True)
class Case:
    """A product, with what is added to it, and what must come out."""

    weights: Weights
    x: Quantised | Floats
    bias: Floats | None
    residual: Floats | None
    expected: Floats
    terms: int = 1

    @classmethod
    def random(
        cls, layout: str, outputs: int, columns: int, rows: int, *, added: bool, terms: int = 1
    ) -> Case:
        """Make one. added: with a bias and a residual."""
        weights = Weights.random(layout, outputs, columns, seed=outputs)
        random = np.random.default_rng(rows)
        x: Quantised | Floats
        if layout in FLOAT_LAYOUTS:
            x = random.standard_normal((rows, weights.blocks * 32), np.float32)
        else:
            x = Quantised.random(rows * terms, weights.blocks, seed=rows)
        expected = product(weights, x, terms)
        bias = residual = None
        if added:
            bias = random.standard_normal(outputs, np.float32)
            residual = random.standard_normal((rows, outputs + 8), np.float32)
            expected = expected + bias + residual[:, :outputs]
        return cls(weights, x, bias, residual, expected, terms)

    def run(self, gpu: Gpu, form: Form) -> Floats:
        """Return what a form computes, after a check that it writes nothing else."""
        rows, outputs = self.expected.shape
        x = self.x
        if isinstance(x, Quantised):
            x_quants, x_scales, x_stride = gpu.place(x.q), gpu.place(x.plane).address, 0
        else:
            wider = np.full((rows, x.shape[1] + 32), np.float32(np.nan))
            wider[:, : x.shape[1]] = x
            x_quants, x_scales, x_stride = gpu.place(wider), 0, wider.shape[1]
        quants, high, scales = (
            gpu.place(plane).address if plane.size else 0 for plane in self.weights.planes
        )
        out = gpu.place(np.full((rows + 1, outputs + 32), _BEYOND))
        gpu.run(
            form.kernel,
            form.variant,
            (-(-outputs // form.outputs), -(-rows // form.rows), 1),
            dict(form.constants),
            form.subgroup,
            quants=quants,
            high=high,
            scales=scales,
            x_quants=x_quants.address,
            x_scales=x_scales,
            bias=0 if self.bias is None else gpu.place(self.bias).address,
            residual=0 if self.residual is None else gpu.place(self.residual).address,
            out=out.address,
            blocks=self.weights.blocks,
            outputs=outputs,
            x_stride=x_stride,
            out_stride=outputs + 32,
            residual_stride=0 if self.residual is None else self.residual.shape[1],
            rows=rows,
        )
        assert (out.values[rows:] == _BEYOND).all()
        assert (out.values[:, outputs:] == _BEYOND).all()
        return out.values[:rows, :outputs].copy()
