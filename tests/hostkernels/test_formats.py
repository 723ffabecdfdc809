"""Every weight format: read from a file's bytes, packed, and read back from the packed layout."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from hostkernels.calls import dequantise, pack, unpack
from tierd.models.formats import WEIGHT_FORMATS, WeightFormat
from tiny import random_tensor_bytes

FORMATS = list(WEIGHT_FORMATS.values())
# Scales of these are products of a half and a small integer, which packing rounds to a half.
ROUNDED = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda entry: entry.name)
def test_dequantised_values_equal_the_gguf_package(weight_format: WeightFormat) -> None:
    columns = 6 * 256
    raw = random_tensor_bytes(weight_format.name, 9, columns, seed=1)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(weight_format.id)).reshape(9, columns)
    ours = dequantise(weight_format, raw, columns)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda entry: entry.name)
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (5, 512), (49, 768)])
def test_packed_rows_are_the_files_rows(weight_format: WeightFormat, rows: int, columns: int) -> None:
    raw = random_tensor_bytes(weight_format.name, rows, columns, seed=rows)
    expected = dequantise(weight_format, raw, columns)
    ours = unpack(weight_format, pack(weight_format, raw, rows, columns), rows, columns)
    if weight_format.name in ROUNDED:
        # A value is scale * q + min, both rounded by 2^-11 of their size at most; minima reach as far as
        # the largest value of the row.
        slack = 2.0**-10 * np.abs(expected).max(axis=1, keepdims=True)
        assert np.all(np.abs(ours - expected) <= slack)
    else:
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (17, 33), (30, 120)])
def test_float_matrices_may_have_any_size(name: str, rows: int, columns: int) -> None:
    weight_format = next(entry for entry in FORMATS if entry.name == name)
    raw = random_tensor_bytes(name, rows, columns, seed=rows)
    expected = dequantise(weight_format, raw, columns)
    ours = unpack(weight_format, pack(weight_format, raw, rows, columns), rows, columns)
    np.testing.assert_array_equal(ours, expected)


def test_packing_gives_the_same_bytes_on_any_number_of_threads() -> None:
    weight_format = next(entry for entry in FORMATS if entry.name == "Q5_K")
    raw = random_tensor_bytes("Q5_K", 100, 512, seed=3)
    alone = pack(weight_format, raw, 100, 512, threads=1)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(pack(weight_format, raw, 100, 512, threads=threads), alone)
