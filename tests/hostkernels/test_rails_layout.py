"""The layout of weights in 32-bit words: that it holds exactly what the host's layouts hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hostkernels import calls
from tierd.backends import library
from tierd.models.formats import WEIGHT_FORMATS, WeightFormat
from tiny import random_tensor_bytes

ROWS, BLOCK = 64, 32
JUNK = 0xA5A5A5A5


def unpack(values: npt.NDArray[np.uint32], scales: npt.NDArray[np.uint32], parts: int) -> calls.Floats:
    """Return the values of units, shape (units, 32)."""
    if not parts:
        return values.view(np.float32).reshape(-1, BLOCK)
    pairs = scales.view(np.float32).reshape(-1, parts, 2)
    quants = values.view(np.int8).reshape(-1, parts, BLOCK // parts).astype(np.float32)
    return (pairs[:, :, :1] * quants + pairs[:, :, 1:]).reshape(-1, BLOCK)


@pytest.mark.parametrize("entry", WEIGHT_FORMATS.values(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "columns"), [(64, 256), (5, 512), (150, 256)])
def test_words_hold_the_hosts_values(entry: WeightFormat, rows: int, columns: int, threads: int) -> None:
    _, lib = library.load()
    layout = calls.layout_of(entry)
    raw = random_tensor_bytes(entry.name, rows, columns, seed=rows)
    packed = calls.pack(entry, raw, rows, columns)
    values = np.full(lib.hk_rails_value_words(layout, rows, columns), JUNK, np.uint32)
    scales = np.full(lib.hk_rails_scale_words(layout, rows, columns), JUNK, np.uint32)
    lib.hk_rails_pack(
        calls.pool(threads).handle,
        layout,
        library.pointer(packed, "void *"),
        rows,
        columns,
        library.pointer(values, "uint32_t *"),
        library.pointer(scales, "uint32_t *"),
    )
    groups = -(-rows // ROWS)
    units = unpack(values, scales, lib.hk_rails_scales(layout))
    found = units.reshape(groups, columns // BLOCK, ROWS, BLOCK).transpose(0, 2, 1, 3).reshape(-1, columns)
    np.testing.assert_array_equal(found[:rows], calls.unpack(entry, packed, rows, columns))
    assert not found[rows:].any()
