"""What is to be known of a physical device before it is used, as one frozen value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tierd.backends.vkapi.binding import Structs, Vk

# Features that are asked for, by the struct they stand in. A device is opened with those it advertises.
_FEATURES = {
    "VkPhysicalDeviceFeatures": ("shaderInt64", "shaderInt16"),
    "VkPhysicalDeviceVulkan11Features": ("storageBuffer16BitAccess",),
    "VkPhysicalDeviceVulkan12Features": (
        "bufferDeviceAddress",
        "timelineSemaphore",
        "storageBuffer8BitAccess",
        "shaderInt8",
        "shaderFloat16",
        "vulkanMemoryModel",
        "vulkanMemoryModelDeviceScope",
    ),
    "VkPhysicalDeviceShaderIntegerDotProductFeatures": ("shaderIntegerDotProduct",),
    "VkPhysicalDeviceSubgroupSizeControlFeatures": ("subgroupSizeControl", "computeFullSubgroups"),
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": ("cooperativeMatrix",),
}
KNOWN_FEATURES = tuple(name for names in _FEATURES.values() for name in names)
MEMORY_BUDGET = "VK_EXT_memory_budget"
_DOT_EXTENSION = "VK_KHR_shader_integer_dot_product"
_SIZE_EXTENSION = "VK_EXT_subgroup_size_control"
_MATRIX_EXTENSION = "VK_KHR_cooperative_matrix"
# Structs that only an extension brings, or, where one is given, a version of Vulkan.
_BROUGHT_BY: dict[str, tuple[str, tuple[int, int, int] | None]] = {
    "VkPhysicalDeviceShaderIntegerDotProductFeatures": (_DOT_EXTENSION, (1, 3, 0)),
    "VkPhysicalDeviceSubgroupSizeControlFeatures": (_SIZE_EXTENSION, (1, 3, 0)),
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": (_MATRIX_EXTENSION, None),
}
_QUEUE_PROTECTED_BIT = 0x10  # the package does not name it
_ACCELERATED = "integerDotProduct4x8BitPackedSignedAccelerated"
# No features to switch on, and without a name of Vulkan's: what compute shaders may do with their subgroups.
SUBGROUP_SHUFFLE = "shuffles in the subgroups of compute shaders"
SUBGROUP_SIZE = "a choice of the subgroup size of compute shaders"
# What products on cooperative matrices use, and nothing else does.
_OF_MATRICES = {"cooperativeMatrix", "subgroupSizeControl", "computeFullSubgroups"}

_TYPES = {
    "VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU": "discrete",
    "VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU": "integrated",
    "VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU": "virtual",
    "VK_PHYSICAL_DEVICE_TYPE_CPU": "software",
}
_VENDORS = {
    0x1002: "AMD",
    0x1010: "Imagination",
    0x106B: "Apple",
    0x10DE: "NVIDIA",
    0x13B5: "Arm",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10005: "Mesa",
}


@dataclass(frozen=True, slots=True)
class MemoryHeap:
    """A heap of `size` bytes."""

    size: int
    device_local: bool


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A way to allocate from heap number `heap`. special: has a property that must not be used unasked."""

    heap: int
    device_local: bool = False
    host_visible: bool = False
    coherent: bool = False
    cached: bool = False
    special: bool = False


@dataclass(frozen=True, slots=True)
class QueueFamily:
    """Queues of a kind. other: decodes video or the like. timestamp_bits: 0 where it has no timestamps."""

    compute: bool
    transfer: bool
    graphics: bool = False
    other: bool = False
    timestamp_bits: int = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device bears at most; sizes in bytes, timestamp_period in nanoseconds a tick.

    allocation: one allocation or buffer. groups: workgroups of a dispatch in x, y, z.
    """

    push: int
    shared: int
    invocations: int
    groups: tuple[int, int, int]
    allocation: int
    subgroup: int
    timestamp_period: float


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A size of cooperative matrices: m by k times k by n."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A physical device.

    type: discrete, integrated, virtual, software or other. api: the version it offers.
    features: names out of those that tierd knows to use, as Vulkan spells them where it has one, else in
    plain words.
    memory_types, heaps: in Vulkan's order, which is what their numbers refer to. matrices: those that a
    subgroup multiplies as 16-bit floats and adds up as 32-bit ones; none where that was not asked for.
    """

    name: str
    type: str
    vendor: str
    driver: str
    api: tuple[int, int, int]
    uuid: str
    driver_uuid: str
    cache_uuid: str
    limits: Limits
    features: frozenset[str]
    extensions: frozenset[str]
    memory_types: tuple[MemoryType, ...]
    heaps: tuple[MemoryHeap, ...]
    queues: tuple[QueueFamily, ...]
    matrices: tuple[MatrixShape, ...] = ()

    @property
    def fast_dot(self) -> bool:
        """Whether the device multiplies and adds four signed bytes at a time in hardware."""
        return {"shaderIntegerDotProduct", _ACCELERATED} <= self.features

    @property
    def dear_loads(self) -> bool:
        """Whether a load costs hundreds of operations, and lanes of a subgroup can exchange values."""
        return self.type == "software" and SUBGROUP_SHUFFLE in self.features


def version_of(packed: int) -> tuple[int, int, int]:
    """Return a version out of the number that Vulkan packs it in."""
    return packed >> 22 & 0x7F, packed >> 12 & 0x3FF, packed & 0xFFF


def read_facts(vk: Vk, physical: Any) -> DeviceFacts:
    """Ask a physical device for its facts; one older than Vulkan 1.2 has no features to tell of."""
    structs = vk.structs()
    first = structs.new("VkPhysicalDeviceProperties2")
    vk.call("vkGetPhysicalDeviceProperties", physical, vk.ffi.addressof(first, "properties"))
    api = version_of(int(first.properties.apiVersion))
    found = vk.enumerate("vkEnumerateDeviceExtensionProperties", "VkExtensionProperties", physical, vk.null)
    extensions = frozenset(vk.text(extension.extensionName) for extension in found)
    modern = api >= (1, 2, 0)
    p11 = structs.new("VkPhysicalDeviceVulkan11Properties")
    p12 = structs.new("VkPhysicalDeviceVulkan12Properties")
    p13 = structs.new("VkPhysicalDeviceVulkan13Properties")
    dot = structs.new("VkPhysicalDeviceShaderIntegerDotProductProperties")
    size = structs.new("VkPhysicalDeviceSubgroupSizeControlProperties")
    if modern:
        brought = [(dot, _DOT_EXTENSION), (size, _SIZE_EXTENSION)]
        optional = [struct for struct, extension in brought if extension in extensions]
        optional = [p13] if api >= (1, 3, 0) else optional
        vk.call("vkGetPhysicalDeviceProperties2", physical, structs.chain(first, p11, p12, *optional))
    limits = first.properties.limits
    features = _features(vk, physical, api, extensions) if modern else set()
    if (
        p13.integerDotProduct4x8BitPackedSignedAccelerated
        or dot.integerDotProduct4x8BitPackedSignedAccelerated
    ):
        features.add(_ACCELERATED)
    shuffles = p11.subgroupSupportedOperations & vk.k.VK_SUBGROUP_FEATURE_SHUFFLE_BIT
    if shuffles and p11.subgroupSupportedStages & vk.k.VK_SHADER_STAGE_COMPUTE_BIT:
        features.add(SUBGROUP_SHUFFLE)
    if (p13.requiredSubgroupSizeStages | size.requiredSubgroupSizeStages) & vk.k.VK_SHADER_STAGE_COMPUTE_BIT:
        features.add(SUBGROUP_SIZE)
    sizes = [int(size) for size in (p11.maxMemoryAllocationSize, p13.maxBufferSize) if size]
    memory = structs.new("VkPhysicalDeviceMemoryProperties")
    vk.call("vkGetPhysicalDeviceMemoryProperties", physical, memory)
    types = {getattr(vk.k, name): word for name, word in _TYPES.items()}
    driver = f"{vk.text(p12.driverName)} {vk.text(p12.driverInfo)}".strip()
    return DeviceFacts(
        name=vk.text(first.properties.deviceName),
        type=types.get(first.properties.deviceType, "other"),
        vendor=_VENDORS.get(first.properties.vendorID, f"vendor {first.properties.vendorID:#06x}"),
        driver=driver or str(first.properties.driverVersion),
        api=api,
        uuid=bytes(p11.deviceUUID).hex(),
        driver_uuid=bytes(p11.driverUUID).hex(),
        cache_uuid=bytes(first.properties.pipelineCacheUUID).hex(),
        limits=Limits(
            push=limits.maxPushConstantsSize,
            shared=limits.maxComputeSharedMemorySize,
            invocations=limits.maxComputeWorkGroupInvocations,
            groups=tuple(limits.maxComputeWorkGroupCount),
            allocation=min(sizes, default=1 << 30),
            subgroup=p11.subgroupSize,
            timestamp_period=limits.timestampPeriod,
        ),
        features=frozenset(features),
        extensions=extensions,
        memory_types=tuple(_memory_type(vk, memory.memoryTypes[i]) for i in range(memory.memoryTypeCount)),
        heaps=tuple(
            MemoryHeap(heap.size, bool(heap.flags & vk.k.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT))
            for heap in memory.memoryHeaps[0 : memory.memoryHeapCount]
        ),
        queues=_queue_families(vk, physical),
        matrices=_matrices(vk, physical) if "cooperativeMatrix" in features else (),
    )


def without_matrices(facts: DeviceFacts) -> DeviceFacts:
    """Return the facts of a device as if it had no cooperative matrices, so that nothing of them is used."""
    return dataclasses.replace(
        facts,
        features=facts.features - _OF_MATRICES,
        extensions=facts.extensions - {_MATRIX_EXTENSION},
        matrices=(),
    )


def feature_chain(
    vk: Vk, structs: Structs, api: tuple[int, int, int], extensions: frozenset[str]
) -> tuple[Any, dict[str, Any]]:
    """Return a VkPhysicalDeviceFeatures2 with all that may be chained to it, and each struct by its name."""
    first = structs.new("VkPhysicalDeviceFeatures2")
    by_name = {name: structs.new(name) for name in _FEATURES if name != "VkPhysicalDeviceFeatures"}
    for name, (extension, version) in _BROUGHT_BY.items():
        if extension not in extensions and (version is None or api < version):
            del by_name[name]
    structs.chain(first, *by_name.values())
    by_name["VkPhysicalDeviceFeatures"] = vk.ffi.addressof(first, "features")
    return first, by_name


def enable(by_name: dict[str, Any], features: frozenset[str]) -> None:
    """Switch on, in a chain's structs, the features of that name."""
    for name, struct in by_name.items():
        for feature in _FEATURES[name]:
            setattr(struct, feature, feature in features)


def needed_extensions(facts: DeviceFacts) -> list[str]:
    """Return the extensions to enable: those that tierd uses where a device has them."""
    wanted = {MEMORY_BUDGET} if facts.api >= (1, 3, 0) else {MEMORY_BUDGET, _DOT_EXTENSION}
    if facts.matrices:
        wanted |= {_MATRIX_EXTENSION} if facts.api >= (1, 3, 0) else {_MATRIX_EXTENSION, _SIZE_EXTENSION}
    return sorted(wanted & facts.extensions)


def _features(vk: Vk, physical: Any, api: tuple[int, int, int], extensions: frozenset[str]) -> set[str]:
    structs = vk.structs()
    first, by_name = feature_chain(vk, structs, api, extensions)
    vk.call("vkGetPhysicalDeviceFeatures2", physical, first)
    return {
        feature for name, struct in by_name.items() for feature in _FEATURES[name] if getattr(struct, feature)
    }


def _matrices(vk: Vk, physical: Any) -> tuple[MatrixShape, ...]:
    k = vk.k
    structs = vk.structs()
    stages = structs.new("VkPhysicalDeviceCooperativeMatrixPropertiesKHR")
    first = structs.new("VkPhysicalDeviceProperties2", pNext=stages)
    vk.call("vkGetPhysicalDeviceProperties2", physical, first)
    if not stages.cooperativeMatrixSupportedStages & k.VK_SHADER_STAGE_COMPUTE_BIT:
        return ()
    half, single = k.VK_COMPONENT_TYPE_FLOAT16_KHR, k.VK_COMPONENT_TYPE_FLOAT32_KHR
    found = vk.enumerate(
        "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", "VkCooperativeMatrixPropertiesKHR", physical
    )
    return tuple(
        MatrixShape(each.MSize, each.NSize, each.KSize)
        for each in found
        if (each.AType, each.BType, each.CType, each.ResultType) == (half, half, single, single)
        and each.scope == k.VK_SCOPE_SUBGROUP_KHR
    )


def _memory_type(vk: Vk, entry: Any) -> MemoryType:
    k, flags = vk.k, entry.propertyFlags
    plain = {
        "device_local": k.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
        "host_visible": k.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
        "coherent": k.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
        "cached": k.VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
    }
    return MemoryType(
        heap=entry.heapIndex,
        special=bool(flags & ~sum(plain.values())),
        **{name: bool(flags & bit) for name, bit in plain.items()},
    )


def _queue_families(vk: Vk, physical: Any) -> tuple[QueueFamily, ...]:
    k = vk.k
    found = vk.enumerate("vkGetPhysicalDeviceQueueFamilyProperties", "VkQueueFamilyProperties", physical)
    usual = (
        k.VK_QUEUE_GRAPHICS_BIT
        | k.VK_QUEUE_COMPUTE_BIT
        | k.VK_QUEUE_TRANSFER_BIT
        | k.VK_QUEUE_SPARSE_BINDING_BIT
        | _QUEUE_PROTECTED_BIT
    )
    return tuple(
        QueueFamily(
            compute=bool(family.queueFlags & k.VK_QUEUE_COMPUTE_BIT),
            transfer=bool(family.queueFlags & k.VK_QUEUE_TRANSFER_BIT),
            graphics=bool(family.queueFlags & k.VK_QUEUE_GRAPHICS_BIT),
            other=bool(family.queueFlags & ~usual),
            timestamp_bits=family.timestampValidBits,
        )
        for family in found
    )
