"""Device memory: few allocations, kept within a budget."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gpu import host_sees
from tierd.backends.vkapi import Device, Role
from tierd.backends.vkapi.facts import MEMORY_BUDGET, MemoryHeap
from tierd.backends.vkapi.memory_types import TypeChoice
from tierd.errors import DeviceError, DeviceMemoryError

MIB = 1 << 20

Open = Callable[..., Device]


def test_small_buffers_share_an_allocation(open_device: Open) -> None:
    device = open_device()
    before = device.calls
    first = device.buffer(100, Role.DEVICE)
    made = device.calls - before
    others = [device.buffer(100, Role.DEVICE) for _ in range(50)]
    assert device.calls - before == made
    assert len({first.address, *(each.address for each in others)}) == 51
    assert all(each.address % 16 == 0 for each in others)
    assert device.used == 51 * 256


def test_a_buffer_given_back_makes_room_and_the_last_one_frees_the_allocation(open_device: Open) -> None:
    device = open_device(vram_limit=MIB)
    first, second = device.buffer(MIB // 2, Role.DEVICE), device.buffer(MIB // 2, Role.DEVICE)
    with pytest.raises(DeviceMemoryError):
        device.buffer(1, Role.DEVICE)
    first.close()
    first.close()
    assert device.used == MIB // 2
    device.buffer(MIB // 2, Role.DEVICE).close()
    second.close()
    assert device.used == 0
    device.buffer(MIB, Role.DEVICE)


def test_the_cap_is_what_may_be_used_and_is_named_when_it_is_in_the_way(open_device: Open) -> None:
    device = open_device(vram_limit=10 * MIB)
    assert device.budget() == 10 * MIB
    device.buffer(4 * MIB, Role.DEVICE)
    assert (device.used, device.budget()) == (4 * MIB, 10 * MIB)
    with pytest.raises(
        DeviceMemoryError,
        match=r"^llvmpipe .* 0\.0 MiB left of 10\.0 MiB and 8\.0 MiB are asked for; .* raise gpu\.vram_lim",
    ):
        device.buffer(8 * MIB, Role.DEVICE)
    device.buffer(6 * MIB, Role.DEVICE)
    assert (device.used, device.budget()) == (10 * MIB, 10 * MIB)


def test_the_cap_does_not_hold_for_what_lies_in_host_memory(open_device: Open) -> None:
    device = open_device(vram_limit=MIB)
    for role in (Role.UPLOAD, Role.READBACK):
        view = device.buffer(4 * MIB, role).view
        assert view is not None
        assert len(view) == 4 * MIB


def test_without_a_cap_some_of_the_heap_is_left_to_others(open_device: Open) -> None:
    device = open_device()
    heap = device.facts.heaps[0].size
    assert 0.85 * heap < device.budget() < 0.95 * heap
    device.buffer(300 * MIB, Role.DEVICE)
    assert device.used == 300 * MIB
    assert 0.85 * heap < device.budget() < 0.95 * heap


def test_the_drivers_budget_counts_what_others_use(open_device: Open) -> None:
    """The driver says what the process may hold of a heap and what it holds: of 100 MiB, 40 are taken."""
    device = open_device()
    memory, call = device._memory, device.vk.call
    memory._facts = dataclasses.replace(device.facts, extensions=frozenset({MEMORY_BUDGET}))

    def answer(name: str, *args: Any) -> None:
        if name != "vkGetPhysicalDeviceMemoryProperties2":
            call(name, *args)
            return
        budget = device.vk.ffi.cast("VkPhysicalDeviceMemoryBudgetPropertiesEXT *", args[1].pNext)
        budget.heapBudget[0], budget.heapUsage[0] = 100 * MIB, 40 * MIB

    device.vk.call = answer  # type: ignore[method-assign]
    assert device.budget() == 60 * MIB
    with pytest.raises(DeviceMemoryError, match=r"60\.0 MiB left of 60\.0 MiB and 60\.5 MiB are asked for"):
        device.buffer(60 * MIB + MIB // 2, Role.DEVICE)
    device.buffer(60 * MIB, Role.DEVICE)
    assert device.budget() == 120 * MIB  # the answer stays the same, and what is held comes on top


def test_a_block_shrinks_to_what_the_driver_still_has(open_device: Open) -> None:
    """The usual block is refused, and what was asked for is then allocated alone."""
    device = open_device()
    allocate = device.vk.call
    asked: list[int] = []

    def call(name: str, *args: Any) -> None:
        if name == "vkAllocateMemory":
            asked.append(args[1].allocationSize)
            device.vk.inject(name, -2 if len(asked) == 1 else None)
        allocate(name, *args)

    device.vk.call = call  # type: ignore[method-assign]
    device.buffer(MIB, Role.DEVICE)
    assert asked == [256 * MIB, MIB]


def test_what_a_small_window_has_no_room_for_lies_elsewhere(open_device: Open) -> None:
    """As a GPU's memory that the host writes to directly, of which there are often 256 MiB for all."""
    device = open_device()
    memory = device._memory
    facts, choice = device.facts, TypeChoice(0, True)
    memory._facts = dataclasses.replace(
        facts,
        memory_types=(*facts.memory_types, dataclasses.replace(facts.memory_types[0], heap=1)),
        heaps=(*facts.heaps, MemoryHeap(1000, True)),
    )
    memory._allocated = [0, 0]
    memory._choices = {**memory._choices, Role.STEP: (TypeChoice(1, True), choice)}
    buffer = device.buffer(4096, Role.STEP)
    assert buffer.block.heap == 0
    assert memory._allocated == [MIB, 0]
    buffer.close()
    assert memory._allocated == [0, 0]


def test_what_the_driver_refuses_a_step_lies_elsewhere(open_device: Open) -> None:
    device = open_device()
    memory, call = device._memory, device.vk.call
    asked: list[int] = []
    results = itertools.chain([-2, -2, None], itertools.repeat(-2))

    def refuse(name: str, *args: Any) -> None:
        if name == "vkAllocateMemory":
            asked.append(args[1].allocationSize)
            device.vk.inject(name, next(results))
        call(name, *args)

    device.vk.call = refuse  # type: ignore[method-assign]
    memory._choices = {**memory._choices, Role.STEP: 2 * memory._choices[Role.STEP]}
    view = device.buffer(4096, Role.STEP).view
    assert view is not None
    assert asked == [MIB, 4096, MIB]
    with pytest.raises(DeviceMemoryError):
        device.buffer(2 * MIB, Role.STEP)
    assert asked[3:] == [2 * MIB, 2 * MIB]


def test_a_large_buffer_gets_an_allocation_of_its_own(open_device: Open) -> None:
    device = open_device()
    small, large = device.buffer(100, Role.DEVICE), device.buffer(300 * MIB, Role.DEVICE)
    assert small.block is not large.block
    assert large.block.ranges.size == 300 * MIB


def test_more_than_the_device_allocates_at_a_time_is_refused_with_the_numbers(open_device: Open) -> None:
    device = open_device()
    limit = device.facts.limits.allocation
    with pytest.raises(
        DeviceMemoryError, match=rf"allocates {limit >> 20} MiB at a time, and {(limit >> 20) + 1} "
    ):
        device.buffer(limit + MIB, Role.DEVICE)


@pytest.mark.parametrize("size", [0, -1])
def test_a_buffer_has_bytes(open_device: Open, size: int) -> None:
    with pytest.raises(DeviceError, match=f"a buffer of {size} bytes"):
        open_device().buffer(size, Role.DEVICE)


@pytest.mark.parametrize("hidden", [False, True])
def test_device_memory_is_seen_by_the_host_unless_that_is_hidden(open_device: Open, hidden: bool) -> None:
    device = open_device(hide_host_visible=hidden)
    assert host_sees(device) != hidden
    for role in (Role.UPLOAD, Role.READBACK, Role.STEP):
        view = device.buffer(100, role).view
        assert view is not None
        view[:] = bytes(range(100))
        assert bytes(view) == bytes(range(100))


def test_the_environment_hides_it(open_device: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERD_HIDE_HOST_VISIBLE", "1")
    assert not host_sees(open_device())
    monkeypatch.setenv("TIERD_HIDE_HOST_VISIBLE", "0")
    assert host_sees(open_device())
    monkeypatch.delenv("TIERD_HIDE_HOST_VISIBLE")
    assert host_sees(open_device())
    monkeypatch.setenv("TIERD_HIDE_HOST_VISIBLE", "yes")
    with pytest.raises(DeviceError, match="TIERD_HIDE_HOST_VISIBLE is 'yes'; use 0 or 1, or unset it"):
        open_device()
