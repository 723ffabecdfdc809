from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpu import host_sees, memory_is_hidden
from no_gpu import NO_DRIVER, NO_GPU
from tierd.backends.vkapi import Device, Role
from tierd.backends.vkapi.results import DEVICE_LOST, OUT_OF_DEVICE_MEMORY, TIMEOUT
from tierd.errors import DeviceLostError
from tierd.settings import GPUSettings
from tierd.tier import availability
from tierd.tier.availability import Availability
from tierd.tier.retries import TRIES

SOFTWARE = GPUSettings(allow_software=True)


def test_a_device_that_computes_is_there_until_it_is_closed() -> None:
    box = Availability(SOFTWARE)
    assert box.known("resident").reason == "not opened"
    verdict = box.backend_available("resident")
    assert verdict.reason == ""
    assert verdict.device is not None
    assert verdict.device.used == 0  # nothing of the witness is left
    assert not (memory_is_hidden() and host_sees(verdict.device))
    assert box.known("resident") == verdict
    box.close()
    assert box.backend_available("resident").reason == box.known("resident").reason == "closed"


def test_the_witness_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    witness = availability.witness
    monkeypatch.setattr(availability, "witness", lambda device: (runs.append(device), witness(device)))
    box = Availability(SOFTWARE)
    assert box.backend_available("resident") is box.backend_available("resident")
    assert len(runs) == 1
    box.close()


def test_a_software_device_counts_only_when_it_may() -> None:
    verdict = Availability(GPUSettings()).backend_available("resident")
    assert verdict.device is None or verdict.device.facts.type != "software"
    if verdict.device is None:
        assert "is a software device, which counts only when gpu.allow_software is set" in verdict.reason


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)
    verdict = Availability(SOFTWARE).backend_available("resident")
    assert (verdict.device, verdict.reason) == (None, NO_DRIVER)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def box(clock: Clock) -> Iterator[Availability]:
    box = Availability(SOFTWARE, clock)
    yield box
    box.close()


@pytest.mark.parametrize(
    ("function", "result", "left"),
    [
        ("vkAllocateMemory", OUT_OF_DEVICE_MEMORY, False),
        ("vkCreateComputePipelines", OUT_OF_DEVICE_MEMORY, False),
        ("vkQueueSubmit", DEVICE_LOST, True),
        ("vkWaitSemaphores", TIMEOUT, True),
    ],
)
def test_a_device_whose_witness_fails_is_not_used_and_left_behind_if_it_hangs(
    function: str,
    result: int,
    left: bool,
    opened: list[Device],
    box: Availability,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    witness = availability.witness

    def failing(device: Device) -> None:
        device.vk.inject(function, result)
        witness(device)

    monkeypatch.setattr(availability, "witness", failing)
    assert function in box.backend_available("resident").reason
    assert not box.known("resident").lost  # it never worked: it is not tried again
    assert box.lost("resident") is None
    assert (opened[0].abandoned != "") == left
    assert box.faults("resident") == (0, "")


def fail(device: Device, function: str = "vkQueueSubmit") -> None:
    """Let a device be given up in the middle of its work."""
    device.vk.inject(function, DEVICE_LOST)
    with pytest.raises(DeviceLostError):
        device.submit(device.recorder().finish())


def test_a_lost_device_is_told_and_a_fresh_one_takes_its_place_when_that_is_due(
    opened: list[Device], box: Availability, clock: Clock
) -> None:
    first = box.backend_available("resident").device
    assert first is not None
    budget = first.budget()
    first.buffer(1, Role.DEVICE)
    assert box.lost("resident") == clock.now  # it works: a model that is not there may try at once
    assert box.retry_at("resident") is None
    fail(first)
    assert box.lost("resident") == box.lost("resident") == box.retry_at("resident") == clock.now + 1
    verdict = box.known("resident")
    assert (verdict.device, verdict.reason, verdict.lost) == (None, first.abandoned, True)
    assert box.backend_available("resident") is verdict  # nothing is opened by asking
    assert box.faults("resident") == (1, first.abandoned)

    assert box.probe("resident") is verdict  # nor before it is due
    clock.now += 1
    fresh = box.probe("resident").device
    assert opened == [first, fresh]
    assert fresh is not None
    assert box.backend_available("resident").device is fresh
    assert fresh.budget() < budget
    assert box.probe("resident").device is fresh
    assert (box.lost("resident"), box.retry_at("resident")) == (clock.now, None)
    assert box.faults("resident") == (1, first.abandoned)


def test_a_fresh_device_that_fails_is_tried_ever_later_and_not_for_ever(
    opened: list[Device], box: Availability, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices that hang are left behind, and the next ones opened with what they leave."""
    device = box.backend_available("resident").device
    assert device is not None
    witness = availability.witness

    def hanging(device: Device) -> None:
        device.vk.inject("vkWaitSemaphores", TIMEOUT)
        witness(device)

    monkeypatch.setattr(availability, "witness", hanging)
    fail(device)
    tries = 0
    while (due := box.lost("resident")) is not None:
        assert due == clock.now + min(2**tries, 60)
        clock.now = due
        assert box.probe("resident").lost
        tries += 1
    assert (tries, len(opened)) == (TRIES, 1 + TRIES)
    assert all(each.abandoned for each in opened)
    assert box.known("resident").reason.endswith(
        "did not finish in time (vkWaitSemaphores); look into the system's log for the driver's; it has "
        f"been tried {TRIES} times and is left alone: restart tierd to use it again"
    )
    clock.now += 3600
    assert box.probe("resident").lost
    assert len(opened) == 1 + TRIES
    assert box.faults("resident")[0] == 1


def test_a_driver_that_is_gone_is_told_and_tried_again(
    opened: list[Device], box: Availability, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = box.backend_available("resident").device
    assert device is not None
    fail(device)
    assert box.lost("resident") is not None
    clock.now += 1
    with monkeypatch.context() as patch:
        for name, value in NO_GPU.items():
            patch.setenv(name, value)
        verdict = box.probe("resident")
        assert (verdict.reason, verdict.lost) == (NO_DRIVER, True)
    clock.now += 2
    assert box.probe("resident").reason == ""
    assert len(opened) == 2


def test_nothing_is_tried_once_it_is_closed(opened: list[Device], box: Availability, clock: Clock) -> None:
    device = box.backend_available("resident").device
    assert device is not None
    fail(device)
    assert box.lost("resident") is not None
    box.close()
    clock.now += 100
    assert box.probe("resident").reason == "closed"
    assert len(opened) == 1


def test_noting_a_lost_device_does_not_wait_for_one_that_is_opened(
    opened: list[Device], box: Availability, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = box.backend_available("resident").device
    assert device is not None
    fail(device)
    box.lost("resident")
    clock.now += 1
    begun, go_on = threading.Event(), threading.Event()
    witness = availability.witness

    def slow(device: Device) -> None:
        begun.set()
        assert go_on.wait(30)
        witness(device)

    monkeypatch.setattr(availability, "witness", slow)
    prober = threading.Thread(target=box.probe, args=("resident",))
    prober.start()
    assert begun.wait(30)
    assert box.lost("resident") == clock.now  # it is due still
    assert box.known("resident").lost
    go_on.set()
    prober.join(30)
    assert box.known("resident").reason == ""
