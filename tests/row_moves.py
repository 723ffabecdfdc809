"""Rows of whole sequences as bytes, out of any executor and into any, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import Executor

Rows = list[npt.NDArray[np.uint8]]


def read(executor: Executor, pages: Sequence[int], *edges: int) -> Rows:
    """Return the rows of all layers between the first and the last edge, read in pieces that end at edges."""
    layers = []
    for layer, width in enumerate(executor.row_bytes):
        rows = np.zeros((edges[-1] - edges[0], width), np.uint8)
        for start, stop in itertools.pairwise(edges):
            executor.read_rows(layer, pages, start, stop, rows[start - edges[0] : stop - edges[0]])
        layers.append(rows)
    return layers


def write(executor: Executor, pages: Sequence[int], rows: Rows, *edges: int) -> None:
    """Write rows of all layers, in pieces that end at edges."""
    for layer, each in enumerate(rows):
        for start, stop in itertools.pairwise(edges):
            executor.write_rows(layer, pages, start, stop, each[start - edges[0] : stop - edges[0]])


def junk(executor: Executor, positions: int, seed: int = 0) -> Rows:
    """Return random rows."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (positions, width), np.uint8) for width in executor.row_bytes]


def same(found: Rows, expected: Rows) -> None:
    """Assert that rows are the same, byte for byte."""
    for layer, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(layer, other)
