"""Which form attention takes: that it fits the device, and how often it reads K and V."""

from __future__ import annotations

import dataclasses

import pytest

from backends.vkapi import devices
from tierd.backends.resident import manifest, ops
from tierd.backends.resident.attention import Form, form_of
from tierd.backends.vkapi import Device
from tierd.backends.vkapi.facts import SUBGROUP_SHUFFLE, DeviceFacts
from tierd.models.plan import RowStore

SOFTWARE = dataclasses.replace(devices.LLVMPIPE, features=devices.LLVMPIPE.features | {SUBGROUP_SHUFFLE})
# A GPU that has no more than every device must have.
LEAST = dataclasses.replace(
    devices.NVIDIA, limits=dataclasses.replace(devices.NVIDIA.limits, shared=32 << 10, invocations=256)
)
HEAD_SIZES = (8, 24, 40, 64, 80, 96, 128, 192, 256, 512, 1024)
GROUPS = (1, 2, 3, 7, 8, 12, 13, 16, 17, 32, 48, 64, 71, 97, 128)


def attend(head_size: int, group: int) -> ops.Attend:
    store = RowStore(0, 2, head_size)
    return ops.Attend(q="q", store=store, heads=2 * group, out="out", quantised=False, scale=1.0, window=0)


@pytest.mark.parametrize("facts", [devices.NVIDIA, LEAST, SOFTWARE], ids=["gpu", "least", "software"])
@pytest.mark.parametrize("rows", [1, 8, 9, 512])
def test_forms_are_what_the_kernel_can_be_made_with(facts: DeviceFacts, rows: int) -> None:
    for head_size in HEAD_SIZES:
        for group in GROUPS:
            form = form_of(attend(head_size, group), facts, rows)
            assert (form.head_size, form.group) == (head_size, group)
            assert (form.parts - 1) * form.queries < group <= form.parts * form.queries
            assert form.query_rows == 1 if rows <= 8 else form.query_rows <= 32
            assert 0 < form.held <= form.vectors
            assert form.shared_bytes < 32 << 10
            assert form.lanes <= facts.limits.invocations
            if form.units == 0:
                assert facts is SOFTWARE
                assert form.held == form.scored == form.vectors
            else:
                assert form.lanes % 64 == 0
                assert form.lanes // 64 * form.scored >= form.vectors
                assert form.units * form.lanes >= max(64, 4 * -(-head_size // 8))


@pytest.mark.parametrize("facts", [devices.NVIDIA, LEAST], ids=["gpu", "least"])
@pytest.mark.parametrize(
    ("head_size", "group"),
    [(64, 1), (128, 4), (256, 8), (128, 16), (256, 32), (128, 48), (64, 64), (128, 64), (64, 71)],
)
def test_a_row_reads_keys_and_values_once(facts: DeviceFacts, head_size: int, group: int) -> None:
    assert form_of(attend(head_size, group), facts, 1).parts == 1


@pytest.mark.parametrize(
    ("head_size", "group", "rows"), [(128, 1, 32), (64, 3, 10), (128, 4, 8), (256, 4, 4), (128, 16, 2)]
)
def test_rows_of_a_chunk_share_what_is_read(head_size: int, group: int, rows: int) -> None:
    assert form_of(attend(head_size, group), devices.NVIDIA, 512).query_rows == rows


def test_the_validation_layer_finds_shared_memory_enough(device: Device) -> None:
    """It knows how much a pipeline needs; the device's limit is the one that forms keep. tq4 needs most."""
    assert device.facts.limits.shared == 32 << 10
    kernel = manifest.kernel("attention")
    forms: set[Form] = set()
    for head_size, group in ((64, 71), (128, 32), (256, 16), (1024, 1)):
        for facts, rows in ((LEAST, 512), (SOFTWARE, 1)):
            forms.add(form_of(attend(head_size, group), facts, rows))
    assert max(form.shared_bytes for form in forms) > 31 << 10
    for form in forms:
        constants = {**form.constants, "OUT_QUANTISED": 1}
        values = {kernel.constants[name]: value for name, value in constants.items()}
        device.pipeline(manifest.spirv(kernel, "tq4"), kernel.push_bytes, values)
    assert device.messages == []
