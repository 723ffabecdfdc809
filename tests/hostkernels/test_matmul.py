"""Matmuls over every packed layout: within the error of 8-bit activations, and the same bits always."""

from __future__ import annotations

import numpy as np
import pytest

from hostkernels.calls import dequantise, layout_of, matmul, pack
from tierd.backends import library
from tierd.models.formats import WEIGHT_FORMATS, WeightFormat
from tiny import random_tensor_bytes

FORMATS = list(WEIGHT_FORMATS.values())
QUANTISED = [entry for entry in FORMATS if entry.elements > 1]
FLOATS = [entry for entry in FORMATS if entry.elements == 1]


def _activations(rows: int, columns: int, seed: int = 5) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, columns)) * np.exp(random.standard_normal((rows, 1)))
    x[:, ::37] *= 20.0
    return x.astype(np.float32)


def _activation_scales(x: np.ndarray) -> np.ndarray:
    """Scale of every value's block of 32."""
    blocks = np.abs(x).reshape(len(x), -1, 32).max(axis=2) / 127.0
    return np.repeat(blocks, 32, axis=1)


@pytest.mark.parametrize("weight_format", QUANTISED, ids=lambda entry: entry.name)
def test_error_is_that_of_8_bit_activations(weight_format: WeightFormat) -> None:
    outputs, columns = 37, 1024
    raw = random_tensor_bytes(weight_format.name, outputs, columns, seed=7)
    x = _activations(5, columns).astype(np.float64)
    weights = dequantise(weight_format, raw, columns).astype(np.float64)
    ours = matmul(weight_format, pack(weight_format, raw, outputs, columns), outputs, x)
    # Half a step of an activation, times its weight; packed scales and minima are off by 2^-11 of the
    # row's largest value; float sums are off by far less than the third term.
    largest = np.abs(weights).max(axis=1)
    bound = (
        0.5001 * _activation_scales(x) @ np.abs(weights).T
        + 2.0**-10 * np.abs(x).sum(axis=1)[:, None] * largest
        + 1e-5 * np.abs(x) @ np.abs(weights).T
    )
    assert np.all(np.abs(ours - x @ weights.T) <= bound)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_equal_to_the_definition_on_quantised_activations(name: str) -> None:
    """Where packing rounds nothing, only the order of float sums is left."""
    weight_format = next(entry for entry in FORMATS if entry.name == name)
    outputs, columns = 37, 1024
    raw = random_tensor_bytes(name, outputs, columns, seed=8)
    x = _activations(4, columns)
    scales = _activation_scales(x)
    quants = np.rint(np.divide(x, scales, where=scales > 0, out=np.zeros_like(x)))
    assert np.abs(quants).max() == 127
    weights = dequantise(weight_format, raw, columns).astype(np.float64)
    expected = (quants * scales.astype(np.float64)) @ weights.T
    ours = matmul(weight_format, pack(weight_format, raw, outputs, columns), outputs, x)
    slack = 4e-6 * (np.abs(x) @ np.abs(weights).T)
    # A value within a rounding error of the middle of two steps may fall to either side.
    ties = np.abs(np.abs(x / scales % 1.0) - 0.5) < 1e-4
    slack += (ties * scales) @ np.abs(weights).T
    assert np.all(np.abs(ours - expected) <= slack)


@pytest.mark.parametrize("weight_format", FLOATS, ids=lambda entry: entry.name)
@pytest.mark.parametrize(("outputs", "columns"), [(16, 32), (301, 120), (3, 7)])
def test_float_weights_keep_float_activations(
    weight_format: WeightFormat, outputs: int, columns: int
) -> None:
    raw = random_tensor_bytes(weight_format.name, outputs, columns, seed=9)
    x = _activations(3, columns)
    weights = dequantise(weight_format, raw, columns).astype(np.float64)
    ours = matmul(weight_format, pack(weight_format, raw, outputs, columns), outputs, x)
    assert np.all(np.abs(ours - x @ weights.T) <= 2e-6 * (np.abs(x) @ np.abs(weights).T))


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda entry: entry.name)
def test_a_row_does_not_depend_on_its_company(weight_format: WeightFormat) -> None:
    outputs, columns = 70, 512
    packed = pack(
        weight_format, random_tensor_bytes(weight_format.name, outputs, columns, 11), outputs, columns
    )
    x = _activations(67, columns)
    together = matmul(weight_format, packed, outputs, x)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(matmul(weight_format, packed, outputs, x, threads), together)
    for rows in (slice(0, 1), slice(5, 13), slice(31, 66)):
        np.testing.assert_array_equal(matmul(weight_format, packed, outputs, x[rows]), together[rows])


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda entry: entry.name)
def test_extreme_activations_stay_exact(weight_format: WeightFormat) -> None:
    """All activations at the ends of their range: sums of integers may not wrap."""
    outputs, columns = 32, 512
    raw = random_tensor_bytes(weight_format.name, outputs, columns, seed=13)
    if weight_format.elements == 32:
        raw = raw.reshape(outputs, -1, weight_format.bytes)
        raw[..., -16:] = 0xFF if weight_format.name != "Q8_0" else 0x80
        raw = raw.reshape(outputs, -1)
    packed = pack(weight_format, raw, outputs, columns)
    weights = dequantise(weight_format, raw, columns).astype(np.float64)
    largest = np.abs(weights).max(axis=1)
    for value in (1.0, -1.0):
        x = np.full((1, columns), value, np.float32)
        ours = matmul(weight_format, packed, outputs, x)
        assert np.all(np.abs(ours - x @ weights.T) <= 2.0**-10 * columns * largest)


def test_zero_and_non_finite_activations() -> None:
    weight_format = next(entry for entry in FORMATS if entry.name == "Q8_0")
    packed = pack(weight_format, random_tensor_bytes("Q8_0", 16, 64, 17), 16, 64)
    np.testing.assert_array_equal(matmul(weight_format, packed, 16, np.zeros((1, 64), np.float32)), 0.0)
    broken = np.ones((1, 64), np.float32)
    broken[0, 3], broken[0, 40] = np.nan, np.inf
    assert not np.all(np.isfinite(matmul(weight_format, packed, 16, broken)))


def test_formats_share_few_layouts() -> None:
    _, lib = library.load()
    layouts = {entry.name: layout_of(entry) for entry in FORMATS}
    assert layouts["Q4_1"] == layouts["Q4_K"] == lib.HK_LAYOUT_Q4X16
    assert layouts["Q5_1"] == layouts["Q5_K"] == lib.HK_LAYOUT_Q5X16
    assert len(set(layouts.values())) == lib.HK_LAYOUTS
    assert lib.hk_layout_of(9) == -1
