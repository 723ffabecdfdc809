"""The device that tests run shaders on: llvmpipe where there is no other, under the validation layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.backends.resident import manifest
from tierd.backends.vkapi import Buffer, Device, Pipeline, Role

TIMEOUT_S = 60.0


class Placed:
    """An array that host and device share. address: for shaders. values: the array itself, a view."""

    def __init__(self, buffer: Buffer, like: npt.NDArray[Any]) -> None:
        assert buffer.view is not None
        self.buffer = buffer
        self.address = buffer.address
        self.values = np.frombuffer(buffer.view, like.dtype)[: like.size].reshape(like.shape)
        self.values[...] = like


class Gpu:
    """Runs installed kernels, one dispatch at a time, and waits for it."""

    def __init__(self) -> None:
        self.device = Device.open(allow_software=True, validate=True)
        self._pipelines: dict[tuple[Any, ...], Pipeline] = {}

    def place(self, array: npt.NDArray[Any]) -> Placed:
        """Put a copy of an array where the device can read and write it."""
        return Placed(self.device.buffer(array.nbytes, Role.READBACK), array)

    def run(
        self,
        name: str,
        variant: str,
        grid: tuple[int, int, int],
        constants: Mapping[str, int | float] | None = None,
        **push: float,
    ) -> None:
        """Run a kernel's variant over a grid of groups. constants: by name. push: its push fields."""
        kernel = manifest.kernel(name)
        key = (name, variant, *sorted((constants or {}).items()))
        if key not in self._pipelines:
            values = {kernel.constants[name]: value for name, value in (constants or {}).items()}
            spirv = manifest.spirv(kernel, variant)
            self._pipelines[key] = self.device.pipeline(spirv, kernel.push_bytes, values)
        recorder = self.device.recorder()
        recorder.bind(self._pipelines[key])
        recorder.push(manifest.pack(kernel, **push))
        recorder.dispatch(*grid)
        commands = recorder.finish()
        self.device.wait(self.device.submit(commands), TIMEOUT_S)
        commands.close()

    def close(self) -> None:
        """Close the device."""
        self.device.close()
