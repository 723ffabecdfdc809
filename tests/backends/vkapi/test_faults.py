"""What goes wrong is told in one line, as the right kind of error; the binding's hook lets it happen."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.vkapi.words import PUSH_BYTES, put, words
from tierd.backends.vkapi import Commands, Device, Role
from tierd.backends.vkapi.results import DEVICE_LOST, OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY
from tierd.errors import DeviceError, DeviceLostError, DeviceMemoryError, DeviceTimeoutError

Open = Callable[..., Device]


@pytest.mark.parametrize("result", [OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY])
@pytest.mark.parametrize(
    "function", ["vkAllocateMemory", "vkCreateBuffer", "vkMapMemory", "vkBindBufferMemory"]
)
def test_memory_that_runs_out_leaves_nothing_behind(open_device: Open, function: str, result: int) -> None:
    device = open_device(hide_host_visible=False)
    device.vk.inject(function, result)
    with pytest.raises(DeviceMemoryError, match=rf"^llvmpipe .* found no .* memory \({function}\); "):
        device.buffer(1000, Role.DEVICE)
    assert device.used == 0
    device.vk.inject(function, None)
    device.buffer(1000, Role.DEVICE)


@pytest.mark.parametrize(
    "function",
    ["vkCreateCommandPool", "vkAllocateCommandBuffers", "vkCreateQueryPool", "vkBeginCommandBuffer"],
)
def test_a_recorder_that_cannot_be_made_leaves_nothing_behind(open_device: Open, function: str) -> None:
    device = open_device()
    device.vk.inject(function, OUT_OF_HOST_MEMORY)
    with pytest.raises(DeviceMemoryError, match=function):
        device.recorder(timestamps=1)


def test_a_pipeline_that_cannot_be_made_can_be_tried_again(open_device: Open, scaled_add: bytes) -> None:
    device = open_device()
    device.vk.inject("vkCreateComputePipelines", -13)
    with pytest.raises(DeviceError, match=r"failed with result -13 \(vkCreateComputePipelines\)"):
        device.pipeline(scaled_add, PUSH_BYTES)
    device.vk.inject("vkCreateComputePipelines", None)
    device.pipeline(scaled_add, PUSH_BYTES)


LOST: dict[str, Callable[[Device, Commands], object]] = {
    "vkQueueSubmit": lambda device, commands: device.submit(commands),
    "vkWaitSemaphores": lambda device, _: device.wait(0, 10),
    "vkGetQueryPoolResults": lambda device, commands: device.timestamps(commands),
}


@pytest.mark.parametrize("function", LOST)
def test_a_lost_device_is_told_wherever_it_is_noticed_and_closes(open_device: Open, function: str) -> None:
    device = open_device()
    commands = device.recorder(timestamps=1).finish()
    device.vk.inject(function, DEVICE_LOST)
    with pytest.raises(DeviceLostError, match=rf"^llvmpipe .* was lost \({function}\); look into"):
        LOST[function](device, commands)
    device.vk.inject("vkDeviceWaitIdle", DEVICE_LOST)
    device.close()


def test_a_failed_submission_spends_no_value(open_device: Open) -> None:
    device = open_device()
    commands = device.recorder().finish()
    first = device.submit(commands)
    device.vk.inject("vkQueueSubmit", OUT_OF_HOST_MEMORY)
    with pytest.raises(DeviceMemoryError):
        device.submit(commands)
    device.vk.inject("vkQueueSubmit", None)
    assert device.submit(commands) == first + 1
    device.wait(first + 1, 10)


def test_a_value_that_is_not_signalled_in_time_is_a_timeout(open_device: Open) -> None:
    device = open_device()
    with pytest.raises(DeviceTimeoutError, match=r"^llvmpipe .* did not finish in time \(vkWaitSemaphores\)"):
        device.wait(1, 0.01)


def test_other_threads_run_while_one_waits(open_device: Open) -> None:
    device = open_device()
    timed_out = threading.Event()

    def wait() -> None:
        with pytest.raises(DeviceTimeoutError):
            device.wait(1, 0.3)
        timed_out.set()

    thread = threading.Thread(target=wait)
    thread.start()
    turns = 0
    while not timed_out.wait(0.01):
        turns += 1
    thread.join()
    assert turns >= 5


def test_an_upload_onto_a_lost_device_ends(open_device: Open) -> None:
    device = open_device(hide_host_visible=True)
    device.vk.inject("vkQueueSubmit", DEVICE_LOST)
    with pytest.raises(DeviceLostError):
        put(device, words(1000))


def ask(environment: dict[str, str], code: str = "print(vkapi.available(allow_software=True))") -> str:
    """Run code in a process of its own."""
    completed = subprocess.run(
        [sys.executable, "-c", f"from tierd.backends import vkapi\n{code}"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return completed.stdout.strip()


def test_a_system_without_drivers_is_told(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none.json")
    reason = ask({"VK_DRIVER_FILES": nowhere, "VK_ICD_FILENAMES": nowhere})
    assert reason == "Vulkan has no compatible driver (vkCreateInstance); install one"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("raise OSError('Cannot find Vulkan SDK version')", "no Vulkan loader, libvulkan.so.1; install it"),
        (
            "raise ImportError('no module')",
            "the Python package vulkan cannot be imported (no module); install it",
        ),
    ],
)
def test_a_system_where_the_package_cannot_be_imported_is_told(
    tmp_path: Path, content: str, reason: str
) -> None:
    """The package raises OSError when it finds no loader; importing ours needs neither."""
    (tmp_path / "vulkan.py").write_text(content)
    assert reason in ask({"PYTHONPATH": str(tmp_path)})


def test_a_layer_that_is_not_installed_is_told(tmp_path: Path) -> None:
    code = """
from tierd.errors import DeviceError
try:
    vkapi.Device.open(allow_software=True, validate=True)
except DeviceError as error:
    print(error)
"""
    assert "the system has no VK_LAYER_KHRONOS_validation; install it" in ask(
        {"VK_LAYER_PATH": str(tmp_path)}, code
    )
