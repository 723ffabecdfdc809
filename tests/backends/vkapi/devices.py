"""Property tables of devices as their drivers report them (vulkan.gpuinfo.org), cut to what is used."""

from __future__ import annotations

from tierd.backends.vkapi.choose import MATRIX_FEATURES
from tierd.backends.vkapi.facts import (
    DeviceFacts,
    Limits,
    MatrixShape,
    MemoryHeap,
    MemoryType,
    QueueFamily,
)

GIB = 1 << 30
MIB = 1 << 20


def _type(heap: int, words: str) -> MemoryType:
    """local, visible (and coherent, as everywhere), cached, special."""
    names = {"local": ["device_local"], "visible": ["host_visible", "coherent"]}
    flags = [flag for word in words.split() for flag in names.get(word, [word])]
    return MemoryType(heap, **dict.fromkeys(flags, True))


def device(
    name: str,
    *,
    type: str = "discrete",
    heaps: list[tuple[int, bool]],
    types: list[tuple[int, str]],
    queues: tuple[QueueFamily, ...] = (QueueFamily(compute=True, transfer=True, graphics=True),),
    api: tuple[int, int, int] = (1, 3, 250),
    without: str = "",
    shared: int = 48 << 10,
    invocations: int = 1024,
    subgroup: int = 32,
    matrices: tuple[tuple[int, int, int], ...] = (),
) -> DeviceFacts:
    """A device that has all that is required, but for one feature. matrices: m, n, k of cooperative ones."""
    features = {
        "bufferDeviceAddress",
        "timelineSemaphore",
        "storageBuffer16BitAccess",
        "shaderInt64",
        "shaderIntegerDotProduct",
        *(MATRIX_FEATURES if matrices else ()),
    }
    return DeviceFacts(
        name=name,
        type=type,
        vendor="",
        driver="",
        api=api,
        uuid=name,
        driver_uuid="",
        cache_uuid="",
        limits=Limits(
            push=128,
            shared=shared,
            invocations=invocations,
            groups=(65535, 65535, 65535),
            allocation=4 * GIB,
            subgroup=subgroup,
            timestamp_period=1.0,
        ),
        features=frozenset(features - {without}),
        extensions=frozenset(),
        memory_types=tuple(_type(*entry) for entry in types),
        heaps=tuple(MemoryHeap(*entry) for entry in heaps),
        queues=queues,
        matrices=tuple(MatrixShape(*shape) for shape in matrices),
    )


_GRAPHICS = QueueFamily(compute=True, transfer=True, graphics=True)
_COMPUTE = QueueFamily(compute=True, transfer=True)
_COPY = QueueFamily(compute=False, transfer=True)
_VIDEO = QueueFamily(compute=False, transfer=True, other=True, timestamp_bits=32)

_NVIDIA_TYPES = [(1, ""), (0, "local"), (1, "visible"), (1, "visible cached")]

NVIDIA = device(
    "NVIDIA GeForce RTX 2070",
    heaps=[(8 * GIB, True), (24 * GIB, False), (246 * MIB, True)],
    types=[*_NVIDIA_TYPES, (2, "local visible")],
    queues=(_GRAPHICS, _COPY, _COMPUTE, _VIDEO),
)
NVIDIA_RESIZABLE_BAR = device(
    "NVIDIA GeForce RTX 4090",
    heaps=[(24 * GIB, True), (48 * GIB, False)],
    types=[*_NVIDIA_TYPES, (0, "local visible")],
    queues=(_GRAPHICS, _COPY, _COMPUTE, _VIDEO, _VIDEO),
    matrices=((16, 16, 16), (16, 8, 16), (16, 8, 8)),
)
AMD = device(
    "AMD Radeon RX 580 Series (RADV POLARIS10)",
    heaps=[(8 * GIB - 256 * MIB, True), (16 * GIB, False), (256 * MIB, True)],
    types=[
        (0, "local"),
        (0, "local"),
        (1, "visible"),
        (2, "local visible"),
        (2, "local visible"),
        (1, "visible cached"),
        (1, "visible cached"),
    ],
    queues=(_GRAPHICS, _COMPUTE),
)
AMD_RESIZABLE_BAR = device(
    "AMD Radeon RX 7900 XTX (RADV NAVI31)",
    heaps=[(16 * GIB, False), (24 * GIB, True)],
    types=[
        (1, "local"),
        (1, "local"),
        (0, "visible"),
        (1, "local visible"),
        (1, "local visible"),
        (0, "visible cached"),
        (0, "visible cached"),
        (1, "local special"),
        (0, "visible special"),
        (1, "local visible special"),
        (0, "visible cached special"),
    ],
    queues=(_GRAPHICS, _COMPUTE, _VIDEO),
    subgroup=64,
    matrices=((16, 16, 16),),
)
AMD_INTEGRATED = device(
    "AMD Custom GPU 0405 (RADV VANGOGH)",
    type="integrated",
    heaps=[(5 * GIB, False), (10 * GIB, True)],
    types=[(1, "local"), (0, "visible"), (1, "local visible"), (0, "visible cached")],
    queues=(_GRAPHICS, _COMPUTE),
)
INTEL_INTEGRATED = device(
    "Intel(R) Iris(R) Xe Graphics (TGL GT2)",
    type="integrated",
    heaps=[(12 * GIB, True)],
    types=[(0, "local"), (0, "local visible"), (0, "local visible cached")],
)
INTEL_ARC = device(
    "Intel(R) Arc(tm) A770 Graphics (DG2)",
    heaps=[(16 * GIB, True), (24 * GIB, False)],
    types=[(0, "local"), (0, "local visible"), (1, "visible cached")],
    queues=(_GRAPHICS, _COMPUTE, _COPY),
)
LLVMPIPE = device(
    "llvmpipe (LLVM 15.0.6, 256 bits)",
    type="software",
    heaps=[(2 * GIB, True)],
    types=[(0, "local visible cached")],
    shared=32 << 10,
)
LAVAPIPE_26 = device(
    "llvmpipe (LLVM 22.1.8, 256 bits)",
    type="software",
    heaps=[(23 * GIB, True)],
    types=[(0, "local visible cached")],
    shared=32 << 10,
    subgroup=8,
    matrices=((8, 8, 8),),
)
VIRTUAL = device(
    "Virtio-GPU Venus", type="virtual", heaps=[(4 * GIB, True)], types=[(0, "local"), (0, "local visible")]
)
