"""What the device's memory and its way to the host can do at best, by copies that do nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np

from device.report import Found, line
from tierd.backends.resident import manifest
from tierd.backends.vkapi import Buffer, Device, Part, Recorder, Role

TIMEOUT_S = 60.0
_STAGED = 256 << 20
_ROW_BYTES = 64 << 10
# What a measurement takes at least on a device that is no software.
_SECONDS = 0.2
# Bytes that one group of the kernel `select` copies.
_GROUP_BYTES = 1 << 10


def bandwidth(device: Device, *, largest: int) -> Found:
    """Return bytes a second: read and written together within the device, moved from the host.

    copy: vkCmdCopyBuffer. kernel: a compute shader that copies. memory: the better one.
    staging: from a staging buffer by the queue of steps. upload: by `Device.upload` with nothing to fill;
    None where the host writes the device's memory itself. to_device: the better one.
    largest: bytes of a buffer, far more than a cache holds.
    """
    room = (device.budget() - device.used) // 4
    size = max(min(largest, room) // _ROW_BYTES, 1) * _ROW_BYTES
    with contextlib.ExitStack() as stack:
        source, target = (
            stack.enter_context(contextlib.closing(device.buffer(size, Role.DEVICE))) for _ in range(2)
        )
        staged = min(size, _STAGED)
        staging = stack.enter_context(contextlib.closing(device.buffer(staged, Role.UPLOAD)))
        found: Found = {
            "copy": 2 * size / _seconds(device, lambda recorder: recorder.copy(source, target)),
            "kernel": 2 * size / _kernel_seconds(device, source, target),
            "staging": staged / _seconds(device, lambda recorder: recorder.copy(staging, target)),
            "upload": _upload_rate(device, target) if target.view is None else None,
        }
    found["memory"] = max(found["copy"], found["kernel"])
    found["to_device"] = max(found["staging"], found["upload"] or 0.0)
    found["buffer_bytes"] = size
    line("copy within the device", f"{found['copy'] / 1e9:.1f} GB/s read and written")
    line("the same by a kernel", f"{found['kernel'] / 1e9:.1f} GB/s")
    line("copy from staging", f"{found['staging'] / 1e9:.1f} GB/s")
    if found["upload"]:
        line("upload with nothing to fill", f"{found['upload'] / 1e9:.1f} GB/s")
    return found


def _seconds(device: Device, record: Callable[[Recorder], None]) -> float:
    """Return how long the device takes for what is recorded, by its own clock: the best of a few."""
    once = _run(device, record, 1)
    repeats = 2 if device.facts.type == "software" else max(1, min(int(_SECONDS / 4 / once), 64))
    return min(_run(device, record, repeats) for _ in range(4))


def _run(device: Device, record: Callable[[Recorder], None], repeats: int) -> float:
    recorder = device.recorder(timestamps=2)
    recorder.timestamp(0)
    for _ in range(repeats):
        record(recorder)
        recorder.barrier()
    recorder.timestamp(1)
    commands = recorder.finish()
    device.wait(device.submit(commands), TIMEOUT_S)
    seconds = device.timestamps(commands)[1] / repeats
    commands.close()
    return max(seconds, 1e-9)


def _kernel_seconds(device: Device, source: Buffer, target: Buffer) -> float:
    """Copy with the kernel that picks rows: all of them, in order."""
    kernel, rows, floats = manifest.kernel("select"), source.size // _ROW_BYTES, _ROW_BYTES // 4
    pipeline = device.pipeline(manifest.spirv(kernel, "plain"), kernel.push_bytes)
    with contextlib.closing(device.buffer(4 * rows, Role.STEP)) as selection:
        assert selection.view is not None
        np.frombuffer(selection.view, np.uint32)[:] = np.arange(rows)
        push = manifest.pack(
            kernel,
            src=source.address,
            selection=selection.address,
            out=target.address,
            width=floats,
            src_stride=floats,
            out_stride=floats,
        )

        def record(recorder: Recorder) -> None:
            recorder.bind(pipeline)
            recorder.push(push)
            recorder.dispatch(_ROW_BYTES // _GROUP_BYTES, rows)

        return _seconds(device, record)


def _upload_rate(device: Device, target: Buffer) -> float:
    """Upload without filling the staging buffers: what the way there bears."""

    def nothing(view: memoryview, offset: int, size: int) -> None:
        pass

    rates = []
    for _ in range(3):
        started = time.perf_counter()
        device.upload([Part(target, 0, target.size)], nothing)
        rates.append(target.size / (time.perf_counter() - started))
    return max(rates)
