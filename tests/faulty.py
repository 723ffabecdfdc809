"""Faults on purpose: what tests of devices that fail have in common."""

from __future__ import annotations

from tierd.backends.vkapi import Device
from tierd.backends.vkapi.faults import Faults
from tierd.backends.vkapi.results import DEVICE_LOST, OUT_OF_DEVICE_MEMORY, TIMEOUT
from tierd.errors import DeviceError, DeviceLostError, DeviceMemoryError, DeviceTimeoutError

# What submissions and what waits return on a device that fails, and the error that this becomes.
SUBMIT_FAULTS: dict[int, type[DeviceError]] = {
    DEVICE_LOST: DeviceLostError,
    OUT_OF_DEVICE_MEMORY: DeviceMemoryError,
}
WAIT_FAULTS: dict[int, type[DeviceError]] = {**SUBMIT_FAULTS, TIMEOUT: DeviceTimeoutError}


def take_back(device: Device) -> None:
    """Let a device that was given up for a fault on purpose be used and closed: it has nothing."""
    device.vk._faults = Faults()
    device.vk.given_up = ""
