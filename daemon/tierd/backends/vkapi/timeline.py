"""A queue and the timeline semaphore that counts what it has done."""

from __future__ import annotations

import threading

from tierd.backends.vkapi.binding import Vk
from tierd.backends.vkapi.commands import Commands
from tierd.errors import DeviceError


class Timeline:
    """A queue whose submissions signal 1, 2, 3 and so on. Any thread may submit and wait.

    family: the queue's. semaphore: the VkSemaphore.
    """

    def __init__(self, vk: Vk, family: int) -> None:
        """Take the first queue of a family of the opened device."""
        self._vk = vk
        self._lock = threading.Lock()
        self._value = 0
        self.family = family
        queue = vk.ffi.new("VkQueue *")
        vk.call("vkGetDeviceQueue", vk.device, family, 0, queue)
        self._queue = queue[0]
        structs = vk.structs()
        kind = structs.new("VkSemaphoreTypeCreateInfo", semaphoreType=vk.k.VK_SEMAPHORE_TYPE_TIMELINE)
        info = structs.new("VkSemaphoreCreateInfo", pNext=kind)
        self.semaphore = vk.create("vkCreateSemaphore", "VkSemaphore", vk.device, info, vk.null)

    def submit(self, commands: Commands) -> int:
        """Queue commands of this family, in one call, and return the value that they signal once done."""
        with self._lock:
            value = self._value + 1
            commands.value[0] = value
            self._vk.call("vkQueueSubmit", self._queue, 1, commands.submission, self._vk.null)
            self._value = value
        return value

    def wait(self, value: int, timeout_s: float) -> None:
        """Return once a value is signalled.

        Raises DeviceError, DeviceTimeoutError where it takes too long; the device is given up then.
        """
        structs = self._vk.structs()
        info = structs.new(
            "VkSemaphoreWaitInfo",
            semaphoreCount=1,
            pSemaphores=structs.array("VkSemaphore", [self.semaphore]),
            pValues=structs.array("uint64_t", [value]),
        )
        try:
            self._vk.call("vkWaitSemaphores", self._vk.device, info, int(timeout_s * 1e9))
        except DeviceError as error:
            self._vk.give_up(error)
            raise

    def follow(self, other: Timeline, value: int) -> None:
        """Let all that is submitted from now on wait for a value of another queue, and see what it wrote."""
        vk, structs = self._vk, self._vk.structs()
        timeline = structs.new(
            "VkTimelineSemaphoreSubmitInfo",
            waitSemaphoreValueCount=1,
            pWaitSemaphoreValues=structs.array("uint64_t", [value]),
        )
        info = structs.new(
            "VkSubmitInfo",
            pNext=timeline,
            waitSemaphoreCount=1,
            pWaitSemaphores=structs.array("VkSemaphore", [other.semaphore]),
            pWaitDstStageMask=structs.array("uint32_t", [vk.k.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT]),
        )
        with self._lock:
            vk.call("vkQueueSubmit", self._queue, 1, info, vk.null)

    def close(self) -> None:
        """Destroy the semaphore. Nothing submitted may still run."""
        self._vk.call("vkDestroySemaphore", self._vk.device, self.semaphore, self._vk.null)
