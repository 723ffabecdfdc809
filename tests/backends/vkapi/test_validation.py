"""The validation layer would be heard, were there anything to hear."""

from __future__ import annotations

import os
import subprocess
import sys

from gpu import WATCHED
from tierd.backends.vkapi import Device, Role

TOO_MUCH = 4 << 30


def test_a_copy_past_the_end_is_reported() -> None:
    with Device.open(allow_software=True, validate=True) as device:
        a, b = device.buffer(256, Role.DEVICE), device.buffer(256, Role.DEVICE)
        recorder = device.recorder()
        recorder.copy(a, b, [(0, 0, TOO_MUCH)])
        assert any("VUID-vkCmdCopyBuffer-size" in message for message in device.messages)


def test_a_missing_barrier_is_reported_where_barriers_are_checked() -> None:
    for validate, heard in [(True, False), ("sync", True)]:
        with Device.open(allow_software=True, validate=validate) as device:  # type: ignore[arg-type]
            a, b = device.buffer(256, Role.DEVICE), device.buffer(256, Role.DEVICE)
            recorder = device.recorder()
            recorder.copy(a, b)
            recorder.copy(b, a)
            recorder.finish()
            assert any("hazard" in message.lower() for message in device.messages) == heard


def test_what_is_left_behind_is_reported() -> None:
    device = Device.open(allow_software=True, validate=True)
    structs = device.vk.structs()
    info = structs.new("VkSemaphoreCreateInfo")
    device.vk.create("vkCreateSemaphore", "VkSemaphore", device.vk.device, info, device.vk.null)
    device.close()
    assert any("VkSemaphore" in message and "not been destroyed" in message for message in device.messages)


def test_what_a_process_under_watch_does_wrong_is_on_its_standard_output() -> None:
    """Also where it is killed."""
    program = f"""
import os
import signal
from tierd.backends.vkapi import Device, Role
device = Device.open(allow_software=True)
a, b = device.buffer(256, Role.DEVICE), device.buffer(256, Role.DEVICE)
device.recorder().copy(a, b, [(0, 0, {TOO_MUCH})])
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | WATCHED,
        text=True,
        check=False,
    )
    assert "VUID-vkCmdCopyBuffer-size" in run.stdout
