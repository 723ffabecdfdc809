"""Command buffers: recorded once, submitted as often as wanted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tierd.backends.vkapi.binding import Vk
from tierd.backends.vkapi.facts import QueueFamily
from tierd.backends.vkapi.memory import Buffer
from tierd.backends.vkapi.pipelines import Pipeline
from tierd.errors import DeviceError


class Commands:
    """A command buffer with all it needs; once recorded it may be submitted again while it still runs.

    handle, queries: the VkCommandBuffer and the VkQueryPool of its `timestamps`.
    submission, value: the VkSubmitInfo that submits it, and where that finds the value to signal.
    """

    def __init__(self, vk: Vk, family: int, semaphore: Any, timestamps: int, registry: set[Commands]) -> None:
        """Use `Device.recorder`. registry: where it is noted for as long as it is open."""
        self._vk = vk
        self._registry = registry
        self._pool = self.queries = vk.null
        self.timestamps = timestamps
        registry.add(self)
        try:
            self.handle = self._allocate(family)
            if timestamps:
                self.queries = self._create_queries()
        except DeviceError:
            self.close()
            raise
        self._structs = vk.structs()
        self.value = self._structs.array("uint64_t", [0])
        timeline = self._structs.new(
            "VkTimelineSemaphoreSubmitInfo", signalSemaphoreValueCount=1, pSignalSemaphoreValues=self.value
        )
        self.submission = self._structs.new(
            "VkSubmitInfo",
            pNext=timeline,
            commandBufferCount=1,
            pCommandBuffers=self._structs.array("VkCommandBuffer", [self.handle]),
            signalSemaphoreCount=1,
            pSignalSemaphores=self._structs.array("VkSemaphore", [semaphore]),
        )

    def close(self) -> None:
        """Free it. Idempotent; the device must be done with it."""
        vk = self._vk
        if self in self._registry:
            self._registry.remove(self)
            vk.call("vkDestroyCommandPool", vk.device, self._pool, vk.null)
            vk.call("vkDestroyQueryPool", vk.device, self.queries, vk.null)

    def _allocate(self, family: int) -> Any:
        """A pool of its own, so that it can be recorded and freed whatever happens to others."""
        vk, structs = self._vk, self._vk.structs()
        pool = structs.new("VkCommandPoolCreateInfo", queueFamilyIndex=family)
        self._pool = vk.create("vkCreateCommandPool", "VkCommandPool", vk.device, pool, vk.null)
        info = structs.new("VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=1)
        return vk.create("vkAllocateCommandBuffers", "VkCommandBuffer", vk.device, info)

    def _create_queries(self) -> Any:
        vk, structs = self._vk, self._vk.structs()
        info = structs.new(
            "VkQueryPoolCreateInfo", queryType=vk.k.VK_QUERY_TYPE_TIMESTAMP, queryCount=self.timestamps
        )
        return vk.create("vkCreateQueryPool", "VkQueryPool", vk.device, info, vk.null)


class Recorder:
    """Records commands in order. For one thread; each recorder is independent of all others.

    What is recorded waits for all that was submitted to its queue before, and once its value is signalled the
    host sees what it wrote. In between nothing is ordered but by `barrier`. As a context it frees what was
    recorded where that fails.
    """

    def __init__(self, vk: Vk, commands: Commands, family: QueueFamily) -> None:
        """Use `Device.recorder`. family: of its queue; for one that only copies it records only copies."""
        self._vk = vk
        self._commands = commands
        self._handle = commands.handle
        self._pipeline: Pipeline | None = None
        self._structs = vk.structs()
        k = vk.k
        self._writes = k.VK_ACCESS_TRANSFER_WRITE_BIT
        reads = k.VK_ACCESS_TRANSFER_READ_BIT
        self._stages = self._later_stages = k.VK_PIPELINE_STAGE_TRANSFER_BIT
        if family.compute:
            self._writes |= k.VK_ACCESS_SHADER_WRITE_BIT
            reads |= k.VK_ACCESS_SHADER_READ_BIT | k.VK_ACCESS_INDIRECT_COMMAND_READ_BIT
            self._stages |= k.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
            self._later_stages = self._stages | k.VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT
        self._between = self._structs.new(
            "VkMemoryBarrier", srcAccessMask=self._writes, dstAccessMask=self._writes | reads
        )
        begin = self._structs.new(
            "VkCommandBufferBeginInfo", flags=k.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT
        )
        vk.call("vkBeginCommandBuffer", self._handle, begin)
        self.barrier()
        if commands.timestamps:
            vk.call("vkCmdResetQueryPool", self._handle, commands.queries, 0, commands.timestamps)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._commands.close()

    def bind(self, pipeline: Pipeline) -> None:
        """Let the dispatches that follow run a pipeline."""
        self._pipeline = pipeline
        k = self._vk.k
        self._vk.call("vkCmdBindPipeline", self._handle, k.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle)

    def push(self, constants: bytes) -> None:
        """Set the push constants of the dispatches that follow: all that the bound pipeline takes."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.push_bytes != len(constants):
            taken = 0 if pipeline is None else pipeline.push_bytes
            raise DeviceError(f"{len(constants)} bytes of push constants for a pipeline that takes {taken}")
        self._vk.call(
            "vkCmdPushConstants",
            self._handle,
            pipeline.layout,
            self._vk.k.VK_SHADER_STAGE_COMPUTE_BIT,
            0,
            len(constants),
            self._vk.ffi.from_buffer(constants),
        )

    def dispatch(self, x: int, y: int = 1, z: int = 1) -> None:
        """Run so many workgroups."""
        self._vk.call("vkCmdDispatch", self._handle, x, y, z)

    def dispatch_indirect(self, buffer: Buffer, offset: int = 0) -> None:
        """Run as many workgroups as three uint32 at the offset, a multiple of 4, say when it runs."""
        self._vk.call("vkCmdDispatchIndirect", self._handle, buffer.block.handle, buffer.start + offset)

    def barrier(self) -> None:
        """Let what follows wait for what shaders and copies before it read and wrote, and see the latter."""
        self._barrier(self._later_stages, self._between)

    def copy(
        self, source: Buffer, target: Buffer, regions: Iterable[tuple[int, int, int]] | None = None
    ) -> None:
        """Copy (offset in source, offset in target, bytes) each; None for all of source."""
        if regions is None:
            regions = [(0, 0, source.size)]
        places = [(source.start + first, target.start + second, size) for first, second, size in regions]
        if not places:
            return
        self._vk.call(
            "vkCmdCopyBuffer",
            self._handle,
            source.block.handle,
            target.block.handle,
            len(places),
            self._structs.array("VkBufferCopy", places),
        )

    def timestamp(self, index: int) -> None:
        """Note the time at which all that was recorded so far is done, as number `index`."""
        self._vk.call(
            "vkCmdWriteTimestamp",
            self._handle,
            self._vk.k.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
            self._commands.queries,
            index,
        )

    def finish(self) -> Commands:
        """End the recording and return it. The recorder is of no further use."""
        k = self._vk.k
        seen = self._structs.new(
            "VkMemoryBarrier", srcAccessMask=self._writes, dstAccessMask=k.VK_ACCESS_HOST_READ_BIT
        )
        self._barrier(k.VK_PIPELINE_STAGE_HOST_BIT, seen)
        self._vk.call("vkEndCommandBuffer", self._handle)
        return self._commands

    def _barrier(self, stages: int, barrier: Any) -> None:
        vk = self._vk
        none = (0, vk.null)
        vk.call("vkCmdPipelineBarrier", self._handle, self._stages, stages, 0, 1, barrier, *none, *none)
