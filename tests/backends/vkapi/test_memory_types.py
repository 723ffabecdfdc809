"""Which memory type serves which role, on the property tables of real devices."""

from __future__ import annotations

import pytest

from backends.vkapi.devices import (
    AMD,
    AMD_INTEGRATED,
    AMD_RESIZABLE_BAR,
    INTEL_ARC,
    INTEL_INTEGRATED,
    LLVMPIPE,
    NVIDIA,
    NVIDIA_RESIZABLE_BAR,
)
from tierd.backends.vkapi import DeviceFacts, Role
from tierd.backends.vkapi.facts import MemoryHeap, MemoryType
from tierd.backends.vkapi.memory_types import TypeChoice, choose_types, roles_on_device
from tierd.errors import DeviceError

ALL = [
    NVIDIA,
    NVIDIA_RESIZABLE_BAR,
    AMD,
    AMD_RESIZABLE_BAR,
    AMD_INTEGRATED,
    INTEL_INTEGRATED,
    INTEL_ARC,
    LLVMPIPE,
]


def name(value: object) -> str:
    return value.name if isinstance(value, DeviceFacts) else ""


@pytest.mark.parametrize(
    ("facts", "device", "mapped", "upload", "readback", "step"),
    [
        (NVIDIA, 1, False, 2, 3, 4),
        (NVIDIA_RESIZABLE_BAR, 4, True, 2, 3, 4),
        (AMD, 0, False, 2, 5, 3),
        (AMD_RESIZABLE_BAR, 3, True, 2, 5, 3),
        (AMD_INTEGRATED, 2, True, 1, 3, 2),
        (INTEL_INTEGRATED, 1, True, 1, 2, 1),
        (INTEL_ARC, 1, True, 2, 2, 1),
        (LLVMPIPE, 0, True, 0, 0, 0),
    ],
    ids=name,
)
def test_each_role_gets_the_type_that_suits_it(
    facts: DeviceFacts, device: int, mapped: bool, upload: int, readback: int, step: int
) -> None:
    steps = [TypeChoice(index, True) for index in (step, upload)]
    assert choose_types(facts.memory_types, facts.heaps) == {
        Role.DEVICE: (TypeChoice(device, mapped),),
        Role.UPLOAD: (TypeChoice(upload, True),),
        Role.READBACK: (TypeChoice(readback, True),),
        Role.STEP: tuple(steps if step != upload else steps[:1]),
    }


@pytest.mark.parametrize(
    ("facts", "device", "step"),
    [
        (NVIDIA, 1, 2),
        (NVIDIA_RESIZABLE_BAR, 1, 2),
        (AMD, 0, 2),
        (AMD_RESIZABLE_BAR, 0, 2),
        (AMD_INTEGRATED, 0, 1),
        (INTEL_INTEGRATED, 0, 1),
        (INTEL_ARC, 0, 2),
        (LLVMPIPE, 0, 0),
    ],
    ids=name,
)
def test_hidden_from_the_host_device_memory_has_no_view_and_steps_are_written_elsewhere(
    facts: DeviceFacts, device: int, step: int
) -> None:
    chosen = choose_types(facts.memory_types, facts.heaps, hide_host_visible=True)
    assert chosen[Role.DEVICE] == (TypeChoice(device, False),)
    assert chosen[Role.STEP] == chosen[Role.UPLOAD] == (TypeChoice(step, True),)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("facts", ALL, ids=name)
def test_what_is_mapped_is_coherent_and_nothing_special_is_taken(facts: DeviceFacts, hidden: bool) -> None:
    for role, choices in choose_types(facts.memory_types, facts.heaps, hide_host_visible=hidden).items():
        for choice in choices:
            entry = facts.memory_types[choice.index]
            assert not entry.special
            assert not choice.mapped or (entry.host_visible and entry.coherent)
            assert role is not Role.DEVICE or entry.device_local


@pytest.mark.parametrize(
    ("facts", "others"),
    [
        (NVIDIA, []),
        (NVIDIA_RESIZABLE_BAR, [Role.STEP]),
        (AMD_INTEGRATED, [Role.STEP]),
        (INTEL_INTEGRATED, [Role.UPLOAD, Role.READBACK, Role.STEP]),
        (INTEL_ARC, [Role.STEP]),
        (LLVMPIPE, [Role.UPLOAD, Role.READBACK, Role.STEP]),
    ],
    ids=name,
)
def test_roles_that_take_of_the_devices_own_heap(facts: DeviceFacts, others: list[Role]) -> None:
    assert roles_on_device(facts.memory_types, facts.heaps) == {Role.DEVICE, *others}


@pytest.mark.parametrize("facts", ALL, ids=name)
def test_hidden_memory_is_taken_of_the_same_heaps_but_by_what_each_step_writes(facts: DeviceFacts) -> None:
    seen, hidden = (
        {
            role: facts.memory_types[choices[0].index].heap
            for role, choices in choose_types(facts.memory_types, facts.heaps, hide_host_visible=hide).items()
        }
        for hide in (False, True)
    )
    assert hidden == {**seen, Role.STEP: seen[Role.UPLOAD]}


def test_only_types_that_buffers_may_be_in_are_taken() -> None:
    facts = AMD_RESIZABLE_BAR
    usable = ~(1 << 3 | 1 << 2)
    chosen = choose_types(facts.memory_types, facts.heaps, usable=usable)
    assert chosen[Role.DEVICE][0].index == 4
    assert chosen[Role.UPLOAD][0].index == 5


def test_a_table_without_memory_for_a_role_is_refused() -> None:
    heaps = [MemoryHeap(1 << 30, True)]
    with pytest.raises(DeviceError, match="no memory for the role upload"):
        choose_types([MemoryType(0, device_local=True)], heaps)
    with pytest.raises(DeviceError, match="no memory for the role device"):
        choose_types([MemoryType(0, host_visible=True, coherent=True)], heaps)
