"""Rows of K and V that move between executors as bytes: what is the same for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import MOVE_BYTES, Executor
from tierd.errors import ExecutorError
from tierd.models.formats import KVCodec
from tierd.models.plan import Plan, RowStore


def row_bytes(plan: Plan, codec: KVCodec) -> tuple[int, ...]:
    """Return the bytes of one position in each of a plan's row stores: K of all heads, then V.

    Raises UnsupportedModelError where heads do not fit the codec.
    """
    stores = [store for store in plan.stores if isinstance(store, RowStore)]
    return tuple(2 * store.heads * codec.row_bytes(store.head_size) for store in stores)


def check_move(
    executor: Executor, layer: int, pages: Sequence[int], start: int, stop: int, rows: npt.NDArray[Any]
) -> None:
    """Raise ExecutorError for what `read_rows` and `write_rows` cannot take."""
    if not 0 <= layer < len(executor.row_bytes):
        raise ExecutorError(f"layer {layer} does not exist; there are {len(executor.row_bytes)}")
    size = executor.page_positions
    if not 0 <= start <= stop <= len(pages) * size:
        raise ExecutorError(f"positions {start} to {stop - 1} do not lie in {len(pages)} pages of {size}")
    for page in pages[start // size : -(-stop // size)]:
        if not 0 <= page < executor.pages:
            raise ExecutorError(f"page {page} does not exist; there are {executor.pages}")
    shape = (stop - start, executor.row_bytes[layer])
    if rows.dtype != np.uint8 or rows.shape != shape or not rows.flags.c_contiguous:
        raise ExecutorError(f"rows are {rows.dtype} of shape {rows.shape}; dense uint8 of {shape} is needed")
    if rows.nbytes > MOVE_BYTES:
        raise ExecutorError(f"{rows.nbytes} bytes of rows are too many at once; {MOVE_BYTES} are possible")
