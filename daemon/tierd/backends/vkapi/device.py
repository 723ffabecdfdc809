"""A Vulkan device, opened: memory, pipelines, commands and the queues they run on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tierd.backends.vkapi.binding import Vk
from tierd.backends.vkapi.choose import choose_queues, matrix_decline
from tierd.backends.vkapi.commands import Commands, Recorder
from tierd.backends.vkapi.facts import (
    DeviceFacts,
    enable,
    feature_chain,
    needed_extensions,
    without_matrices,
)
from tierd.backends.vkapi.instance import Instance, Validation
from tierd.backends.vkapi.memory import Buffer, Memory
from tierd.backends.vkapi.memory_types import Role
from tierd.backends.vkapi.pipelines import Pipeline, Pipelines
from tierd.backends.vkapi.timeline import Timeline
from tierd.backends.vkapi.upload import CHUNK_BYTES, Fill, Part, Progress, Uploader
from tierd.errors import DeviceError, DeviceLostError


def available(*, allow_software: bool = False) -> str:
    """Return "" when a device can be opened, else why none can: no package, no loader, none that will do."""
    try:
        instance = Instance()
    except DeviceError as error:
        return str(error)
    try:
        instance.choose(allow_software=allow_software)
    except DeviceError as error:
        return str(error)
    finally:
        instance.close()
    return ""


class Device:
    """The device that models run on.

    Buffers are reached by their address, which shaders are given as push constants; there are no descriptors.
    All commands go to one queue and signal the values of one timeline. Any thread may call; what one thread
    is given (a recorder, a buffer's view) is for that thread to use. Once it was given up, all that it does
    raises DeviceLostError.
    """

    @classmethod
    def open(
        cls,
        *,
        allow_software: bool,
        vram_limit: int = 0,
        given_up: Sequence[Device] = (),
        hide_host_visible: bool | None = None,
        validate: Validation = False,
        pipeline_cache: Path | None = None,
        cooperative_matrix: bool = False,
    ) -> Device:
        """Open the best device there is. Raises DeviceError with the reasons when there is none.

        allow_software: let a software device count. vram_limit: bytes that buffers of role DEVICE may take, 0
        for what the device has. given_up: devices that were; what they took is not there any more.
        hide_host_visible: treat device-local memory as if the host could not see it; None: where
        TIERD_HIDE_HOST_VISIBLE is 1.
        validate: run under the Khronos validation layer, "sync" for its check of barriers too.
        pipeline_cache: a directory that keeps compiled pipelines. cooperative_matrix: use the device's
        cooperative matrices; where it has none that will do, `matrix_decline` says why.
        """
        with contextlib.ExitStack() as made:
            instance = Instance(validate=validate)
            made.callback(instance.close)
            physical, facts = instance.choose(allow_software=allow_software)
            decline = matrix_decline(facts) if cooperative_matrix else ""
            if decline or not cooperative_matrix:
                facts = without_matrices(facts)
            queues = choose_queues(facts.queues)
            _open_logical(instance.vk, physical, facts, queues)
            made.callback(_close_logical, instance.vk)
            timelines = []
            for family in queues:
                timelines.append(Timeline(instance.vk, family))
                made.callback(timelines[-1].close)
            memory = Memory(
                instance.vk,
                physical,
                facts,
                families=queues,
                limit=vram_limit,
                given_up=[each._memory for each in given_up if each.facts.uuid == facts.uuid],
                hide_host_visible=hide_host_visible,
            )
            made.callback(memory.close)
            pipelines = Pipelines(instance.vk, facts, pipeline_cache)
            made.callback(pipelines.close)
            device = cls(instance, facts, timelines, memory, pipelines, made.pop_all())
            device.matrix_decline = decline
            return device

    def __init__(
        self,
        instance: Instance,
        facts: DeviceFacts,
        timelines: Sequence[Timeline],
        memory: Memory,
        pipelines: Pipelines,
        made: contextlib.ExitStack,
    ) -> None:
        """Use `open`. timelines: of the queue for steps, and of the one for copies if that is another."""
        self.vk = instance.vk
        self.facts = facts
        self.matrix_decline = ""
        self._instance = instance
        self._steps, copies = timelines[0], timelines[-1]
        self._memory = memory
        self._pipelines = pipelines
        self._made = made
        self._commands: set[Commands] = set()
        self._uploader = Uploader(memory, copies, self._steps, self._record)
        self._open = True
        self.vk.calls = 0

    def abandon(self, error: DeviceError) -> None:
        """Give the device up because of an error: nothing is submitted, waited for or freed any more.

        What it holds may still be in use by work that never ends. A device that is lost, or that does not
        finish in time, gives itself up.
        """
        self.vk.give_up(error)

    @property
    def abandoned(self) -> str:
        """Why the device was given up, "" if it was not."""
        return self.vk.given_up

    @property
    def calls(self) -> int:
        """The number of Vulkan calls made since the device was opened."""
        return self.vk.calls

    @property
    def messages(self) -> list[str]:
        """What the validation layer has said so far: warnings and errors."""
        return self._instance.messages

    @property
    def used(self) -> int:
        """The bytes that buffers of role DEVICE take."""
        return self._memory.used

    def budget(self) -> int:
        """Return the bytes that buffers of role DEVICE may take in all, those that are taken included."""
        return self._memory.budget()

    def buffer(self, size: int, role: Role) -> Buffer:
        """Return a buffer of `size` bytes, content undefined. DeviceMemoryError when there is no room."""
        return self._memory.buffer(size, role)

    def pipeline(
        self,
        spirv: bytes,
        push_bytes: int,
        constants: Mapping[int, int | float] | None = None,
        subgroup: int = 0,
    ) -> Pipeline:
        """Return the pipeline of a shader, which lives as long as the device. See `Pipelines.make`."""
        return self._pipelines.make(spirv, push_bytes, constants or {}, subgroup)

    def save_pipelines(self) -> None:
        """Keep what was compiled so far on disk. `close` does so too."""
        self._pipelines.save()

    def recorder(self, *, timestamps: int = 0) -> Recorder:
        """Return a recorder of commands with so many timestamps. Raises DeviceError if there can be none."""
        return self._record(self._steps, timestamps)

    def submit(self, commands: Commands) -> int:
        """Queue commands, in one call, and return the value that they signal once done."""
        return self._steps.submit(commands)

    def wait(self, value: int, timeout_s: float) -> None:
        """Return once a value is signalled. Raises DeviceTimeoutError and DeviceLostError: it is given up."""
        self._steps.wait(value, timeout_s)

    def timestamps(self, commands: Commands) -> list[float]:
        """Return the seconds from timestamp 0 to each timestamp of commands that are done."""
        vk, count = self.vk, commands.timestamps
        ticks = vk.ffi.new("uint64_t[]", count)
        vk.call(
            "vkGetQueryPoolResults",
            vk.device,
            commands.queries,
            0,
            count,
            8 * count,
            ticks,
            8,
            vk.k.VK_QUERY_RESULT_64_BIT,
        )
        mask = (1 << self.facts.queues[self._steps.family].timestamp_bits) - 1
        period = self.facts.limits.timestamp_period * 1e-9
        return [((tick - ticks[0]) & mask) * period for tick in ticks]

    def upload(
        self,
        parts: Sequence[Part],
        fill: Fill,
        *,
        progress: Progress | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        chunks: int = 2,
    ) -> None:
        """Copy parts of a source to the device and return when all of it is there.

        fill(view, offset, size): put that many bytes of the source, from `offset` on, into `view`. It is
        called in order with at most `chunk_bytes`; for targets that the host does not see `view` is one of
        `chunks` staging buffers, out of which a transfer queue copies where there is one. progress(bytes):
        called with what has been filled so far. Raises DeviceError, and whatever `fill` raises.
        """
        self._uploader.run(parts, fill, progress, chunk_bytes=chunk_bytes, chunks=chunks)

    def close(self) -> None:
        """Wait for the device and free all that was made with it. Idempotent. What was given up is left."""
        if not self._open or self.abandoned:
            return
        self._open = False
        with contextlib.suppress(DeviceLostError):
            self.vk.call("vkDeviceWaitIdle", self.vk.device)
            self._pipelines.save()
        for commands in list(self._commands):
            commands.close()
        self._made.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _record(self, timeline: Timeline, timestamps: int = 0) -> Recorder:
        family = self.facts.queues[timeline.family]
        if timestamps and not family.timestamp_bits:
            raise DeviceError(f"{self.facts.name} has no timestamps")
        commands = Commands(self.vk, timeline.family, timeline.semaphore, timestamps, self._commands)
        try:
            return Recorder(self.vk, commands, family)
        except BaseException:
            commands.close()
            raise


def _open_logical(vk: Vk, physical: Any, facts: DeviceFacts, families: Sequence[int]) -> None:
    """Create the logical device, with one queue of each family and the known features that it advertises."""
    structs = vk.structs()
    priority = structs.array("float", [1.0])
    wanted = [
        structs.new(
            "VkDeviceQueueCreateInfo", queueFamilyIndex=family, queueCount=1, pQueuePriorities=priority
        )[0]
        for family in families
    ]
    features, by_name = feature_chain(vk, structs, facts.api, facts.extensions)
    enable(by_name, facts.features)
    extensions = needed_extensions(facts)
    info = structs.new(
        "VkDeviceCreateInfo",
        pNext=features,
        queueCreateInfoCount=len(wanted),
        pQueueCreateInfos=structs.array("VkDeviceQueueCreateInfo", wanted),
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=structs.texts(extensions),
    )
    vk.where = facts.name
    vk.device = vk.create("vkCreateDevice", "VkDevice", physical, info, vk.null)


def _close_logical(vk: Vk) -> None:
    if vk.device != vk.null:
        vk.call("vkDestroyDevice", vk.device, vk.null)
        vk.device = vk.null
