"""The witness: one real dispatch, whose result is looked at, before a device is believed to compute."""

from __future__ import annotations

import numpy as np

from tierd.backends.resident import manifest
from tierd.backends.vkapi import Device, Role
from tierd.errors import DeviceError

_WIDTH, _ROWS = 300, 2
# Values of a row that one group adds.
_SPAN = 256
_TIMEOUT_S = 10.0


def witness(device: Device) -> None:
    """Add two arrays on a device.

    Raises DeviceError when that fails or comes out wrong, DeviceTimeoutError when it does not end.
    """
    a = np.arange(_ROWS * _WIDTH, dtype=np.float32).reshape(_ROWS, _WIDTH)
    values = [a, a[::-1] * np.float32(0.5), np.zeros_like(a)]
    buffers = [device.buffer(a.nbytes, Role.READBACK) for _ in values]
    views = []
    for buffer, array in zip(buffers, values, strict=True):
        assert buffer.view is not None
        views.append(np.frombuffer(buffer.view, np.float32)[: a.size].reshape(a.shape))
        views[-1][...] = array
    kernel = manifest.kernel("add")
    names = ("a", "b", "out")
    push = {name: buffer.address for name, buffer in zip(names, buffers, strict=True)}
    push |= {f"{name}_stride": _WIDTH for name in names}
    recorder = device.recorder()
    recorder.bind(device.pipeline(manifest.spirv(kernel, "plain"), kernel.push_bytes))
    recorder.push(manifest.pack(kernel, width=_WIDTH, **push))
    recorder.dispatch(-(-_WIDTH // _SPAN), _ROWS, 1)
    commands = recorder.finish()
    device.wait(device.submit(commands), _TIMEOUT_S)
    right = np.array_equal(views[2], values[0] + values[1])
    commands.close()
    views.clear()
    for buffer in buffers:
        buffer.close()
    if not right:
        raise DeviceError(f"{device.facts.name} adds wrongly; its driver cannot be trusted")
