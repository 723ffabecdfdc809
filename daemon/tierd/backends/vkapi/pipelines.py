"""Compute pipelines out of SPIR-V, and the cache of them on disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import tempfile
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from tierd.backends.vkapi.binding import Structs, Vk
from tierd.backends.vkapi.facts import DeviceFacts
from tierd.errors import DeviceError

_HEADER = b"tierd pipelines 1\n"
_DIGEST_BYTES = 32
_DRAFT = ".draft"
_REQUIRE_FULL_SUBGROUPS_BIT = 2  # the package does not name it


class Pipeline:
    """A compute pipeline; push_bytes: what it takes as push constants. Lives as long as its device."""

    def __init__(self, handle: Any, layout: Any, push_bytes: int) -> None:
        """Use `Device.pipeline`."""
        self.handle = handle
        self.layout = layout
        self.push_bytes = push_bytes


class Pipelines:
    """All pipelines of a device. A layout is one range of push constants. Any thread may ask."""

    def __init__(self, vk: Vk, facts: DeviceFacts, directory: Path | None) -> None:
        """directory: where the cache is kept between runs, if anywhere."""
        self._vk = vk
        self._facts = facts
        self._lock = threading.Lock()
        self._layouts: dict[int, Any] = {}
        self._pipelines: dict[Hashable, Pipeline] = {}
        self._file = None if directory is None else directory / f"{cache_key(facts)}.pipelines"
        self._saved = _read_cache(self._file)
        structs = vk.structs()
        data = structs.array("uint8_t", self._saved)
        info = structs.new(
            "VkPipelineCacheCreateInfo",
            initialDataSize=len(self._saved),
            pInitialData=data if self._saved else vk.null,
        )
        self._cache = vk.create("vkCreatePipelineCache", "VkPipelineCache", vk.device, info, vk.null)

    def make(
        self, spirv: bytes, push_bytes: int, constants: Mapping[int, int | float], subgroup: int = 0
    ) -> Pipeline:
        """Return the pipeline of a shader whose entry is `main`, compiled when it is first asked for.

        constants: specialisation constants of 32 bits by id, an int for int, uint and bool, a float for
        float. subgroup: the lanes that every subgroup must have; 0: what the device chooses. Raises
        DeviceError.
        """
        if len(spirv) % 4 or not spirv:
            raise DeviceError(f"a shader of {len(spirv)} bytes is no SPIR-V; reinstall tierd")
        if not 0 < push_bytes <= self._facts.limits.push:
            raise DeviceError(
                f"{push_bytes} bytes of push constants are more than the {self._facts.limits.push} that "
                f"{self._facts.name} takes"
            )
        key = (spirv, push_bytes, tuple(map(_constant, constants.values())), tuple(constants), subgroup)
        with self._lock:
            if key not in self._pipelines:
                self._pipelines[key] = self._make(spirv, push_bytes, constants, subgroup)
            return self._pipelines[key]

    def _make(
        self, spirv: bytes, push_bytes: int, constants: Mapping[int, int | float], subgroup: int
    ) -> Pipeline:
        vk = self._vk
        structs = vk.structs()
        words = structs.array("uint32_t", memoryview(spirv).cast("I"))
        code = structs.new("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=words)
        module = vk.create("vkCreateShaderModule", "VkShaderModule", vk.device, code, vk.null)
        try:
            layout = self._layout(push_bytes)
            handle = self._compile(structs, module, layout, constants, subgroup)
            return Pipeline(handle, layout, push_bytes)
        finally:
            vk.call("vkDestroyShaderModule", vk.device, module, vk.null)

    def save(self) -> None:
        """Write the cache to disk if it has changed; a whole file takes the place of the old one."""
        if self._file is None:
            return
        with self._lock:
            data = self._data()
            if data == self._saved:
                return
            self._saved = data
        _write_cache(self._file, data)

    def close(self) -> None:
        """Destroy all pipelines. The device is done with them."""
        vk = self._vk
        for pipeline in self._pipelines.values():
            vk.call("vkDestroyPipeline", vk.device, pipeline.handle, vk.null)
        for layout in self._layouts.values():
            vk.call("vkDestroyPipelineLayout", vk.device, layout, vk.null)
        vk.call("vkDestroyPipelineCache", vk.device, self._cache, vk.null)

    def _layout(self, push_bytes: int) -> Any:
        vk = self._vk
        if push_bytes not in self._layouts:
            structs = vk.structs()
            pushes = structs.new(
                "VkPushConstantRange", stageFlags=vk.k.VK_SHADER_STAGE_COMPUTE_BIT, size=push_bytes
            )
            info = structs.new(
                "VkPipelineLayoutCreateInfo", pushConstantRangeCount=1, pPushConstantRanges=pushes
            )
            self._layouts[push_bytes] = vk.create(
                "vkCreatePipelineLayout", "VkPipelineLayout", vk.device, info, vk.null
            )
        return self._layouts[push_bytes]

    def _compile(
        self,
        structs: Structs,
        module: Any,
        layout: Any,
        constants: Mapping[int, int | float],
        subgroup: int,
    ) -> Any:
        vk = self._vk
        values = b"".join(map(_constant, constants.values()))
        entries = [
            structs.new("VkSpecializationMapEntry", constantID=id, offset=4 * place, size=4)[0]
            for place, id in enumerate(constants)
        ]
        specialisation = structs.new(
            "VkSpecializationInfo",
            mapEntryCount=len(entries),
            pMapEntries=structs.array("VkSpecializationMapEntry", entries),
            dataSize=len(values),
            pData=structs.array("uint8_t", values),
        )
        stage = structs.new(
            "VkPipelineShaderStageCreateInfo",
            stage=vk.k.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName="main",
            pSpecializationInfo=specialisation,
        )
        if subgroup:
            stage.flags = _REQUIRE_FULL_SUBGROUPS_BIT
            stage.pNext = structs.new(
                "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=subgroup
            )
        info = structs.new("VkComputePipelineCreateInfo", stage=stage[0], layout=layout)
        return vk.create("vkCreateComputePipelines", "VkPipeline", vk.device, self._cache, 1, info, vk.null)

    def _data(self) -> bytes:
        vk = self._vk
        size = vk.ffi.new("size_t *")
        vk.call("vkGetPipelineCacheData", vk.device, self._cache, size, vk.null)
        data = vk.ffi.new("uint8_t[]", size[0])
        vk.call("vkGetPipelineCacheData", vk.device, self._cache, size, data)
        return bytes(vk.ffi.buffer(data, size[0]))


def cache_key(facts: DeviceFacts) -> str:
    """Return a name for the pipelines of a device under its driver: those of another are of no use to it."""
    identity = f"{facts.uuid} {facts.driver_uuid} {facts.cache_uuid} {facts.driver}"
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _constant(value: int | float) -> bytes:
    if isinstance(value, float):
        return struct.pack("=f", value)
    return struct.pack("=I", value & 0xFFFFFFFF)


def _read_cache(file: Path | None) -> bytes:
    """Return the data of a cache file, b"" unless it is whole: a driver need not bear damaged data."""
    if file is None:
        return b""
    try:
        content = file.read_bytes()
    except OSError:
        return b""
    head = len(_HEADER) + _DIGEST_BYTES
    data = content[head:]
    if content[:head] != _HEADER + hashlib.sha256(data).digest():
        return b""
    return data


def _write_cache(file: Path, data: bytes) -> None:
    """A cache that cannot be written costs time at the next start and nothing else."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(file.parent)
        descriptor, name = tempfile.mkstemp(_DRAFT, dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as output:
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
                output.write(_HEADER + hashlib.sha256(data).digest() + data)
                output.flush()
                os.replace(name, file)
        except OSError:
            os.unlink(name)
            raise


def _remove_abandoned(directory: Path) -> None:
    """Remove drafts of processes that were killed while they wrote: those that are written are locked."""
    for draft in directory.glob(f"*{_DRAFT}"):
        with contextlib.suppress(OSError), draft.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
