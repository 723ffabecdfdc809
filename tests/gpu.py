"""The device that tests run shaders on: llvmpipe where there is no other, under the validation layer."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.backends.resident import manifest
from tierd.backends.vkapi import Buffer, Device, Pipeline, Recorder, Role

TIMEOUT_S = 60.0
# Puts a process's devices under the validation layer, which then writes to the standard output.
WATCHED = {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation"}


def memory_is_hidden() -> bool:
    """Whether devices that tests open without a word on it hide their own memory; see tests/conftest.py."""
    return os.environ["TIERD_HIDE_HOST_VISIBLE"] == "1"


def host_sees(device: Device) -> bool:
    """Whether the host sees the device's own memory."""
    buffer = device.buffer(1, Role.DEVICE)
    try:
        return buffer.view is not None
    finally:
        buffer.close()


class Placed:
    """An array and its copy in the device's own memory, which the host does not see.

    address: of the copy, for shaders. values: the array, for tests to read and write between runs.
    """

    def __init__(self, device: Device, array: npt.NDArray[Any]) -> None:
        self.values = array.copy(order="C")
        self._bytes = self.values.reshape(-1).view(np.uint8)
        self._buffer = device.buffer(array.nbytes, Role.DEVICE)
        self._stage = device.buffer(array.nbytes, Role.READBACK)
        assert self._stage.view is not None
        self._staged = np.frombuffer(self._stage.view, np.uint8)
        self.address = self._buffer.address
        weakref.finalize(self, _close, self._buffer, self._stage)

    def send(self, recorder: Recorder) -> None:
        """Record that the array goes to the device."""
        self._staged[:] = self._bytes
        recorder.copy(self._stage, self._buffer)

    def bring(self, recorder: Recorder) -> None:
        """Record that what the device made of it comes back, for `keep`."""
        recorder.copy(self._buffer, self._stage)

    def keep(self) -> None:
        """Take what came back."""
        self._bytes[:] = self._staged


def _close(*buffers: Buffer) -> None:
    for buffer in buffers:
        buffer.close()


class Gpu:
    """Runs installed kernels, one dispatch at a time, and waits for it."""

    def __init__(self, device: Device | None = None) -> None:
        """device: taken over; None: one that is opened here."""
        if device is None:
            device = Device.open(allow_software=True, validate=True)
            assert not (memory_is_hidden() and host_sees(device))
        self.device = device
        self._pipelines: dict[tuple[Any, ...], Pipeline] = {}
        self._placed: weakref.WeakSet[Placed] = weakref.WeakSet()
        self._kept: list[Placed] = []  # until the next run is over, also where only their address is held

    def place(self, array: npt.NDArray[Any]) -> Placed:
        """Put a copy of an array where the device has it in the next run, and in others while it is held."""
        placed = Placed(self.device, array)
        self._placed.add(placed)
        self._kept.append(placed)
        return placed

    def run(
        self,
        name: str,
        variant: str,
        grid: tuple[int, int, int],
        constants: Mapping[str, int | float] | None = None,
        subgroup: int = 0,
        **push: float,
    ) -> None:
        """Run a kernel's variant over a grid of groups. constants: by name. push: its push fields.

        subgroup: see `Device.pipeline`.
        """
        kernel = manifest.kernel(name)
        key = (name, variant, subgroup, *sorted((constants or {}).items()))
        if key not in self._pipelines:
            values = {kernel.constants[name]: value for name, value in (constants or {}).items()}
            spirv = manifest.spirv(kernel, variant)
            self._pipelines[key] = self.device.pipeline(spirv, kernel.push_bytes, values, subgroup)
        placed = list(self._placed)
        recorder = self.device.recorder()
        for each in placed:
            each.send(recorder)
        recorder.barrier()
        recorder.bind(self._pipelines[key])
        recorder.push(manifest.pack(kernel, **push))
        recorder.dispatch(*grid)
        recorder.barrier()
        for each in placed:
            each.bring(recorder)
        commands = recorder.finish()
        self.device.wait(self.device.submit(commands), TIMEOUT_S)
        commands.close()
        for each in placed:
            each.keep()
        self._kept.clear()

    def close(self) -> None:
        """Close the device."""
        self.device.close()
