"""Packs a model file's tensors into the places that an `ImageLayout` gives them, on all threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.host import ThreadPool
from tierd.backends.resident.image_layout import ImageLayout, PlacedMatrix
from tierd.models.gguf import GGUFFile
from tierd.progress import Progress

# Bytes of a file that are packed in one go; in between others can have the threads.
_SLICE_BYTES = 16 << 20

Bytes = npt.NDArray[np.uint8]


def pack(
    file: GGUFFile, layout: ImageLayout, target: Bytes, pool: ThreadPool, progress: Progress | None = None
) -> None:
    """Write every matrix and vector of a layout into `target`, shape (layout.size,), which holds zeros.

    In the last call of `progress` both numbers are equal. What it raises ends the packing.
    """
    for placed, names in ((placed, matrix.tensors) for matrix, placed in layout.matrices.items()):
        written, packed_bytes = 0, sum(span.size for span in placed.planes)
        for rows in _pack_matrix(file, names, placed, target, pool):
            written += rows
            if progress:
                progress(placed.quants.offset + packed_bytes * written // placed.rows, layout.size)
    for vector, span in layout.vectors.items():
        values = target[span.offset : span.offset + span.size].view(np.float32)
        for name in vector:
            values = values[_dequantise(file, name, values) :]
    if progress:
        progress(layout.size, layout.size)


def _pack_matrix(
    file: GGUFFile, names: tuple[str, ...], placed: PlacedMatrix, target: Bytes, pool: ThreadPool
) -> Iterator[int]:
    """Pack tensors one below the other; yield the rows packed, slice by slice."""
    _, lib = library.load()
    planes = [library.pointer(target[span.offset :], "void *") for span in placed.planes]
    first_row = 0
    for name in names:
        tensor = file.tensors[name]
        row_bytes = tensor.format.row_bytes(placed.columns)
        source = file.data(name).reshape(-1, row_bytes)
        step = max(_SLICE_BYTES // row_bytes // lib.HK_DEVICE_ROWS, 1) * lib.HK_DEVICE_ROWS
        for row in range(0, len(source), step):
            part = source[row : row + step]
            address = library.pointer(part, "void *")
            with pool.lock:
                lib.hk_device_pack(
                    pool.handle,
                    tensor.format.id,
                    address,
                    len(part),
                    placed.columns,
                    first_row + row,
                    *planes,
                )
            yield len(part)
        first_row += len(source)


def _dequantise(file: GGUFFile, name: str, values: npt.NDArray[np.float32]) -> int:
    """Write a tensor's values to the start of `values`; return how many they are."""
    _, lib = library.load()
    tensor = file.tensors[name]
    count = tensor.shape[-1]
    source = library.pointer(file.data(name), "void *")
    lib.hk_dequantise(tensor.format.id, source, count, library.pointer(values, "float *"))
    return count
