"""A model's steps as recorded commands: one recording for each size of step, made when the model loads."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from tierd.backends.resident import manifest
from tierd.backends.resident.assembly import Dispatch, Shader
from tierd.backends.resident.grid import Grids
from tierd.backends.resident.step_block import StepBlock
from tierd.backends.vkapi import Commands, Device, Pipeline, Recorder


class Pipelines:
    """The pipelines of a device, made as they are asked for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._made: dict[Shader, Pipeline] = {}

    def get(self, shader: Shader) -> Pipeline:
        """Return a shader's pipeline. Raises TierdError where the installation lacks it."""
        if shader not in self._made:
            kernel = manifest.kernel(shader.kernel)
            constants = {kernel.constants[name]: value for name, value in shader.constants}
            code = manifest.spirv(kernel, shader.variant)
            self._made[shader] = self._device.pipeline(code, kernel.push_bytes, constants, shader.subgroup)
        return self._made[shader]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Recorded commands, and how many dispatches and barriers between them they hold."""

    commands: Commands
    dispatches: int
    barriers: int


class Sequencer:
    """Records dispatches, with a barrier wherever one reads or overwrites what another has touched."""

    def __init__(
        self,
        recorder: Recorder,
        pipelines: Pipelines,
        grids: Grids,
        block: StepBlock,
        *,
        timed: bool = False,
    ) -> None:
        """timed: note timestamp 0 now, and another one behind each dispatch."""
        self._recorder = recorder
        self._pipelines = pipelines
        self._grids = grids
        self._block = block
        self._read: set[Hashable] = set()  # since the last barrier
        self._written: set[Hashable] = set()
        self._bound: Shader | None = None
        self._timed = timed
        self._dispatches = self._barriers = 0
        if timed:
            recorder.timestamp(0)

    def add(self, dispatches: Iterable[Dispatch]) -> None:
        """Record dispatches, in order."""
        for dispatch in dispatches:
            self._order(dispatch.reads, dispatch.writes)
            if dispatch.shader != self._bound:
                self._recorder.bind(self._pipelines.get(dispatch.shader))
                self._bound = dispatch.shader
            self._recorder.push(dispatch.push)
            offset = self._block.groups_at(self._grids.number(dispatch.grid))
            self._recorder.dispatch_indirect(self._block.buffer, offset)
            self._dispatches += 1
            if self._timed:
                self._recorder.timestamp(self._dispatches)

    def finish(self) -> Recording:
        """End the recording and return it."""
        return Recording(self._recorder.finish(), self._dispatches, self._barriers)

    def _order(self, reads: frozenset[Hashable], writes: frozenset[Hashable]) -> None:
        """Put a barrier before what touches this, if need be."""
        if self._written & (reads | writes) or self._read & writes:
            self._recorder.barrier()
            self._barriers += 1
            self._read.clear()
            self._written.clear()
        self._read |= reads
        self._written |= writes
