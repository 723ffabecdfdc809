"""What the shipped shaders ask of a device is what a device is chosen for."""

from __future__ import annotations

import importlib.resources
import struct
from pathlib import Path

from tierd.backends.vkapi.choose import MATRIX_FEATURES, REQUIRED_FEATURES
from tierd.backends.vkapi.facts import SUBGROUP_SHUFFLE

# Capability numbers of the SPIR-V specification, by the feature that allows them.
ALLOWED_BY = {
    1: None,  # Shader
    5347: "bufferDeviceAddress",  # PhysicalStorageBufferAddresses
    11: "shaderInt64",  # Int64
    4433: "storageBuffer16BitAccess",  # StorageBuffer16BitAccess
    61: None,  # GroupNonUniform, which every device of Vulkan 1.1 has in compute shaders
    65: SUBGROUP_SHUFFLE,  # GroupNonUniformShuffle
    9: "shaderFloat16",  # Float16
    5345: "vulkanMemoryModel",  # VulkanMemoryModel
    6022: "cooperativeMatrix",  # CooperativeMatrixKHR
    6018: "shaderIntegerDotProduct",  # DotProductInput4x8BitPacked
    6019: "shaderIntegerDotProduct",  # DotProduct
}
_OP_CAPABILITY = 17


def capabilities(spirv: bytes) -> list[int]:
    """Instructions begin behind five words of header, capabilities first: length << 16 | opcode, operands."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    found, at = [], 5
    while words[at] & 0xFFFF == _OP_CAPABILITY:
        found.append(words[at + 1])
        at += words[at] >> 16
    return found


# What a variant of that name may use besides.
OPTIONAL = {
    "dot": {"shaderIntegerDotProduct"},
    "shuffle": {SUBGROUP_SHUFFLE},
    "coop": set(MATRIX_FEATURES),
}


def test_only_required_features_are_used_and_others_in_variants_named_for_them() -> None:
    folder = Path(str(importlib.resources.files("tierd").joinpath("shaders")))
    modules = sorted(folder.glob("*.spv"))
    assert modules
    for module in modules:
        needed = {ALLOWED_BY[number] for number in capabilities(module.read_bytes())} - {None}
        optional = set().union(*(OPTIONAL.get(part, ()) for part in module.name.split(".")))
        assert needed <= {*REQUIRED_FEATURES, *optional}, module.name
