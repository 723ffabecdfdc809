"""The kernels' functions over numpy arrays, for tests."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.host import ThreadPool
from tierd.models.formats import KVCodec, WeightFormat

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@functools.cache
def pool(threads: int) -> ThreadPool:
    """Return a pool that lives as long as the tests."""
    return ThreadPool(threads)


def _void(array: npt.NDArray[Any]) -> Any:
    return library.pointer(array, "void *")


def _float(array: Floats) -> Any:
    return library.pointer(array, "float *")


def dequantise(weight_format: WeightFormat, raw: Bytes, columns: int) -> Floats:
    """Return the values of rows of a file's bytes."""
    _, lib = library.load()
    values = np.empty((len(raw), columns), np.float32)
    lib.hk_dequantise(weight_format.id, _void(np.ascontiguousarray(raw)), values.size, _float(values))
    return values


def layout_of(weight_format: WeightFormat) -> int:
    """Return the number of the layout that a format is packed into."""
    _, lib = library.load()
    return int(lib.hk_layout_of(weight_format.id))


def pack(weight_format: WeightFormat, raw: Bytes, rows: int, columns: int, threads: int = 1) -> Bytes:
    """Return a packed matrix."""
    _, lib = library.load()
    layout = layout_of(weight_format)
    packed = library.aligned_empty(lib.hk_packed_bytes(layout, rows, columns))
    packed[:] = 0
    source = np.ascontiguousarray(raw)
    lib.hk_pack(pool(threads).handle, weight_format.id, _void(source), rows, columns, _void(packed))
    return packed


def unpack(weight_format: WeightFormat, packed: Bytes, rows: int, columns: int) -> Floats:
    """Return all rows of a packed matrix."""
    _, lib = library.load()
    values = np.empty((rows, columns), np.float32)
    for row in range(rows):
        lib.hk_unpack_row(layout_of(weight_format), _void(packed), columns, row, _float(values[row]))
    return values


class Planes(NamedTuple):
    """A matrix in a device's layout."""

    quants: Bytes
    high: Bytes
    scales: Bytes


def device_planes(weight_format: WeightFormat, rows: int, columns: int, fill: int = 0) -> Planes:
    """Return planes for a matrix, every byte `fill`."""
    _, lib = library.load()
    layout = layout_of(weight_format)
    sizes = [lib.hk_device_plane_bytes(layout, rows, columns, plane) for plane in range(lib.HK_PLANES)]
    return Planes(*(np.full(size, fill, np.uint8) for size in sizes))


def device_pack(
    weight_format: WeightFormat,
    raw: Bytes,
    columns: int,
    planes: Planes,
    first_row: int = 0,
    threads: int = 1,
) -> None:
    """Pack rows of a file's bytes as the rows from `first_row` on."""
    _, lib = library.load()
    source = np.ascontiguousarray(raw)
    lib.hk_device_pack(
        pool(threads).handle,
        weight_format.id,
        _void(source),
        len(source),
        columns,
        first_row,
        *map(_void, planes),
    )


def device_unpack(weight_format: WeightFormat, planes: Planes, rows: int, columns: int) -> Floats:
    """Return the first rows of a matrix in a device's layout."""
    _, lib = library.load()
    values = np.empty((rows, columns), np.float32)
    for row in range(rows):
        lib.hk_device_unpack_row(
            layout_of(weight_format), *map(_void, planes), columns, row, _float(values[row])
        )
    return values


def copy(source: Bytes, target: Bytes, threads: int) -> None:
    """Copy all bytes of `source` to the start of `target`."""
    _, lib = library.load()
    lib.hk_copy(pool(threads).handle, _void(target), _void(source), source.size)


def matmul(weight_format: WeightFormat, packed: Bytes, outputs: int, x: Floats, threads: int = 1) -> Floats:
    """Return x @ weights.T, shape (rows of x, outputs)."""
    _, lib = library.load()
    x = np.ascontiguousarray(x, np.float32)
    rows, columns = x.shape
    out = np.full((rows, outputs), np.nan, np.float32)
    layout = layout_of(weight_format)
    status = lib.hk_matmul(
        pool(threads).handle, layout, _void(packed), outputs, columns, _float(x), rows, _float(out)
    )
    assert status == lib.HK_OK
    return out


def encode(
    codec: KVCodec, row: Floats, *, scale: Floats | None = None, feedback: Floats | None = None
) -> Bytes:
    """Return a head's vector in a codec's bytes."""
    _, lib = library.load()
    row = np.ascontiguousarray(row, np.float32)
    stored = np.zeros(codec.row_bytes(row.size), np.uint8)
    assert lib.hk_codec_bytes(codec.id, row.size) == stored.size
    lib.hk_codec_encode(codec.id, _float(row), row.size, _maybe(scale), _maybe(feedback), _void(stored))
    return stored


def decode(codec: KVCodec, stored: Bytes, head_size: int, *, scale: Floats | None = None) -> Floats:
    """Return the vector that `encode` stored."""
    _, lib = library.load()
    row = np.empty(head_size, np.float32)
    lib.hk_codec_decode(codec.id, _void(stored), head_size, _maybe(scale), _float(row))
    return row


def _maybe(array: Floats | None) -> Any:
    ffi, _ = library.load()
    return ffi.NULL if array is None else _float(array)
