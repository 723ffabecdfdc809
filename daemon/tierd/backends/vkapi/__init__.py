"""Vulkan: the only package that knows its names.

`Device` is what others use. A shader is compiled into a `Pipeline`, dispatches of it are recorded into
`Commands`, these are submitted, and the value that comes back is waited for. Buffers have an address and, for
roles that the host sees, a view. Errors are those of tierd's tree: DeviceError and its kinds.
"""

from tierd.backends.vkapi.choose import (
    choose_device,
    choose_matrix,
    decline_of,
    matrix_decline,
    missing_features,
)
from tierd.backends.vkapi.commands import Commands, Recorder
from tierd.backends.vkapi.device import Device, available
from tierd.backends.vkapi.facts import DeviceFacts
from tierd.backends.vkapi.instance import loader_version, physical_devices
from tierd.backends.vkapi.memory import Buffer
from tierd.backends.vkapi.memory_types import Role, roles_on_device
from tierd.backends.vkapi.pipelines import Pipeline
from tierd.backends.vkapi.upload import Part

__all__ = [
    "Buffer",
    "Commands",
    "Device",
    "DeviceFacts",
    "Part",
    "Pipeline",
    "Recorder",
    "Role",
    "available",
    "choose_device",
    "choose_matrix",
    "decline_of",
    "loader_version",
    "matrix_decline",
    "missing_features",
    "physical_devices",
    "roles_on_device",
]
