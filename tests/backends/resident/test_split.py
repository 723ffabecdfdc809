"""How many rows are split, and that what they leave lies within the memory that is there for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import tiny
from backends.resident.conftest import Opener
from backends.vkapi import devices
from tierd.backends.resident import ops, split
from tierd.backends.resident.executor import smallest
from tierd.backends.resident.memory import Shape
from tierd.backends.resident.split import Split
from tierd.backends.vkapi.facts import SUBGROUP_SHUFFLE, DeviceFacts
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tierd.models.plan import RowStore

MIB = 1 << 20
# Positions of a tile; vec4 that one leaves for each group: (8 K/V heads of 4 query heads) and (32 of 1).
TILE = 64
LLAMA_3_8B = (8, 32, 8 * (2 * 64 + 4) * 16)
LLAMA_2_7B = (32, 32, 32 * (64 + 1) * 16)


def attend(kv_heads: int, heads: int) -> ops.Attend:
    store = RowStore(0, kv_heads, 128)
    return ops.Attend(q="q", store=store, heads=heads, out="out", quantised=True, scale=1.0, window=0)


def split_of(kv_heads: int, heads: int, positions: int) -> Split:
    return Split.of([attend(kv_heads, heads)], positions, devices.NVIDIA)


@pytest.mark.parametrize(
    ("model", "context", "rows"),
    [
        (LLAMA_3_8B, 128 << 10, 1),
        (LLAMA_3_8B, 128 << 10, 4),
        (LLAMA_3_8B, 32 << 10, 8),
        (LLAMA_2_7B, 128 << 10, 2),
        (LLAMA_2_7B, 32 << 10, 8),
    ],
)
def test_rows_of_long_contexts_are_split(model: tuple[int, int, int], context: int, rows: int) -> None:
    kv_heads, heads, tile = model
    there = split_of(kv_heads, heads, context)
    assert there.count(rows, context - 1) == 64
    assert rows * (context // TILE) * tile <= there.partials <= 256 * MIB


def test_a_region_as_long_as_can_be_leaves_room_for_steps_at_shorter_contexts() -> None:
    there = split_of(8, 32, 128 << 10)
    assert there.partials <= 256 * MIB
    assert [there.count(rows, (64 << 10) - 1) for rows in (1, 2, 5, 8, 9)] == [64, 64, 64, 64, 1]
    assert [there.count(rows, (128 << 10) - 1) for rows in (1, 2, 4, 5, 8)] == [64, 64, 64, 1, 1]


def test_one_row_is_split_however_long_the_region_is() -> None:
    there = split_of(32, 32, 1 << 20)
    assert there.count(1, (1 << 20) - 1) == 64
    assert there.count(2, (1 << 20) - 1) == 1
    assert there.partials == (1 << 20) // TILE * LLAMA_2_7B[2]


def test_a_part_is_worth_a_group() -> None:
    there = split_of(8, 32, 4096)
    assert [there.count(1, last) for last in (0, 255, 511, 512, 4095)] == [1, 1, 2, 2, 16]


def test_nothing_is_split_where_it_does_not_pay() -> None:
    features = devices.LLVMPIPE.features | {SUBGROUP_SHUFFLE}
    software = dataclasses.replace(devices.LLVMPIPE, features=features)
    for none in (
        Split.of([attend(8, 32)], 4096, software),
        Split.of([attend(8, 32)], 256, devices.NVIDIA),
        Split.of([], 4096, devices.NVIDIA),
    ):
        assert (none.partials, none.tiles_of(1)) == (0, 0)
        assert none.count(1, 4095) == 1


@pytest.mark.parametrize("positions", [576, 4096, 1 << 20])
@pytest.mark.parametrize("most", [*range(1, 11), 264])
def test_rows_that_are_split_lie_within_their_memory(most: int, positions: int) -> None:
    """Where a step's recording, made for at most so many rows, puts the tiles of each group."""
    there = split_of(8, 32, positions)
    for rows in range(1, min(most, 10) + 1):
        distance = there.tiles_of(smallest(rows, most))
        room = rows * distance * LLAMA_3_8B[2]
        assert room <= there.partials
        assert (room > 0) == (rows <= 8)
        for tiles in {distance - 1, distance, distance + 1, positions // TILE}:
            assert (there.count(rows, tiles * TILE - 1) > 1) == (8 <= tiles <= distance)


@pytest.mark.parametrize(("room", "splits"), [(0, [2, 2, 1, 1]), (1 << 20, [2, 2, 2, 2])])
def test_split_rows_have_the_bits_of_those_that_are_not(
    room: int, splits: list[int], opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that splits, with room for the tiles of one row of a region and for those of eight."""
    monkeypatch.setattr(DeviceFacts, "dear_loads", False)
    monkeypatch.setattr(split, "_PARTIALS_BYTES", room)
    path = tiny.write_llama(tmp_path / "m.gguf", context=1024, layers=1, head_size=64)
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, 300, 512)]
    with GGUFFile.open(path) as file:
        demand = opened.backend.demand(build_plan(file), file, KV_CODECS["f16"])
        assert [demand.split(1024).count(rows, 511) for rows in (1, 2, 4, 8)] == splits
        executor = opened(file, shape=Shape(regions=2, positions=1024, max_rows=64, selected=8))
    whole = []
    for region, shift in ((0, 0), (1, 100)):
        shifted = tokens[shift:] + tokens[:shift]
        for at in range(0, 512, 64):
            logits = executor.run(Batch((Chunk(shifted[at : at + 64], at, (region,), (60, 61, 62, 63)),)))
        whole.append(logits)
    for few in (1, 2, 4):
        for at in range(0, 4, few):
            first = 508 + at
            rows = tuple(range(few))
            chunk = Chunk(tokens[first : first + few], first, (0,), rows)
            np.testing.assert_array_equal(executor.run(Batch((chunk,))), whole[0][at : at + few])
            other = Chunk((tokens[100:] + tokens[:100])[first : first + few], first, (1,), rows)
            both = executor.run(Batch((chunk, other)))
            np.testing.assert_array_equal(both, np.concatenate([each[at : at + few] for each in whole]))
