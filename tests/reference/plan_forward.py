"""Runs a checked plan in plain numpy over one whole sequence: what its ops mean, as directly as can be.

Weights are dequantised with the `gguf` package, a slab of rows at a time. K/V rows stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tierd.models.gguf import GGUFFile
from tierd.models.plan import (
    Activation,
    Add,
    Attention,
    Embed,
    Gate,
    MatMul,
    Norm,
    Op,
    Plan,
    Rope,
    RopeSpec,
    SelectRows,
    StoreRows,
)

Floats = npt.NDArray[np.floating[Any]]

_SLAB_ROWS = 8192


def plan_forward(
    plan: Plan,
    file: GGUFFile,
    tokens: Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> Floats:
    """Return the logits at the positions `rows` (None: all), shape (rows, vocabulary), in `dtype`."""
    wanted = np.arange(len(tokens)) if rows is None else np.asarray(rows)
    run = _Run(file, np.asarray(tokens), wanted, dtype)
    for op in plan.ops:
        run.step(op)
    return run.buffers[plan.logits]


class _Run:
    def __init__(
        self, file: GGUFFile, tokens: npt.NDArray[np.intp], wanted: npt.NDArray[np.intp], dtype: Any
    ) -> None:
        self.file = file
        self.tokens = tokens
        self.wanted = wanted
        self.dtype = dtype
        self.buffers: dict[str, Floats] = {}
        self.stored: dict[int, tuple[Floats, Floats]] = {}

    def step(self, op: Op) -> None:
        buffers = self.buffers
        match op:
            case Embed():
                buffers[op.out] = self.rows(op.weight, self.tokens) * self.dtype(op.scale)
            case Norm():
                x = buffers[op.src].reshape(len(buffers[op.src]), op.heads, -1)
                x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dtype(op.eps)) * self.vector(op.weight)
                buffers[op.out] = x.reshape(len(x), -1)
            case MatMul():
                product = np.concatenate([buffers[op.src] @ slab.T for slab in self.slabs(op.weight)], axis=1)
                buffers[op.out] = product if op.bias is None else product + self.vector(op.bias)
            case Rope():
                buffers[op.buffer] = self.turn(buffers[op.buffer], op.heads, op.spec)
            case StoreRows():
                self.stored[op.layer] = buffers[op.k], buffers[op.v]
            case Attention():
                buffers[op.out] = self.attend(op)
            case Gate():
                buffers[op.out] = _ACTIVATIONS[op.activation](buffers[op.gate]) * buffers[op.up]
            case Add():
                buffers[op.out] = buffers[op.a] + buffers[op.b]
            case SelectRows():
                self.buffers = {op.out: buffers[op.src][self.wanted]}

    def turn(self, x: Floats, heads: int, spec: RopeSpec) -> Floats:
        angle = np.arange(len(x))[:, None] * np.asarray(spec.frequencies)
        cos, sin = ((spec.magnitude * f(angle)).astype(self.dtype)[:, None] for f in (np.cos, np.sin))
        pairs = len(spec.frequencies)
        x = x.reshape(len(x), heads, -1).copy()
        if spec.interleaved:
            first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        else:
            first, second = slice(0, pairs), slice(pairs, 2 * pairs)
        a, b = x[..., first].copy(), x[..., second].copy()
        x[..., first], x[..., second] = a * cos - b * sin, a * sin + b * cos
        return x.reshape(len(x), -1)

    def attend(self, op: Attention) -> Floats:
        q = self.buffers[op.q].reshape(len(self.tokens), op.heads, -1)
        k, v = (rows.reshape(len(rows), -1, q.shape[-1]) for rows in self.stored[op.layer])
        out = np.empty_like(q)
        position = np.arange(len(q))
        masked = position[None, :] > position[:, None]
        if op.window:
            masked |= position[None, :] <= position[:, None] - op.window
        for head in range(op.heads):
            shared = head * k.shape[1] // op.heads
            scores = q[:, head] @ k[:, shared].T * self.dtype(op.scale)
            scores[masked] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, shared]
        return out.reshape(len(q), -1)

    def rows(self, name: str, wanted: npt.NDArray[np.intp]) -> Floats:
        """Return some rows of a matrix, dequantised."""
        tensor = self.file.tensor(name)
        kind = gguf.GGMLQuantizationType(tensor.format.id)
        blocks = self.file.data(name).reshape(tensor.shape[0], -1)[wanted]
        return gguf.quants.dequantize(blocks, kind).astype(self.dtype)

    def slabs(self, name: str) -> Iterator[Floats]:
        rows = np.arange(self.file.tensor(name).shape[0])
        for start in range(0, len(rows), _SLAB_ROWS):
            yield self.rows(name, rows[start : start + _SLAB_ROWS])

    def vector(self, name: str) -> Floats:
        tensor = self.file.tensor(name)
        kind = gguf.GGMLQuantizationType(tensor.format.id)
        return gguf.quants.dequantize(self.file.data(name), kind).astype(self.dtype)


def _silu(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


def _gelu(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)))


_ACTIVATIONS = {Activation.SILU: _silu, Activation.GELU: _gelu}
