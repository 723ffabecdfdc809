"""The layouts of weights on a device: their bytes, and that they hold what the host's layouts hold."""

from __future__ import annotations

import numpy as np
import pytest

from device_planes import read_blocks, read_floats
from hostkernels import calls
from hostkernels.calls import Bytes, Floats, Planes
from tierd.backends import library
from tierd.models.formats import WEIGHT_FORMATS, WeightFormat, weight_format
from tiny import random_tensor_bytes

LAYOUTS = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "Q4_0": "q4s",
    "Q4_1": "q4",
    "Q5_0": "q5s",
    "Q5_1": "q5",
    "Q8_0": "q8",
    "Q2_K": "q2",
    "Q3_K": "q3",
    "Q4_K": "q4",
    "Q5_K": "q5",
    "Q6_K": "q6",
}
JUNK = 0xA5

every_format = pytest.mark.parametrize("entry", WEIGHT_FORMATS.values(), ids=lambda entry: entry.name)


def unpack(layout: str, planes: Planes, rows: int, columns: int) -> Floats:
    """Return the values of all whole groups and blocks."""
    if layout in ("f32", "f16", "bf16"):
        return read_floats(layout, planes, rows, columns)
    return read_blocks(layout, planes, rows, columns).values()


def pack(entry: WeightFormat, raw: Bytes, columns: int, threads: int = 1) -> Planes:
    planes = calls.device_planes(entry, len(raw), columns, fill=JUNK)
    calls.device_pack(entry, raw, columns, planes, threads=threads)
    return planes


def host_values(entry: WeightFormat, raw: Bytes, columns: int) -> Floats:
    return calls.unpack(entry, calls.pack(entry, raw, len(raw), columns), len(raw), columns)


@every_format
def test_layouts_have_their_names(entry: WeightFormat) -> None:
    ffi, lib = library.load()
    name = lib.hk_device_layout_name(calls.layout_of(entry))
    assert ffi.string(name).decode() == LAYOUTS[entry.name]


@every_format
@pytest.mark.parametrize(("rows", "columns"), [(32, 256), (5, 512), (81, 768)])
def test_planes_hold_the_values_of_the_hosts_layout(entry: WeightFormat, rows: int, columns: int) -> None:
    raw = random_tensor_bytes(entry.name, rows, columns, seed=rows)
    planes = pack(entry, raw, columns)
    expected = host_values(entry, raw, columns)
    np.testing.assert_array_equal(unpack(LAYOUTS[entry.name], planes, rows, columns)[:rows], expected)
    np.testing.assert_array_equal(calls.device_unpack(entry, planes, rows, columns), expected)


@every_format
def test_rows_past_the_end_are_zero_bytes(entry: WeightFormat) -> None:
    raw = random_tensor_bytes(entry.name, 37, 256, seed=1)
    for plane in pack(entry, raw, 256):
        record = min(plane.size // (2 * 8 * 32), 16)
        if record:
            rows = plane.reshape(2, -1, 32, record)[1].any(axis=(0, 2))
            assert rows[:5].all()
            assert not rows[5:].any()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (33, 33), (30, 120)])
def test_columns_past_the_end_of_a_float_row_are_zeros(name: str, rows: int, columns: int) -> None:
    entry = weight_format(name)
    raw = random_tensor_bytes(name, rows, columns, seed=rows)
    planes = pack(entry, raw, columns)
    expected = host_values(entry, raw, columns)
    values = unpack(LAYOUTS[name], planes, rows, columns)
    np.testing.assert_array_equal(values[:rows, :columns], expected)
    assert not values[:rows, columns:].any()
    assert not values[rows:].any()
    np.testing.assert_array_equal(calls.device_unpack(entry, planes, rows, columns), expected)


@every_format
def test_matrices_are_joined_by_their_rows(entry: WeightFormat) -> None:
    raw = random_tensor_bytes(entry.name, 64 + 32 + 7, 512, seed=2)
    whole = pack(entry, raw, 512)
    joined = calls.device_planes(entry, len(raw), 512, fill=JUNK)
    for first, last in ((96, 103), (0, 64), (64, 96)):
        calls.device_pack(entry, raw[first:last], 512, joined, first_row=first)
    for plane, expected in zip(joined, whole, strict=True):
        np.testing.assert_array_equal(plane, expected)


@every_format
def test_packing_gives_the_same_bytes_on_any_number_of_threads(entry: WeightFormat) -> None:
    raw = random_tensor_bytes(entry.name, 150, 256, seed=3)
    alone = pack(entry, raw, 256)
    for threads in (2, 3, 5):
        for plane, expected in zip(pack(entry, raw, 256, threads), alone, strict=True):
            np.testing.assert_array_equal(plane, expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_003])
def test_copies_all_bytes_and_no_more(threads: int, size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.full(size + 8, JUNK, np.uint8)
    calls.copy(source, target, threads)
    np.testing.assert_array_equal(target[:size], source)
    assert (target[size:] == JUNK).all()
