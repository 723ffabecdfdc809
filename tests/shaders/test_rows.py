"""Rows that move between a region and bytes, and between regions: exactly those, in each codec."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from device_rows import GPU_CODECS, Regions
from gpu import Gpu
from hostkernels.calls import Bytes
from tierd.models.formats import KV_CODECS, KVCodec

LANES = 64
POSITIONS, REGIONS = 192, 3
REGION = 1
UNIT = 16


@dataclass(frozen=True)
class Layer:
    """K and V of a layer, and how a row's bytes are cut into parts, one to a lane."""

    codec: KVCodec
    heads: int
    head_size: int

    @property
    def row_bytes(self) -> int:
        return 2 * self.heads * self.codec.row_bytes(self.head_size)

    @property
    def part_bytes(self) -> int:
        return UNIT if self.codec.elements == 1 else 2 * self.codec.bytes

    @property
    def constants(self) -> dict[str, int]:
        return {"HEAD_SIZE": self.head_size, "KV_HEADS": self.heads}


LAYERS = [
    Layer(KV_CODECS["f16"], 3, 40),
    Layer(KV_CODECS["f16"], 2, 64),
    Layer(KV_CODECS["q8_0"], 3, 96),
    Layer(KV_CODECS["q8_0"], 1, 32),
    Layer(KV_CODECS["tq4"], 3, 128),
    Layer(KV_CODECS["tq4"], 1, 32),
]
SPANS = [(0, 192), (31, 35), (63, 65), (5, 6)]

layers = pytest.mark.parametrize(
    "layer", LAYERS, ids=lambda layer: f"{layer.codec.name}-{layer.heads}x{layer.head_size}"
)


def filled(gpu: Gpu, layer: Layer, seed: int) -> Regions:
    """Return regions of random bytes."""
    regions = Regions(
        gpu,
        layer.codec,
        regions=REGIONS,
        heads=layer.heads,
        head_size=layer.head_size,
        positions=POSITIONS,
    )
    rng = np.random.default_rng(seed)
    for region in range(REGIONS):
        put(regions, layer, region, 0, rng.integers(0, 256, (POSITIONS, layer.row_bytes), np.uint8))
    return regions


def put(regions: Regions, layer: Layer, region: int, start: int, rows: Bytes) -> None:
    for position, row in enumerate(rows, start):
        for index, part in enumerate(row.reshape(2 * layer.heads, -1)):
            regions.put("kv"[index // layer.heads], region, index % layer.heads, position, part)


def rows_of(regions: Regions, layer: Layer, region: int, start: int, stop: int) -> Bytes:
    """Return the bytes of rows as executors exchange them, shape (rows, bytes of a row)."""
    parts = [
        regions.row(which, region, head, position)
        for position in range(start, stop)
        for which in "kv"
        for head in range(layer.heads)
    ]
    return np.concatenate(parts).reshape(stop - start, -1)


def move(gpu: Gpu, layer: Layer, regions: Regions, direction: str, start: int, rows: Bytes) -> Bytes:
    """Run rows.comp between a region and these bytes; return what the bytes are then."""
    staged = gpu.place(np.concatenate([rows.reshape(-1), np.zeros(-rows.size % UNIT, np.uint8)]))
    gpu.run(
        "rows",
        f"{layer.codec.name}.{direction}",
        (-(-rows.size // (layer.part_bytes * LANES)), 1, 1),
        layer.constants,
        **regions.push,
        staged=staged.address,
        region=REGION,
        positions=POSITIONS,
        start=start,
        rows=len(rows),
    )
    return staged.values[: rows.size].reshape(rows.shape)


@layers
def test_rows_are_read_as_the_host_has_them(gpu: Gpu, layer: Layer) -> None:
    regions = filled(gpu, layer, 0)
    before = regions.copy()
    for start, stop in SPANS:
        found = move(gpu, layer, regions, "read", start, np.zeros((stop - start, layer.row_bytes), np.uint8))
        np.testing.assert_array_equal(found, rows_of(regions, layer, REGION, start, stop))
    for plane, same in zip(regions.copy(), before, strict=True):
        np.testing.assert_array_equal(plane, same)


@layers
@pytest.mark.parametrize(("start", "stop"), SPANS)
def test_rows_are_written_and_no_others(gpu: Gpu, layer: Layer, start: int, stop: int) -> None:
    regions, expected = filled(gpu, layer, 0), filled(gpu, layer, 0)
    rows = np.random.default_rng(1).integers(0, 256, (stop - start, layer.row_bytes), np.uint8)
    put(expected, layer, REGION, start, rows)
    move(gpu, layer, regions, "write", start, rows)
    for plane, right in zip(regions.copy(), expected.copy(), strict=True):
        np.testing.assert_array_equal(plane, right)


@pytest.mark.parametrize("codec", GPU_CODECS)
def test_strips_of_all_planes_are_copied(gpu: Gpu, codec: str) -> None:
    """Two layers of different heads in one dispatch: of the groups, one has too many."""
    layers = [Layer(KV_CODECS[codec], 3, 64), Layer(KV_CODECS[codec], 2, 128)]
    strips = 3
    all_regions = [filled(gpu, layer, seed) for seed, layer in enumerate(layers)]
    expected = [filled(gpu, layer, seed) for seed, layer in enumerate(layers)]
    table: list[tuple[int, int, int, int]] = []
    for layer, regions, right in zip(layers, all_regions, expected, strict=True):
        put(right, layer, 2, 0, rows_of(right, layer, 0, 0, 32 * strips))
        scales = 0 if codec == "f16" else layer.head_size // 32 * 2
        quants = layer.codec.row_bytes(layer.head_size) - scales
        for name, row in (
            ("k_quants", quants),
            ("v_quants", quants),
            ("k_scales", scales),
            ("v_scales", scales),
        ):
            if row:
                address = regions.push[name]
                table.append((address & 0xFFFFFFFF, address >> 32, layer.heads, 32 * row // UNIT))
    planes = gpu.place(np.array(table, np.uint32))
    most = strips * max(units for _, _, _, units in table)
    gpu.run(
        "copy",
        "plain",
        (-(-most // 512), 3, len(table)),
        planes=planes.address,
        source=0,
        target=2,
        strips=strips,
        region_strips=POSITIONS // 32,
    )
    for regions, right in zip(all_regions, expected, strict=True):
        for plane, same in zip(regions.copy(), right.copy(), strict=True):
            np.testing.assert_array_equal(plane, same)
