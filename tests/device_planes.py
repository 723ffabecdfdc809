"""Matrices in a device's layouts, read from the planes' description alone (hostkernels/device_layouts.c)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hostkernels.calls import Bytes, Floats, Planes

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Blocks:
    """A quantised matrix, value = scale * q + low.

    q: shape (rows, blocks, 32), int64. scale, low: (rows, blocks, n), float32, each of 32 / n columns.
    """

    q: Array
    scale: Floats
    low: Floats

    def values(self) -> Floats:
        """Return all values, shape (rows, 32 * blocks)."""
        columns = 32 // self.scale.shape[-1]
        scale, low = (np.repeat(numbers, columns, axis=-1) for numbers in (self.scale, self.low))
        return (scale * self.q.astype(np.float32) + low).reshape(len(self.q), -1)


def _nibbles(units: Array) -> Array:
    return np.concatenate([units & 15, units >> 4], axis=-1).astype(np.int64)


def _bits(words: Array) -> Array:
    """(..., 1) words -> (..., 32) bits."""
    return (words >> np.arange(32, dtype=np.uint32) & 1).astype(np.int64)


def _pairs(words: Array) -> Array:
    """(..., 2) words -> (..., 32) pairs of bits."""
    pairs = words[..., None] >> np.arange(0, 32, 2, dtype=np.uint32) & 3
    return pairs.reshape(*words.shape[:-1], 32).astype(np.int64)


def _halves(words: Array) -> Array:
    """(..., 1) words -> (..., 2) halves."""
    return np.ascontiguousarray(words).view("<f2")


def _read(plane: Bytes, rows: int, columns: int, dtype: str, units: int = 1) -> Array:
    """Return what each row has of each block, shape (rows of whole groups, blocks, numbers)."""
    groups, blocks = -(-rows // 32), -(-columns // 32)
    records = plane.reshape(groups, blocks, units, 32, -1).transpose(0, 3, 1, 2, 4)
    return np.ascontiguousarray(records).reshape(groups * 32, blocks, -1).view(dtype)


def read_floats(layout: str, planes: Planes, rows: int, columns: int) -> Floats:
    """Return the values of all whole groups and blocks of a float layout."""
    match layout:
        case "f32":
            values = _read(planes.quants, rows, columns, "<f4", 8)
        case "f16":
            values = _read(planes.quants, rows, columns, "<f2", 4).astype(np.float32)
        case _:
            wide = _read(planes.quants, rows, columns, "<u2", 4).astype(np.uint32) << 16
            values = wide.view(np.float32)
    return values.reshape(len(values), -1)


def read_blocks(layout: str, planes: Planes, rows: int, columns: int) -> Blocks:
    """Return all whole groups and blocks of a quantised layout."""

    def read(plane: Bytes, dtype: str, units: int = 1) -> Array:
        return _read(plane, rows, columns, dtype, units)

    low = None
    match layout:
        case "q8":
            q, scale = read(planes.quants, "i1", 2).astype(np.int64), read(planes.scales, "<f2")
        case "q4" | "q5":
            q, both = _nibbles(read(planes.quants, "u1")), read(planes.scales, "<f2")
            scale, low = both[..., :1], both[..., 1:]
        case "q4s" | "q5s":
            q, scale = _nibbles(read(planes.quants, "u1")), read(planes.scales, "<f2")
            low = scale.astype(np.float32) * np.float32(-8 if layout == "q4s" else -16)
        case "q6":
            q, scale = _nibbles(read(planes.quants, "u1")), read(planes.scales, "<f2")
            q = q + 16 * _pairs(read(planes.high, "<u4")) - 32
        case "q3":
            words = read(planes.quants, "<u4")
            q, scale = _pairs(words[..., :2]) + 4 * _bits(words[..., 2:3]) - 4, _halves(words[..., 3:])
        case _:
            words = read(planes.quants, "<u4")
            q, scale, low = _pairs(words[..., :2]), _halves(words[..., 2:3]), _halves(words[..., 3:])
    if layout in ("q5", "q5s"):
        q = q + 16 * _bits(read(planes.high, "<u4"))
    if low is None:
        low = np.zeros_like(scale)
    return Blocks(q, scale.astype(np.float32), low.astype(np.float32))
