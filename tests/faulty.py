"""Faults on purpose: what tests of devices that fail have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

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


def in_turn(faults: Mapping[str, Mapping[int, object]]) -> list[Any]:
    """Return each phase with each of its faults; all but one of them, another in each phase, are long.

    How a device is given up depends on the phase, whatever the error is; each error has its test in vkapi.
    """
    return [
        pytest.param(phase, result, id=f"{phase}: {results[result]}", marks=pytest.mark.long if other else [])
        for number, (phase, results) in enumerate(faults.items())
        for other, result in enumerate(_rotated(list(results), number))
    ]


def _rotated(results: list[int], by: int) -> list[int]:
    start = by % len(results)
    return results[start:] + results[:start]


# What the validation layer says where things are left on a device that is destroyed.
_LEFT_BEHIND = "VUID-vkDestroyDevice-device-00378"


def take_back(device: Device) -> None:
    """Let a device that was given up for a fault on purpose be used and closed: it has nothing."""
    device.vk._faults = Faults()
    device.vk.given_up = ""


def close_checked(device: Device) -> None:
    """Close a device, also one that was given up, of which the validation layer has found nothing amiss.

    What was given up leaves all behind, and nothing else may be said of it.
    """
    given_up = device.abandoned
    take_back(device)
    device.close()
    expected = [message for message in device.messages if given_up and _LEFT_BEHIND in message]
    assert device.messages == expected
