"""Tiny models compiled for rails, and products that numpy computes where a device would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tiny
from tierd.backends import library
from tierd.backends.host import HostBackend
from tierd.backends.rails.backend import RailsBackend
from tierd.backends.rails.cuts import BLOCK, HEAD, Group
from tierd.backends.rails.executor import RailsExecutor
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

Words = npt.NDArray[np.uint32]
TOKENS = tuple(int(token) for token in np.random.default_rng(0).integers(3, 300, 90))
MAX_ROWS = 96
LEAST = 8


def write(folder: Path, format: str = "Q4_1", **options: Any) -> Path:
    """Write a model whose rows are whole blocks of every format."""
    name = "-".join([format, *(f"{key}{value}" for key, value in options.items())])
    shape = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512, **options}
    return tiny.write_llama(folder / f"{name}.gguf", format=format, **shape)


def compiled(path: Path, host: HostBackend) -> RailsExecutor:
    """Compile a file; nothing of it is on a device yet."""
    with GGUFFile.open(path) as file:
        return RailsBackend(host, LEAST).compile(
            build_plan(file), file, codec=KV_CODECS["f32"], pages=6, max_rows=MAX_ROWS
        )


def batch(tokens: tuple[int, ...] = TOKENS, start: int = 0, wanted: int | None = None) -> Batch:
    """Return a batch of one sequence, with the logits of its last rows, or of all."""
    rows = range(len(tokens))[-wanted if wanted is not None else None :]
    return Batch((Chunk(tokens, start, (4, 1), tuple(rows)),))


def weights_of(executor: RailsExecutor, group: Group) -> list[npt.NDArray[np.float32]]:
    """Return the matrices of a group, as the host has them."""
    _, lib = library.load()
    matrices = []
    for matmul in group.matmuls:
        packed = executor.host._weights[matmul.weight]
        matrix = np.empty((matmul.outputs, matmul.columns), np.float32)
        for row in range(matmul.outputs):
            lib.hk_unpack_row(
                matmul.layout,
                library.pointer(packed, "void *"),
                matmul.columns,
                row,
                library.pointer(matrix[row], "float *"),
            )
        matrices.append(matrix)
    return matrices


def activations(values: Words, scales: Words, group: Group, rows: int) -> npt.NDArray[np.float32]:
    """Return what lies there for a group, shape (rows, columns)."""
    matmul = group.matmuls[0]
    width = matmul.blocks * BLOCK
    if not matmul.parts:
        return values[: rows * width].view(np.float32).reshape(rows, width)[:, : matmul.columns]
    quants = values[: rows * width // 4].view(np.int8).reshape(rows, matmul.blocks, BLOCK)
    floats = scales[: rows * matmul.blocks].view(np.float32).reshape(rows, matmul.blocks, 1)
    return (quants * floats).reshape(rows, width)[:, : matmul.columns]


class NumpyProducts:
    """Stands for `Products`: the same products by numpy. error: of the next of them. lost: see there."""

    def __init__(self, executor: RailsExecutor) -> None:
        self.error: Exception | None = None
        self.lost = ""
        self.computed: list[tuple[Group, int]] = []
        self.closed = 0
        self._executor = executor
        self._x = np.zeros(MAX_ROWS * 1024, np.uint32)

    def values(self) -> Words:
        return self._x[HEAD:]

    def scales(self, group: Group, rows: int) -> Words:
        return self._x[group.scales_at(rows) :]

    def compute(self, group: Group, rows: int) -> list[Words]:
        if self.error is not None:
            raise self.error
        self.computed.append((group, rows))
        x = activations(self.values(), self.scales(group, rows), group, rows)
        return [(x @ weight.T).view(np.uint32).ravel() for weight in weights_of(self._executor, group)]

    def close(self) -> None:
        self.closed += 1
