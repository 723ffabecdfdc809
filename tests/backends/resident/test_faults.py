"""A device that fails while it steps or moves rows: it is given up at once, a fresh one computes the same."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tiny
from backends.resident.conftest import TOKENS, feed
from faulty import SUBMIT_FAULTS, WAIT_FAULTS, close_checked, in_turn, take_back
from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.image import default_directory
from tierd.backends.resident.memory import Shape
from tierd.backends.vkapi import Device
from tierd.backends.vkapi.results import TIMEOUT
from tierd.core import Batch, Chunk, Draw
from tierd.errors import DeviceError, DeviceLostError, DeviceMemoryError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

SHAPE = Shape(regions=3, positions=64, max_rows=4, selected=2)
STEP = Batch((Chunk(TOKENS[:3], 0, (0,), (2,)),), (Draw(),))
FLAT = Batch((Chunk(TOKENS[:3], 0, (0,), (2,)),), (Draw(temperature=100.0, uniform=0.99),))
ALL_ROWS = Batch((Chunk(TOKENS[:4], 0, (0,), (0, 1, 2, 3)),))


@dataclass(frozen=True)
class Phase:
    """What is done before the call that fails, that call, and how many of its function pass before."""

    before: Callable[[ResidentExecutor], object]
    call: Callable[[ResidentExecutor], object]
    function: str
    after: int = 0

    @property
    def faults(self) -> dict[int, type[DeviceError]]:
        return SUBMIT_FAULTS if self.function == "vkQueueSubmit" else WAIT_FAULTS


def nothing(_: ResidentExecutor) -> None:
    pass


def submit(executor: ResidentExecutor) -> None:
    executor.submit(STEP)


def submit_flat(executor: ResidentExecutor) -> None:
    executor.submit(FLAT)


def submit_for_all_rows(executor: ResidentExecutor) -> None:
    executor.submit(ALL_ROWS)


def submit_twice(executor: ResidentExecutor) -> None:
    executor.submit(STEP)
    executor.submit(Batch((Chunk((-1,), 3, (0,), (0,)),), (Draw(),)))


def copy(executor: ResidentExecutor) -> None:
    executor.submit(STEP)
    executor.collect()
    executor.copy_rows(0, 1, 3)


def collect(executor: ResidentExecutor) -> None:
    executor.collect()


def read_rows(executor: ResidentExecutor) -> None:
    executor.read_rows(0, [0], 0, 3, np.empty((3, executor.row_bytes[0]), np.uint8))


def write_rows(executor: ResidentExecutor) -> None:
    executor.write_rows(0, [2], 0, 3, np.zeros((3, executor.row_bytes[0]), np.uint8))


PHASES = {
    "submission": Phase(nothing, submit, "vkQueueSubmit"),
    "submission behind a step": Phase(submit, submit, "vkQueueSubmit"),
    "submission of copies": Phase(copy, submit, "vkQueueSubmit"),
    "submission behind copies": Phase(copy, submit, "vkQueueSubmit", after=1),
    "wait": Phase(submit, collect, "vkWaitSemaphores"),
    "wait with a step behind": Phase(submit_twice, collect, "vkWaitSemaphores"),
    "submission of a read-back": Phase(submit_flat, collect, "vkQueueSubmit"),
    "wait for a read-back": Phase(submit_flat, collect, "vkWaitSemaphores", after=1),
    "submission of further rows": Phase(submit_for_all_rows, collect, "vkQueueSubmit", after=2),
    "wait for further rows": Phase(submit_for_all_rows, collect, "vkWaitSemaphores", after=2),
    "submission of rows out": Phase(submit, read_rows, "vkQueueSubmit"),
    "wait for rows out": Phase(submit, read_rows, "vkWaitSemaphores"),
    "submission of copies before rows": Phase(copy, write_rows, "vkQueueSubmit"),
    "submission of rows in": Phase(copy, write_rows, "vkQueueSubmit", after=1),
    "wait for rows in": Phase(submit_twice, write_rows, "vkWaitSemaphores"),
}
CASES = in_turn(
    {
        phase: {result: error.__name__ for result, error in each.faults.items()}
        for phase, each in PHASES.items()
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def file(folder: Path) -> Iterator[GGUFFile]:
    with GGUFFile.open(tiny.write_llama(folder / "tiny.gguf", head_size=32, ff=96, layers=1)) as file:
        yield file


def pipelines() -> Path:
    """Return the tier's directory: what is compiled for one test is there for others."""
    return default_directory().with_name("pipelines")


OpenDevice = Callable[..., Device]


@pytest.fixture
def open_device() -> Iterator[OpenDevice]:
    """Opens devices that are closed and checked after the test, those that were given up as well."""
    opened: list[Device] = []

    def open(*given_up: Device, hidden: bool | None = None) -> Device:
        opened.append(
            Device.open(
                allow_software=True,
                validate=True,
                pipeline_cache=pipelines(),
                given_up=given_up,
                hide_host_visible=hidden,
            )
        )
        return opened[-1]

    yield open
    for device in opened:
        close_checked(device)


@pytest.fixture
def compiled(file: GGUFFile, pool: ThreadPool, folder: Path) -> Callable[[Device], ResidentExecutor]:
    def compile(device: Device) -> ResidentExecutor:
        backend = ResidentBackend(device, pool, images=folder / "images")
        executor = backend.compile(build_plan(file), file, codec=KV_CODECS["f16"], shape=SHAPE)
        device.save_pipelines()
        return executor

    return compile


Compile = Callable[[Device], ResidentExecutor]


@contextmanager
def asking_nothing(device: Device) -> Iterator[None]:
    """Check that a device is asked nothing meanwhile, and that nothing on it is freed."""
    before = (device.calls, device.used)
    yield
    assert (device.calls, device.used) == before


@pytest.mark.parametrize(("phase", "result"), CASES)
def test_a_device_that_fails_in_a_step_is_given_up_and_nothing_is_waited_for_or_freed(
    phase: str, result: int, open_device: OpenDevice, compiled: Compile
) -> None:
    what = PHASES[phase]
    device = open_device()
    executor = compiled(device)
    what.before(executor)
    device.vk.inject(what.function, result, after=what.after, times=1)
    with pytest.raises(what.faults[result], match=what.function):
        what.call(executor)
    assert what.function in device.abandoned

    seats = [weakref.ref(seat) for seat in executor._seats]
    with asking_nothing(device):
        for _ in range(len(executor._flights)):
            with pytest.raises(DeviceLostError, match="was given up"):
                executor.collect()
        for call in (submit, read_rows, write_rows):
            with pytest.raises(DeviceLostError, match="was given up"):
                call(executor)
        executor.close()
        executor.close()
        device.close()
    gc.collect()
    assert [seat() for seat in seats] == [None, None]
    assert not device._commands
    assert device.used > 0


@pytest.mark.parametrize("result", WAIT_FAULTS)
def test_a_fresh_device_has_what_is_left_and_computes_the_same(
    result: int, open_device: OpenDevice, compiled: Compile
) -> None:
    device = open_device()
    whole = device.budget()
    executor = compiled(device)
    threads = set(threading.enumerate())
    expected = feed(executor, TOKENS[:20], step=4)
    submit_twice(executor)
    device.vk.inject("vkWaitSemaphores", result)
    with pytest.raises(WAIT_FAULTS[result]):
        executor.collect()
    executor.close()

    fresh = open_device(device)
    assert fresh.budget() <= whole - device.used
    with closing(compiled(fresh)) as executor:
        np.testing.assert_array_equal(feed(executor, TOKENS[:20], step=4), expected)
    assert fresh.used == 0
    assert set(threading.enumerate()) == threads


def test_a_device_that_fails_while_it_is_left_is_given_up(open_device: OpenDevice, compiled: Compile) -> None:
    device = open_device()
    executor = compiled(device)
    submit_twice(executor)
    device.vk.inject("vkWaitSemaphores", TIMEOUT)
    executor.close()
    assert device.abandoned


PUTTING = [
    "vkAllocateMemory",
    "vkCreateComputePipelines",
    "vkAllocateCommandBuffers",
    "vkBeginCommandBuffer",
    "vkQueueSubmit",
    "vkWaitSemaphores",
]


@pytest.mark.parametrize("function", PUTTING)
def test_a_device_that_fails_while_a_model_is_put_there_is_given_up_unless_it_lacks_memory(
    function: str, open_device: OpenDevice, compiled: Compile
) -> None:
    """At the first call and later ones; where there is no room, what was there is given back.

    The host does not see the device's memory, so that something is submitted.
    """
    for after in (0, 3):
        for result, error in SUBMIT_FAULTS.items():
            device = open_device(hidden=True)
            device.vk.inject(function, result, after=after)
            with pytest.raises(error):
                compiled(device)
            if error is DeviceMemoryError and function != "vkWaitSemaphores":
                assert not device.abandoned
                assert (device.used, device._commands) == (0, set())
                take_back(device)
                compiled(device).close()
            else:
                assert device.abandoned
                with asking_nothing(device):
                    device.close()
