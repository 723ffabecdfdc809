"""Which device and which of its queues are used: pure decisions on facts."""

from __future__ import annotations

from collections.abc import Sequence

from tierd.backends.vkapi.facts import KNOWN_FEATURES, SUBGROUP_SIZE, DeviceFacts, MatrixShape, QueueFamily
from tierd.errors import DeviceError

REQUIRED_FEATURES = ("bufferDeviceAddress", "timelineSemaphore", "storageBuffer16BitAccess", "shaderInt64")
_REQUIRED_API = (1, 2, 0)
# What the shaders' workgroups take at most: bytes of shared memory, invocations.
_SHARED = 32 << 10
_INVOCATIONS = 256

# What a product on cooperative matrices needs besides.
MATRIX_FEATURES = (
    "cooperativeMatrix",
    "shaderFloat16",
    "vulkanMemoryModel",
    "subgroupSizeControl",
    "computeFullSubgroups",
    SUBGROUP_SIZE,
)
# The sides that its tiles can be cut into, columns of a step by k, and the lanes that it can be shared among.
_SIDES = (8, 16)
_DEPTHS = (8, 16, 32)
_SUBGROUPS = (8, 16, 32, 64)

_PREFERENCE = ("discrete", "integrated", "virtual", "software")


def decline_of(facts: DeviceFacts, *, allow_software: bool) -> str:
    """Return why a device cannot be used, in plain words, or "" when it can."""
    if facts.type == "software" and not allow_software:
        return "is a software device, which counts only when gpu.allow_software is set"
    if facts.type not in _PREFERENCE:
        return "is no kind of GPU that is known"
    if facts.api < _REQUIRED_API:
        return f"offers Vulkan {facts.api[0]}.{facts.api[1]}, 1.2 is needed"
    missing = [name for name in REQUIRED_FEATURES if name not in facts.features]
    if missing:
        return f"lacks {', '.join(missing)}"
    if not any(family.compute for family in facts.queues):
        return "has no queue for compute"
    if facts.limits.shared < _SHARED:
        return f"has {facts.limits.shared} bytes of shared memory, {_SHARED} are needed"
    if facts.limits.invocations < _INVOCATIONS:
        return f"runs {facts.limits.invocations} invocations in a workgroup, {_INVOCATIONS} are needed"
    return ""


def missing_features(facts: DeviceFacts) -> list[str]:
    """Return the features that tierd knows to use and a device does not offer, those for matrices aside."""
    of_matrices = {*MATRIX_FEATURES} - {*REQUIRED_FEATURES}
    return [name for name in KNOWN_FEATURES if name not in facts.features and name not in of_matrices]


def choose_device(facts: Sequence[DeviceFacts], *, allow_software: bool) -> int:
    """Return the index of the device to use: discrete before integrated before virtual before software.

    Among equals the one with most memory of its own, then the first. Raises DeviceError, which says of each
    device why it cannot be used.
    """
    if not facts:
        raise DeviceError("no Vulkan device was found; install a driver for the GPU")
    declines = [decline_of(each, allow_software=allow_software) for each in facts]
    usable = [index for index, decline in enumerate(declines) if not decline]
    if not usable:
        reasons = "; ".join(f"{each.name} {decline}" for each, decline in zip(facts, declines, strict=True))
        raise DeviceError(f"no Vulkan device can be used: {reasons}")

    def rank(index: int) -> tuple[int, int, int]:
        device = facts[index]
        local = max((heap.size for heap in device.heaps if heap.device_local), default=0)
        return _PREFERENCE.index(device.type), -local, index

    return min(usable, key=rank)


def choose_matrix(facts: DeviceFacts) -> MatrixShape | None:
    """Return the largest of a device's cooperative matrices that tiles can be cut into, if there is one."""
    fitting = [
        shape for shape in facts.matrices if shape.m in _SIDES and shape.n in _SIDES and shape.k in _DEPTHS
    ]
    return max(fitting, key=lambda shape: (shape.m * shape.n * shape.k, shape.m, shape.n), default=None)


def matrix_decline(facts: DeviceFacts) -> str:
    """Return why a device's cooperative matrices cannot be used, in plain words, or "" when they can."""
    missing = [name for name in MATRIX_FEATURES if name not in facts.features]
    if missing:
        return f"lacks {', '.join(missing)}"
    if choose_matrix(facts) is None:
        sizes = ", ".join(map(str, facts.matrices)) or "none"
        return f"has cooperative matrices of unfit sizes (of 16-bit floats, added up as 32-bit ones: {sizes})"
    if facts.limits.subgroup not in _SUBGROUPS:
        return (
            f"has subgroups of {facts.limits.subgroup} lanes, {', '.join(map(str, _SUBGROUPS))} are possible"
        )
    return ""


def choose_queues(families: Sequence[QueueFamily]) -> tuple[int, ...]:
    """Return the family whose queue computes and, where there is one, a family whose queue only copies.

    A family that computes without graphics is taken first: the screen's work does not stand before ours.
    """
    compute = min(
        (index for index, family in enumerate(families) if family.compute),
        key=lambda index: families[index].graphics,
    )
    copiers = [
        index
        for index, family in enumerate(families)
        if family.transfer and not (family.compute or family.graphics or family.other)
    ]
    return (compute, *copiers[:1])
