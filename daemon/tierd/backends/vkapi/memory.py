"""A device's memory: buffers cut out of a few large allocations, within a budget."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from tierd.backends.vkapi.binding import Vk
from tierd.backends.vkapi.facts import MEMORY_BUDGET, DeviceFacts
from tierd.backends.vkapi.memory_types import Role, TypeChoice, choose_types
from tierd.backends.vkapi.ranges import Ranges, aligned
from tierd.errors import DeviceError, DeviceMemoryError

log = logging.getLogger(__name__)

_MIB = 1 << 20
# "1" lets every device of the process be one whose own memory the host does not see.
_HIDE_HOST_VISIBLE = "TIERD_HIDE_HOST_VISIBLE"
# VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT, VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT: the package lacks them.
_BUFFER_USAGE_DEVICE_ADDRESS = 0x20000
_MEMORY_ALLOCATE_DEVICE_ADDRESS = 0x2
# What one allocation holds; whatever is larger than half of it gets an allocation of its own.
_BLOCK_BYTES = {
    Role.DEVICE: 256 * _MIB,
    Role.UPLOAD: 8 * _MIB,
    Role.READBACK: 8 * _MIB,
    Role.STEP: 1 * _MIB,
}
# Where a driver does not tell a heap's budget, role DEVICE leaves one in so many bytes to others.
_HEAD_ROOM = 10


def _hidden_by_environment() -> bool:
    value = os.environ.get(_HIDE_HOST_VISIBLE, "0")
    if value not in ("0", "1"):
        raise DeviceError(f"{_HIDE_HOST_VISIBLE} is {value!r}; use 0 or 1, or unset it")
    if value == "1":
        log.info("the device's memory is hidden from the host: %s is set", _HIDE_HOST_VISIBLE)
    return value == "1"


class Block:
    """One allocation with the one VkBuffer that spans it.

    heap: what it was taken from. address: where shaders find it. view: its bytes where the host sees them,
    else None.
    """

    def __init__(
        self, handle: Any, memory: Any, heap: int, address: int, view: memoryview | None, size: int
    ) -> None:
        self.handle = handle
        self.heap = heap
        self.memory = memory
        self.address = address
        self.view = view
        self.ranges = Ranges(size)


class Buffer:
    """A range of device memory.

    address: of its first byte for shaders, a multiple of 16 at least. size: bytes, as asked for. role: what
    it is for. view: its bytes for roles that the host sees, else None; not to be used after `close`.
    """

    def __init__(self, memory: Memory, block: Block, start: int, size: int, role: Role) -> None:
        """Use `Device.buffer`."""
        self._memory = memory
        self._open = True
        self.block = block
        self.start = start
        self.size = size
        self.role = role
        self.address = block.address + start
        self.view = None if block.view is None else block.view[start : start + size]

    def close(self) -> None:
        """Give the bytes back. Idempotent; the device must be done with them."""
        if self._open:
            self._open = False
            self._memory.release(self)


class Memory:
    """Allocates by role. Any thread may ask.

    used: bytes that buffers of role DEVICE take.
    """

    def __init__(
        self,
        vk: Vk,
        physical: Any,
        facts: DeviceFacts,
        *,
        families: tuple[int, ...],
        limit: int,
        given_up: Sequence[Memory],
        hide_host_visible: bool | None,
    ) -> None:
        """families: the queue families that share the buffers. limit: bytes of role DEVICE, 0 for no cap.

        given_up: memory of the same device that is taken and not freed any more.
        hide_host_visible: see `choose_types`; None for what TIERD_HIDE_HOST_VISIBLE says, which is 0 or 1.
        """
        if hide_host_visible is None:
            hide_host_visible = _hidden_by_environment()
        self._vk = vk
        self._physical = physical
        self._facts = facts
        self._families = families
        self._limit = limit
        self._given_up = tuple(given_up)
        self._lock = threading.Lock()
        self._blocks: dict[Role, list[Block]] = {role: [] for role in Role}
        self._allocated = [0] * len(facts.heaps)
        self.used = 0
        probe = self._create_buffer(aligned(1))
        usable = int(self._requirements(probe).memoryTypeBits)
        vk.call("vkDestroyBuffer", vk.device, probe, vk.null)
        self._choices = choose_types(
            facts.memory_types, facts.heaps, usable=usable, hide_host_visible=hide_host_visible
        )

    def buffer(self, size: int, role: Role) -> Buffer:
        """Return a buffer; its content is undefined. Raises DeviceMemoryError when there is no room."""
        if size <= 0:
            raise DeviceError(f"a buffer of {size} bytes cannot be made")
        self._vk.check()
        with self._lock:
            block, start = self._place(size, role)
            if role is Role.DEVICE:
                self.used += aligned(size)
        return Buffer(self, block, start, size, role)

    def release(self, buffer: Buffer) -> None:
        """Take a buffer's bytes back, and free its block when nothing else is in it."""
        with self._lock:
            block = buffer.block
            if self._vk.given_up:
                return  # it stays taken
            if block not in self._blocks[buffer.role]:
                return  # freed as a whole, with the device
            block.ranges.give(buffer.start)
            if buffer.role is Role.DEVICE:
                self.used -= aligned(buffer.size)
            if not block.ranges.taken:
                self._blocks[buffer.role].remove(block)
                self._free(block)

    def budget(self) -> int:
        """Return the bytes that buffers of role DEVICE may take in all, those that are taken included."""
        with self._lock:
            return self._held(Role.DEVICE) + self._left(Role.DEVICE, self._choices[Role.DEVICE][0])

    def close(self) -> None:
        """Free everything. The device is done with it, and no buffer may be used any more."""
        for blocks in self._blocks.values():
            for block in blocks:
                self._free(block)
            blocks.clear()

    def _place(self, size: int, role: Role) -> tuple[Block, int]:
        for block in self._blocks[role]:
            start = block.ranges.take(size)
            if start is not None:
                return block, start
        block = self._add_block(aligned(size), role)
        start = block.ranges.take(size)
        assert start is not None  # an empty block holds what it was made for
        return block, start

    def _add_block(self, size: int, role: Role) -> Block:
        """Allocate a block with room for `size` bytes in the first heap that has it."""
        *better, last = self._choices[role]
        for choice in better:
            try:
                return self._add_block_of(size, role, choice)
            except DeviceMemoryError as error:
                log.info("%s: memory for the role %s is taken elsewhere", error, role.value)
        return self._add_block_of(size, role, last)

    def _add_block_of(self, size: int, role: Role, choice: TypeChoice) -> Block:
        """Allocate a usual block if there is room, else just what is asked for."""
        limits = self._facts.limits
        if size > limits.allocation:
            raise DeviceMemoryError(
                f"{self._facts.name} allocates {limits.allocation >> 20} MiB at a time, and {size >> 20} MiB "
                "are asked for in one piece; use a smaller model or context"
            )
        left = self._left(role, choice)
        if size > left:
            total = self._held(role) + left
            raise DeviceMemoryError(
                f"{self._facts.name} has {left / _MIB:.1f} MiB left of {total / _MIB:.1f} MiB and "
                f"{size / _MIB:.1f} MiB are asked for; serve less, or raise gpu.vram_limit_mb if it is set"
            )
        usual = min(_BLOCK_BYTES[role], limits.allocation, left) // aligned(1) * aligned(1)
        if size <= _BLOCK_BYTES[role] // 2 and usual > size:
            try:
                return self._allocate(usual, role, choice)
            except DeviceMemoryError:
                pass  # the rest may still fit what was asked for
        return self._allocate(size, role, choice)

    def _allocate(self, size: int, role: Role, choice: TypeChoice) -> Block:
        vk = self._vk
        structs = vk.structs()
        handle = self._create_buffer(size)
        memory = vk.null
        try:
            flags = structs.new("VkMemoryAllocateFlagsInfo", flags=_MEMORY_ALLOCATE_DEVICE_ADDRESS)
            needed = int(self._requirements(handle).size)
            info = structs.new(
                "VkMemoryAllocateInfo", pNext=flags, allocationSize=needed, memoryTypeIndex=choice.index
            )
            memory = vk.create("vkAllocateMemory", "VkDeviceMemory", vk.device, info, vk.null)
            vk.call("vkBindBufferMemory", vk.device, handle, memory, 0)
            view = None
            if choice.mapped:
                pointer = vk.create("vkMapMemory", "void *", vk.device, memory, 0, size, 0)
                view = memoryview(vk.ffi.buffer(pointer, size)).cast("B")
            where = structs.new("VkBufferDeviceAddressInfo", buffer=handle)
            address = int(vk.value("vkGetBufferDeviceAddress", vk.device, where))
        except DeviceError:
            vk.call("vkDestroyBuffer", vk.device, handle, vk.null)
            vk.call("vkFreeMemory", vk.device, memory, vk.null)
            raise
        block = Block(handle, memory, self._heap(choice), address, view, size)
        self._blocks[role].append(block)
        self._allocated[block.heap] += size
        return block

    def _free(self, block: Block) -> None:
        """Freeing memory unmaps it."""
        vk = self._vk
        vk.call("vkDestroyBuffer", vk.device, block.handle, vk.null)
        vk.call("vkFreeMemory", vk.device, block.memory, vk.null)
        self._allocated[block.heap] -= block.ranges.size

    def _create_buffer(self, size: int) -> Any:
        """Make a VkBuffer that all families share: that costs a buffer nothing, and none has to own it."""
        vk, k = self._vk, self._vk.k
        structs = vk.structs()
        shared = len(self._families) > 1
        info = structs.new(
            "VkBufferCreateInfo",
            size=size,
            usage=k.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | k.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | k.VK_BUFFER_USAGE_TRANSFER_DST_BIT
            | k.VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT
            | _BUFFER_USAGE_DEVICE_ADDRESS,
            sharingMode=k.VK_SHARING_MODE_CONCURRENT if shared else k.VK_SHARING_MODE_EXCLUSIVE,
            queueFamilyIndexCount=len(self._families) if shared else 0,
            pQueueFamilyIndices=structs.array("uint32_t", self._families),
        )
        return vk.create("vkCreateBuffer", "VkBuffer", vk.device, info, vk.null)

    def _requirements(self, handle: Any) -> Any:
        needed = self._vk.ffi.new("VkMemoryRequirements *")
        self._vk.call("vkGetBufferMemoryRequirements", self._vk.device, handle, needed)
        return needed

    def _heap(self, choice: TypeChoice) -> int:
        return self._facts.memory_types[choice.index].heap

    def _held(self, role: Role) -> int:
        return sum(block.ranges.size for block in self._blocks[role])

    def _left(self, role: Role, choice: TypeChoice) -> int:
        """Return the bytes that may still be allocated for a role in memory of a type."""
        heap = self._heap(choice)
        size = self._facts.heaps[heap].size
        if MEMORY_BUDGET in self._facts.extensions:
            left = self._driver_left(heap)
        else:
            left = size - self._allocated[heap] - sum(each._allocated[heap] for each in self._given_up)
            if role is Role.DEVICE:
                left -= size // _HEAD_ROOM
        if role is Role.DEVICE and self._limit:
            taken = sum(each._held(role) for each in (self, *self._given_up))
            left = min(left, self._limit - taken)
        return max(left, 0)

    def _driver_left(self, heap: int) -> int:
        vk = self._vk
        structs = vk.structs()
        budget = structs.new("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        first = structs.new("VkPhysicalDeviceMemoryProperties2", pNext=budget)
        vk.call("vkGetPhysicalDeviceMemoryProperties2", self._physical, first)
        return int(budget.heapBudget[heap]) - int(budget.heapUsage[heap])
