"""From Vulkan's result codes to errors: the one place where that is decided."""

from __future__ import annotations

from tierd.errors import DeviceError, DeviceLostError, DeviceMemoryError, DeviceTimeoutError

TIMEOUT = 2
INCOMPLETE = 5
OUT_OF_HOST_MEMORY = -1
OUT_OF_DEVICE_MEMORY = -2
DEVICE_LOST = -4

# Code -> error, and what it says of what happened and of what helps (VkResult in the specification).
_ERRORS: dict[int, tuple[type[DeviceError], str, str]] = {
    1: (DeviceTimeoutError, "is not ready", "wait for the work it belongs to"),
    TIMEOUT: (DeviceTimeoutError, "did not finish in time", "look into the system's log for the driver's"),
    OUT_OF_HOST_MEMORY: (DeviceMemoryError, "found no host memory", "free some"),
    OUT_OF_DEVICE_MEMORY: (
        DeviceMemoryError,
        "found no device memory",
        "serve smaller or fewer models, or lower gpu.vram_limit_mb",
    ),
    -3: (DeviceError, "could not be initialised", "check the driver"),
    DEVICE_LOST: (DeviceLostError, "was lost", "look into the system's log for the driver's reason"),
    -5: (DeviceMemoryError, "could not map memory", "free some"),
    -6: (DeviceError, "lacks a layer", "install it"),
    -7: (DeviceError, "lacks an extension", "update the driver"),
    -8: (DeviceError, "lacks a feature", "update the driver"),
    -9: (DeviceError, "has no compatible driver", "install one"),
    -10: (DeviceMemoryError, "holds too many objects", "serve fewer models"),
}


def error_of(code: int, function: str, where: str) -> DeviceError:
    """Return the error for a result code of a function of the device or instance `where`."""
    kind, what, remedy = _ERRORS.get(code, (DeviceError, f"failed with result {code}", "check the driver"))
    return kind(f"{where} {what} ({function}); {remedy}")
