"""What a model needs of a device in one piece, whatever is the largest."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from backends.vkapi import devices
from tierd.backends.protocol import MOVE_BYTES
from tierd.backends.resident.draws import picked_bytes
from tierd.backends.resident.lowering import Lowering
from tierd.backends.resident.memory import SEATS, Demand
from tierd.backends.vkapi.facts import DeviceFacts
from tierd.errors import UnsupportedModelError
from tierd.models import GGUFFile, build_plan
from tierd.tier.needs import need_of
from tierd.tier.want import Want
from tiny import write_llama

VOCABULARY, WIDTH, FF = 8192, 64, 128


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers have two K/V heads of 32 values: 256 bytes a position as f16."""
    return write_llama(
        tmp_path_factory.mktemp("needs") / "m.gguf",
        n_embd=WIDTH, heads=2, kv_heads=2, head_size=32, ff=FF, vocab=VOCABULARY, context=8192,
    )  # fmt: skip


def demand_of(file: GGUFFile, facts: DeviceFacts = devices.NVIDIA) -> Demand:
    plan = build_plan(file)
    return Demand(plan, file, Lowering(plan, file), facts)


def largest(path: Path, positions: int, *, regions: int = 1, max_rows: int = 1) -> int:
    want = Want(mode="auto", streams=regions, regions=regions, max_rows=max_rows)
    with GGUFFile.open(path) as file:
        return need_of(want, build_plan(file), demand_of(file)).largest_at(positions)


@pytest.mark.parametrize(
    ("positions", "regions", "size"),
    [
        (64, 1, VOCABULARY * WIDTH * 4),
        (8192, 4, 4 * 8192 * 256),
        (64, 1024, 1024 * VOCABULARY * 4),  # rows of logits
        (16384, 1, 8 * 256 * 2 * (64 + 1) * 16),  # 8 rows' tiles of 64 positions, of both heads
    ],
)
def test_the_largest_piece_is_one_of_any_kind(path: Path, positions: int, regions: int, size: int) -> None:
    assert largest(path, positions, regions=regions) == size


def test_what_steps_compute_with_is_one_piece(path: Path) -> None:
    """Floats, and with them two planes of their quantised form; rows of K/V would be 16 KiB."""
    widths = 2 * WIDTH + 3 * 64 + 2 * FF  # of x, its norm, q, k, v and those of the feed-forward, at least
    assert largest(path, 64, max_rows=8192) > 8192 * widths * 4
    assert largest(path, 64, max_rows=16384) == 2 * largest(path, 64, max_rows=8192)


def test_what_the_host_sees_counts_where_it_lies_in_the_devices_memory(path: Path) -> None:
    """Logits and hidden states that are read back, and what rows of K/V go through: 256 bytes a position."""
    needed = []
    for facts in (devices.NVIDIA, devices.INTEL_ARC, devices.INTEL_INTEGRATED, devices.LLVMPIPE):
        want = Want(mode="auto", regions=3, streams=3, max_rows=1)
        with GGUFFile.open(path) as file:
            need = need_of(want, build_plan(file), demand_of(file, facts))
        needed.append((need.bytes_at(64), need.bytes_at(1 << 16)))
    own, discrete, integrated, software = needed
    assert own == discrete
    read = SEATS * (3 * VOCABULARY * 4 + picked_bytes(3) + WIDTH * 4)
    assert integrated == software == (own[0] + read + 2 * 64 * 256, own[1] + read + 2 * MOVE_BYTES)


def test_matrices_with_more_rows_than_a_grid_has_groups_are_declined(path: Path) -> None:
    limits = devices.NVIDIA.limits
    enough, few = (
        dataclasses.replace(devices.NVIDIA, limits=dataclasses.replace(limits, groups=(groups, 65535, 65535)))
        for groups in (VOCABULARY // 32, VOCABULARY // 32 - 1)
    )
    with GGUFFile.open(path) as file:
        demand_of(file, enough)
        with pytest.raises(UnsupportedModelError, match=r"8192 rows, .* takes 8160"):
            demand_of(file, few)
