"""A device at work: what is recorded runs, in order, as often as it is submitted."""

from __future__ import annotations

import struct
import threading

import numpy as np
import pytest

from backends.vkapi.words import PUSH_BYTES, add, dispatch, get, groups, put, run, words
from tierd.backends.vkapi import Device, Role, available
from tierd.errors import DeviceError

COUNT = 5000


def test_a_software_device_is_available_when_allowed() -> None:
    assert available(allow_software=True) == ""


def test_facts_of_the_device_are_told() -> None:
    with Device.open(allow_software=True) as device:
        assert device.facts.type == "software"
        assert "llvmpipe" in device.facts.driver
        assert device.facts.api >= (1, 2, 0)
        assert device.facts.limits.push >= 128
        assert device.facts.limits.allocation >= 1 << 30
        assert [family.compute for family in device.facts.queues] == [True]


def test_a_shader_finds_its_buffers_by_address(device: Device, scaled_add: bytes) -> None:
    a, b = words(COUNT, 1), words(COUNT, 2)
    buffers = [put(device, a), put(device, b), device.buffer(a.nbytes, Role.DEVICE)]
    dispatch(device, device.pipeline(scaled_add, PUSH_BYTES), buffers)
    assert np.array_equal(get(device, buffers[2]), a + b)


def test_constants_are_set_by_id(device: Device, scaled_add: bytes) -> None:
    a, b = words(COUNT, 1), words(COUNT, 2)
    buffers = [put(device, a), put(device, b), device.buffer(a.nbytes, Role.DEVICE)]
    dispatch(device, device.pipeline(scaled_add, PUSH_BYTES, {8: 9.0, 3: 7}), buffers)
    assert np.array_equal(get(device, buffers[2]), 7 * a + b + 9)


def test_an_indirect_dispatch_runs_as_many_groups_as_the_step_says(device: Device, scaled_add: bytes) -> None:
    step = device.buffer(64, Role.STEP)
    assert step.view is not None
    a, out = put(device, words(640, 1)), put(device, np.zeros(640, np.uint32))
    recorder = device.recorder()
    recorder.bind(device.pipeline(scaled_add, PUSH_BYTES, {3: 0}))
    recorder.push(add(a, a, out))
    recorder.dispatch_indirect(step, 16)
    commands = recorder.finish()
    for count in (0, 3, 7):
        step.view[16:28] = struct.pack("3I", count, 1, 1)
        device.wait(device.submit(commands), 10)
        assert np.count_nonzero(get(device, out)) == 64 * count


def test_commands_submitted_again_run_after_their_earlier_run(device: Device, scaled_add: bytes) -> None:
    """Each run adds one to every word of a sum; none of a thousand queued at once may be lost."""
    ones = put(device, np.ones(COUNT, np.uint32))
    total = put(device, np.zeros(COUNT, np.uint32))
    recorder = device.recorder()
    recorder.bind(device.pipeline(scaled_add, PUSH_BYTES))
    recorder.push(add(ones, total, total))
    recorder.dispatch(groups(total))
    commands = recorder.finish()
    values = [device.submit(commands) for _ in range(1000)]
    assert values == list(range(values[0], values[0] + 1000))
    device.wait(values[-1], 20)
    assert (get(device, total) == 1000).all()


def test_commands_open_and_end_with_a_barrier(device: Device) -> None:
    """The device at hand runs one command buffer after another anyway; others need to be told."""
    a = device.buffer(256, Role.DEVICE)
    made: list[str] = []
    value = device.vk.value

    def watched(name: str, *args: object) -> object:
        made.append(name)
        return value(name, *args)

    device.vk.value = watched  # type: ignore[method-assign]
    recorder = device.recorder()
    recorder.copy(a, device.buffer(256, Role.DEVICE))
    recorder.finish()
    assert made[made.index("vkBeginCommandBuffer") :] == [
        "vkBeginCommandBuffer",
        "vkCmdPipelineBarrier",
        "vkCmdCopyBuffer",
        "vkCmdPipelineBarrier",
        "vkEndCommandBuffer",
    ]


def test_a_barrier_orders_dispatches_and_copies(device: Device, scaled_add: bytes) -> None:
    a = words(COUNT, 1)
    source, first, second = put(device, a), *(device.buffer(a.nbytes, Role.DEVICE) for _ in range(2))
    recorder = device.recorder()
    recorder.bind(device.pipeline(scaled_add, PUSH_BYTES))
    recorder.copy(source, first)
    for _ in range(3):
        recorder.barrier()
        recorder.push(add(first, source, second))
        recorder.dispatch(groups(second))
        recorder.barrier()
        recorder.copy(second, first)
    run(device, recorder.finish())
    assert np.array_equal(get(device, first), 4 * a)


def test_regions_of_a_buffer_are_copied(device: Device) -> None:
    a = words(100, 1)
    source, target = put(device, a), put(device, np.zeros(100, np.uint32))
    recorder = device.recorder()
    recorder.copy(source, target, [(0, 40, 8), (396, 0, 4)])
    recorder.copy(source, target, [])
    run(device, recorder.finish())
    expected = np.zeros(100, np.uint32)
    expected[10:12], expected[0] = a[:2], a[99]
    assert np.array_equal(get(device, target), expected)


def test_a_step_costs_one_call_to_submit_and_one_to_wait() -> None:
    with Device.open(allow_software=True) as device:
        assert device.calls == 0
        commands = device.recorder().finish()
        before = device.calls
        value = device.submit(commands)
        assert device.calls - before == 1
        device.wait(value, 10)
        assert device.calls - before == 2


def test_timestamps_rise_with_the_work_between_them(device: Device, scaled_add: bytes) -> None:
    a = put(device, words(COUNT, 1))
    recorder = device.recorder(timestamps=3)
    recorder.bind(device.pipeline(scaled_add, PUSH_BYTES))
    recorder.push(add(a, a, a))
    recorder.timestamp(0)
    recorder.barrier()
    recorder.timestamp(1)
    for _ in range(300):
        recorder.dispatch(groups(a))
        recorder.barrier()
    recorder.timestamp(2)
    commands = recorder.finish()
    device.wait(device.submit(commands), 10)
    start, early, late = device.timestamps(commands)
    assert start == 0
    assert 0 <= early < late < 5


def test_a_push_of_the_wrong_size_is_refused(device: Device, scaled_add: bytes) -> None:
    recorder = device.recorder()
    with pytest.raises(DeviceError, match=r"^28 bytes of push constants for a pipeline that takes 0$"):
        recorder.push(bytes(PUSH_BYTES))
    recorder.bind(device.pipeline(scaled_add, PUSH_BYTES))
    with pytest.raises(DeviceError, match=r"^24 bytes of push constants for a pipeline that takes 28$"):
        recorder.push(bytes(24))


def test_threads_record_and_submit_side_by_side(device: Device, scaled_add: bytes) -> None:
    pipeline = device.pipeline(scaled_add, PUSH_BYTES)
    wrong: list[int] = []

    def work(seed: int) -> None:
        a, b = words(COUNT, seed), words(COUNT, seed + 100)
        buffers = [put(device, a), put(device, b), device.buffer(a.nbytes, Role.DEVICE)]
        for _ in range(20):
            dispatch(device, pipeline, buffers)
        if not np.array_equal(get(device, buffers[2]), a + b):
            wrong.append(seed)
        for buffer in buffers:
            buffer.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert device.used == 0


def test_closing_twice_is_fine_and_frees_what_is_still_open(device: Device, scaled_add: bytes) -> None:
    """The device's fixture sees to it that the validation layer reports nothing left behind."""
    buffer = put(device, words(COUNT))
    device.recorder(timestamps=2)
    commands = device.recorder().finish()
    device.pipeline(scaled_add, PUSH_BYTES)
    device.close()
    commands.close()
    buffer.close()
    device.close()
