"""Uploads, written straight and through staging buffers: every byte arrives, none beside its place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from backends.vkapi.words import get, put, words
from faulty import take_back
from tierd.backends.vkapi import Buffer, Commands, Device, Part, Recorder, Role
from tierd.backends.vkapi.facts import QueueFamily
from tierd.backends.vkapi.timeline import Timeline
from tierd.backends.vkapi.upload import Uploader
from tierd.errors import DeviceError, DeviceTimeoutError

SOURCE = np.random.default_rng(5).integers(0, 256, 1 << 20, np.uint8)


def fill(view: memoryview, offset: int, size: int) -> None:
    assert len(view) == size
    view[:] = SOURCE[offset : offset + size].data


def content(device: Device, buffer: Buffer) -> np.ndarray:
    return get(device, buffer).view(np.uint8)


def blank(device: Device, count: int) -> Buffer:
    return put(device, np.zeros(count // 4, np.uint32))


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("chunk_bytes", [1000, 4096, 64 << 20])
def test_parts_of_any_size_arrive_at_their_places(device: Device, chunk_bytes: int, chunks: int) -> None:
    sizes = [1, 63, 64, 65, 999, 1000, 1001, 0, 5000, 16384, 12]
    targets = [blank(device, size + 64 & ~3) for size in sizes]
    parts, source = [], 17
    for size, target in zip(sizes, targets, strict=True):
        parts.append(Part(target, source, size, offset=7))
        source += size + 3
    told: list[int] = []
    device.upload(parts, fill, progress=told.append, chunk_bytes=chunk_bytes, chunks=chunks)
    for part in parts:
        expected = np.zeros(part.target.size, np.uint8)
        expected[7 : 7 + part.size] = SOURCE[part.source : part.source + part.size]
        assert np.array_equal(content(device, part.target), expected)
    assert told == sorted(set(told))
    assert told[-1] == sum(sizes)


def test_the_source_is_asked_for_once_and_in_order(device: Device) -> None:
    target = device.buffer(10_000, Role.DEVICE)
    asked: list[tuple[int, int]] = []

    def watched(view: memoryview, offset: int, size: int) -> None:
        asked.append((offset, size))
        fill(view, offset, size)

    device.upload([Part(target, 100, 10_000)], watched, chunk_bytes=4096)
    assert asked == [(100, 4096), (4196, 4096), (8292, 1808)]


def test_a_source_that_fails_leaves_nothing_behind(device: Device) -> None:
    targets = [device.buffer(8192, Role.DEVICE) for _ in range(2)]

    def failing(view: memoryview, offset: int, size: int) -> None:
        if offset >= 8192:
            raise OSError("the disk is gone")
        fill(view, offset, size)

    with pytest.raises(OSError, match="the disk is gone"):
        device.upload([Part(targets[0], 0, 8192), Part(targets[1], 8192, 8192)], failing, chunk_bytes=4096)
    assert np.array_equal(content(device, targets[0]), SOURCE[:8192])
    device.upload([Part(targets[1], 0, 8192)], fill)
    assert np.array_equal(content(device, targets[1]), SOURCE[:8192])


def test_staging_is_given_back(open_device: Callable[..., Device]) -> None:
    """Of a heap that holds two staging buffers at a time, any number of uploads can be made."""
    device = open_device(hide_host_visible=True)
    a = words(1 << 16)
    heap = device.facts.heaps[0].size
    for _ in range(5):
        put(device, a, chunk_bytes=heap // 3, chunks=1).close()
    assert device.used == 0


def test_steps_wait_for_what_another_queue_copies(open_device: Callable[..., Device]) -> None:
    """The device has one queue, which stands in for two: copies are recorded as for one that only copies."""
    device = open_device(hide_host_visible=True)
    copies = Timeline(device.vk, 0)
    only_copies = QueueFamily(compute=False, transfer=True)
    recorded: set[Commands] = set()

    def record(timeline: Timeline) -> Recorder:
        commands = Commands(device.vk, 0, timeline.semaphore, 0, recorded)
        return Recorder(device.vk, commands, only_copies)

    followed: list[tuple[Timeline, int]] = []
    follow = device._steps.follow

    def watched(other: Timeline, value: int) -> None:
        followed.append((other, value))
        follow(other, value)

    device._steps.follow = watched  # type: ignore[method-assign]
    target = device.buffer(10_000, Role.DEVICE)
    before = device.submit(device.recorder().finish())
    uploader = Uploader(device._memory, copies, device._steps, record)
    uploader.run([Part(target, 0, 10_000)], fill, None, chunk_bytes=4096, chunks=2)
    copies.wait(3, 0)
    assert followed == [(copies, 3)]
    assert recorded == set()
    assert np.array_equal(content(device, target), SOURCE[:10_000])
    assert (
        device.submit(device.recorder().finish()) == before + 2
    )  # the upload spent none of the steps' values
    device.vk.call("vkDeviceWaitIdle", device.vk.device)
    copies.close()


def test_steps_do_not_overtake_another_queue(open_device: Callable[..., Device]) -> None:
    device = open_device()
    other = Timeline(device.vk, 0)
    device._steps.follow(other, 1)
    value = device.submit(device.recorder().finish())
    with pytest.raises(DeviceTimeoutError):
        device.wait(value, 0.05)
    take_back(device)
    signal = device.vk.structs().new("VkSemaphoreSignalInfo", semaphore=other.semaphore, value=1)
    device.vk.call("vkSignalSemaphore", device.vk.device, signal)
    device.wait(value, 10)
    other.close()


def test_nothing_to_upload_is_no_work(device: Device) -> None:
    before = device.calls
    device.upload([], fill)
    assert device.calls == before


@pytest.mark.parametrize(("offset", "size"), [(0, 129), (100, 29), (-1, 4), (0, -1)])
def test_a_part_that_does_not_fit_its_target_is_refused(device: Device, offset: int, size: int) -> None:
    target = device.buffer(128, Role.DEVICE)
    with pytest.raises(DeviceError, match=f"an upload of {size} bytes to byte {offset} of a buffer of 128"):
        device.upload([Part(target, 0, size, offset)], fill)
