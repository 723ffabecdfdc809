"""Which device and queues are taken, and the words in which a device is declined."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from backends.vkapi.devices import (
    AMD,
    AMD_INTEGRATED,
    AMD_RESIZABLE_BAR,
    GIB,
    INTEL_ARC,
    INTEL_INTEGRATED,
    LAVAPIPE_26,
    LLVMPIPE,
    NVIDIA,
    NVIDIA_RESIZABLE_BAR,
    VIRTUAL,
    device,
)
from tierd.backends.vkapi import DeviceFacts, choose_device, choose_matrix
from tierd.backends.vkapi.choose import (
    MATRIX_FEATURES,
    REQUIRED_FEATURES,
    choose_queues,
    matrix_decline,
)
from tierd.backends.vkapi.facts import MatrixShape, QueueFamily, needed_extensions, without_matrices
from tierd.errors import DeviceError


def lone(**differences: object) -> DeviceFacts:
    return device("Card", heaps=[(GIB, True)], types=[(0, "local visible")], **differences)  # type: ignore[arg-type]


def chosen(*facts: DeviceFacts, allow_software: bool = True) -> DeviceFacts:
    return facts[choose_device(facts, allow_software=allow_software)]


def test_a_discrete_device_comes_before_an_integrated_one_and_so_on_whatever_the_order() -> None:
    ranked = [NVIDIA, INTEL_INTEGRATED, VIRTUAL, LLVMPIPE]
    for first in range(len(ranked)):
        for order in itertools.permutations(ranked[first:]):
            assert chosen(*order) is ranked[first]


def test_of_two_of_a_kind_the_one_with_more_memory_of_its_own_is_taken_then_the_first() -> None:
    assert chosen(NVIDIA, NVIDIA_RESIZABLE_BAR, AMD) is NVIDIA_RESIZABLE_BAR
    assert choose_device([NVIDIA, NVIDIA], allow_software=False) == 0


def test_a_software_device_counts_only_when_it_is_allowed() -> None:
    assert chosen(LLVMPIPE) is LLVMPIPE
    with pytest.raises(
        DeviceError, match=r"llvmpipe .* is a software device, .* gpu\.allow_software is set$"
    ):
        choose_device([LLVMPIPE], allow_software=False)


def test_no_device_at_all_is_said() -> None:
    with pytest.raises(DeviceError, match=r"^no Vulkan device was found; install a driver"):
        choose_device([], allow_software=True)


@pytest.mark.parametrize("feature", REQUIRED_FEATURES)
def test_a_missing_feature_is_named(feature: str) -> None:
    with pytest.raises(DeviceError, match=f"Card lacks {feature}$"):
        choose_device([lone(without=feature)], allow_software=False)


@pytest.mark.parametrize(
    ("facts", "decline"),
    [
        (lone(api=(1, 1, 290)), r"offers Vulkan 1\.1, 1\.2 is needed"),
        (lone(shared=16 << 10), "has 16384 bytes of shared memory, 32768 are needed"),
        (lone(invocations=128), "runs 128 invocations in a workgroup, 256 are needed"),
        (lone(queues=(QueueFamily(compute=False, transfer=True),)), "has no queue for compute"),
        (lone(type="other"), "is no kind of GPU that is known"),
    ],
)
def test_what_else_is_missing_is_named(facts: DeviceFacts, decline: str) -> None:
    with pytest.raises(DeviceError, match=f"Card {decline}$"):
        choose_device([facts], allow_software=True)


def test_a_device_that_will_do_is_taken_past_one_that_will_not() -> None:
    assert chosen(lone(without="shaderInt64"), AMD_INTEGRATED) is AMD_INTEGRATED


def test_each_device_declined_is_told_of() -> None:
    with pytest.raises(
        DeviceError, match=r"^no Vulkan device can be used: Card lacks .*; llvmpipe .* is a soft"
    ):
        choose_device([lone(without="shaderInt64"), LLVMPIPE], allow_software=False)


def test_packed_dot_products_are_fast_only_when_the_hardware_does_them() -> None:
    accelerated = "integerDotProduct4x8BitPackedSignedAccelerated"
    features = LLVMPIPE.features | {accelerated}
    assert not LLVMPIPE.fast_dot
    assert device_with(features).fast_dot
    assert not device_with(features - {"shaderIntegerDotProduct"}).fast_dot


def device_with(features: frozenset[str]) -> DeviceFacts:
    return dataclasses.replace(LLVMPIPE, features=features)


@pytest.mark.parametrize(
    ("facts", "families"),
    [(NVIDIA, (2, 1)), (AMD, (1,)), (INTEL_ARC, (1, 2)), (INTEL_INTEGRATED, (0,)), (LLVMPIPE, (0,))],
    ids=lambda value: value.name if isinstance(value, DeviceFacts) else "",
)
def test_compute_keeps_off_graphics_and_copies_have_a_queue_of_their_own_where_there_is_one(
    facts: DeviceFacts, families: tuple[int, ...]
) -> None:
    assert choose_queues(facts.queues) == families


def test_a_queue_for_video_is_not_one_for_copies() -> None:
    video = QueueFamily(compute=False, transfer=True, other=True)
    assert choose_queues([video, QueueFamily(compute=True, transfer=True)]) == (1,)


@pytest.mark.parametrize(
    ("facts", "shape"),
    [
        (NVIDIA_RESIZABLE_BAR, MatrixShape(16, 16, 16)),
        (AMD_RESIZABLE_BAR, MatrixShape(16, 16, 16)),
        (LAVAPIPE_26, MatrixShape(8, 8, 8)),
        (lone(matrices=((8, 8, 16), (64, 64, 16), (16, 16, 8), (8, 16, 16))), MatrixShape(16, 16, 8)),
    ],
    ids=lambda value: value.name if isinstance(value, DeviceFacts) else "",
)
def test_the_largest_cooperative_matrices_that_fit_are_taken(facts: DeviceFacts, shape: MatrixShape) -> None:
    assert choose_matrix(facts) == shape
    assert matrix_decline(facts) == ""


@pytest.mark.parametrize("feature", MATRIX_FEATURES)
def test_a_feature_that_cooperative_matrices_miss_is_named(feature: str) -> None:
    facts = lone(matrices=((16, 16, 16),), without=feature)
    assert matrix_decline(facts) == f"lacks {feature}"
    assert choose_device([facts], allow_software=False) == 0


@pytest.mark.parametrize(
    ("facts", "decline"),
    [
        (lone(matrices=((32, 32, 16), (16, 16, 4))), r"sizes .*: 32 x 32 x 16, 16 x 16 x 4\)$"),
        (lone(matrices=((16, 16, 16),), subgroup=128), "has subgroups of 128 lanes, 8, 16, 32, 64 are "),
        (LLVMPIPE, "lacks cooperativeMatrix, "),
        (NVIDIA, "lacks cooperativeMatrix, "),
    ],
)
def test_cooperative_matrices_that_will_not_do_are_declined(facts: DeviceFacts, decline: str) -> None:
    assert re.search(decline, matrix_decline(facts))


def test_cooperative_matrices_of_other_numbers_are_none() -> None:
    facts = dataclasses.replace(lone(matrices=((16, 16, 16),)), matrices=())
    assert matrix_decline(facts).endswith("added up as 32-bit ones: none)")


def test_what_belongs_to_cooperative_matrices_is_left_alone_unless_they_are_used() -> None:
    extension = "VK_KHR_cooperative_matrix"
    facts = dataclasses.replace(NVIDIA_RESIZABLE_BAR, extensions=frozenset({extension}))
    assert needed_extensions(facts) == [extension]
    left = without_matrices(facts)
    assert needed_extensions(left) == []
    assert choose_matrix(left) is None
    assert facts.features - left.features == {
        "cooperativeMatrix",
        "subgroupSizeControl",
        "computeFullSubgroups",
    }
    older = dataclasses.replace(
        facts, api=(1, 2, 200), extensions=frozenset({extension, "VK_EXT_subgroup_size_control"})
    )
    assert needed_extensions(older) == ["VK_EXT_subgroup_size_control", extension]
