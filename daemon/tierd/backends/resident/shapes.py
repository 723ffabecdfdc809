"""How keys are shaped before they are rounded, as the device's kernels take it; see `backends/shaping`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tierd.backends.shaping import Shape, shapes
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan, RowStore

_FLOAT = 4


def shape_tables(plan: Plan, file: GGUFFile, codec: KVCodec) -> dict[int, npt.NDArray[np.float32]]:
    """Return the table of each layer whose keys are shaped."""
    return {layer: shape_table(shape) for layer, shape in shapes(plan, file, codec).items()}


def shape_bytes(stores: Iterable[RowStore], codec: KVCodec) -> int:
    """Return the bytes that the tables of all layers take at most."""
    if codec.name != "tq4":
        return 0
    return sum(store.heads * (store.head_size + 2) * store.head_size * _FLOAT for store in stores)


def shape_table(shape: Shape) -> npt.NDArray[np.float32]:
    """Return what `shaders/heads.comp` reads of a layer's shape, shape (heads, n + 2, n).

    A head's rows: what its keys are multiplied by, what its queries are, then the feedback of each value.
    """
    heads, size = shape.key_scale.shape
    table = np.zeros((heads, size + 2, size), np.float32)
    table[:, 0] = shape.key_scale
    table[:, 1] = np.float32(1) / shape.key_scale
    rows, columns = np.tril_indices(size, -1)
    table[:, 2 + rows, columns] = shape.key_feedback
    return table
