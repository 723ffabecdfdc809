"""Runs scaled_add on a device: buffers of uint32 words in and out."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tierd.backends.vkapi import Buffer, Commands, Device, Part, Pipeline, Role

PUSH_BYTES = 28
GROUP = 64

Words = npt.NDArray[np.uint32]


def words(count: int, seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


def put(device: Device, source: Words, **options: int) -> Buffer:
    """Return a device buffer that holds the words."""
    target = device.buffer(source.nbytes, Role.DEVICE)
    content = source.view(np.uint8)

    def fill(view: memoryview, offset: int, size: int) -> None:
        view[:] = content[offset : offset + size].data

    device.upload([Part(target, 0, source.nbytes)], fill, **options)  # type: ignore[arg-type]
    return target


def get(device: Device, source: Buffer) -> Words:
    """Return the words of a device buffer."""
    target = device.buffer(source.size, Role.READBACK)
    recorder = device.recorder()
    recorder.copy(source, target)
    run(device, recorder.finish())
    assert target.view is not None
    content = np.frombuffer(bytes(target.view), np.uint32)
    target.close()
    return content


def run(device: Device, commands: Commands) -> None:
    device.wait(device.submit(commands), 10)
    commands.close()


def add(a: Buffer, b: Buffer, out: Buffer) -> bytes:
    """Return the push constants of scaled_add."""
    return struct.pack("QQQI", a.address, b.address, out.address, out.size // 4)


def groups(out: Buffer) -> int:
    return -(-out.size // 4 // GROUP)


def dispatch(device: Device, pipeline: Pipeline, buffers: Sequence[Buffer]) -> None:
    """Run scaled_add once."""
    a, b, out = buffers
    recorder = device.recorder()
    recorder.bind(pipeline)
    recorder.push(add(a, b, out))
    recorder.dispatch(groups(out))
    run(device, recorder.finish())
