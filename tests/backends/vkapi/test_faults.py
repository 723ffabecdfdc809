"""What goes wrong is told in one line, as the right kind of error; the binding's hook lets it happen."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.vkapi.words import PUSH_BYTES, put, words
from faulty import SUBMIT_FAULTS, WAIT_FAULTS, take_back
from tierd.backends.vkapi import Commands, Device, Part, Role
from tierd.backends.vkapi.facts import MEMORY_BUDGET
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
def test_a_lost_device_is_told_wherever_it_is_noticed_and_given_up(open_device: Open, function: str) -> None:
    device = open_device()
    commands = device.recorder(timestamps=1).finish()
    device.vk.inject(function, DEVICE_LOST, times=1)
    with pytest.raises(DeviceLostError, match=rf"^llvmpipe .* was lost \({function}\); look into"):
        LOST[function](device, commands)
    assert device.abandoned.startswith("llvmpipe")
    with pytest.raises(DeviceLostError, match=r"^llvmpipe .* was given up: llvmpipe .* was lost"):
        LOST[function](device, commands)


def test_a_device_that_is_lost_while_it_is_closed_is_left_behind(open_device: Open) -> None:
    device = open_device()
    device.buffer(1000, Role.DEVICE)
    device.vk.inject("vkDeviceWaitIdle", DEVICE_LOST)
    device.close()
    assert device.abandoned


def test_nothing_is_asked_of_a_device_that_was_given_up_nor_freed(
    open_device: Open, scaled_add: bytes
) -> None:
    device = open_device()
    buffer, commands = device.buffer(1000, Role.DEVICE), device.recorder().finish()
    for reason in ("it answers nonsense", "it is dead"):
        device.abandon(DeviceError(reason))
    calls, used = device.calls, device.used
    asked: list[Callable[[], object]] = [
        lambda: device.submit(commands),
        lambda: device.wait(0, 10),
        lambda: device.buffer(1, Role.DEVICE),
        lambda: device.pipeline(scaled_add, PUSH_BYTES),
        lambda: put(device, words(1000)),
        device.recorder,
    ]
    for ask in asked:
        with pytest.raises(DeviceLostError, match=r"^llvmpipe .* was given up: it answers nonsense$"):
            ask()
    buffer.close()
    device.close()
    assert (device.calls, device.used) == (calls, used)


@pytest.mark.parametrize("same", [True, False])
def test_what_devices_that_were_given_up_hold_is_not_there_any_more(open_device: Open, same: bool) -> None:
    """Neither of what a device may take nor of what there is of it; of another card nothing is missing."""
    lost = [open_device(vram_limit=100 << 20) for _ in range(2)]
    for device in lost:
        device.buffer(1, Role.DEVICE)  # in a block of all that there is
        if not same:
            device.facts = dataclasses.replace(device.facts, uuid="another")
        device.abandon(DeviceError("it hangs"))
    limited = open_device(vram_limit=300 << 20, given_up=lost)
    assert limited.budget() == (100 if same else 300) << 20
    assert MEMORY_BUDGET not in limited.facts.extensions  # what drivers tell leaves it out by itself
    assert open_device().budget() - open_device(given_up=lost).budget() == (200 << 20 if same else 0)


def test_calls_pass_before_a_fault_and_behind_it(open_device: Open) -> None:
    device = open_device()
    device.vk.inject("vkWaitSemaphores", OUT_OF_HOST_MEMORY, after=2, times=1)
    for _ in range(2):
        device.wait(0, 10)
    with pytest.raises(DeviceMemoryError):
        device.wait(0, 10)
    take_back(device)
    device.wait(0, 10)


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
    assert device.abandoned


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


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    ("function", "faults"), [("vkQueueSubmit", SUBMIT_FAULTS), ("vkWaitSemaphores", WAIT_FAULTS)]
)
def test_an_upload_that_fails_ends_at_once_and_a_device_without_memory_is_kept(
    open_device: Open, function: str, faults: dict[int, type[DeviceError]], after: int
) -> None:
    for result, error in faults.items():
        device = open_device(hide_host_visible=True)
        target = device.buffer(10_000, Role.DEVICE)
        device.vk.inject(function, result, after=after, times=1)
        with pytest.raises(error):
            device.upload([Part(target, 0, 10_000)], lambda *_: None, chunk_bytes=4096)
        kept = function == "vkQueueSubmit" and error is DeviceMemoryError
        assert (device.abandoned == "") == kept
        if kept:
            device.upload([Part(target, 0, 10_000)], lambda *_: None, chunk_bytes=4096)


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
