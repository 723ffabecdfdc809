from __future__ import annotations

import pytest

from gpu import host_sees
from no_gpu import NO_DRIVER, NO_GPU
from tierd.backends.vkapi import Device
from tierd.errors import DeviceError, DeviceTimeoutError
from tierd.settings import GPUSettings
from tierd.tier import availability
from tierd.tier.availability import Availability

SOFTWARE = GPUSettings(allow_software=True)


def test_a_device_that_computes_is_there_until_it_is_closed() -> None:
    box = Availability(SOFTWARE)
    assert box.known("resident").reason == "not opened"
    verdict = box.backend_available("resident")
    assert verdict.reason == ""
    assert verdict.device is not None
    assert verdict.device.used == 0  # nothing of the witness is left
    assert not host_sees(verdict.device)
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


@pytest.mark.parametrize(
    ("error", "closed"),
    [(DeviceError("it adds wrongly"), True), (DeviceTimeoutError("it hangs"), False)],
)
def test_a_device_whose_witness_fails_is_not_used_nor_waited_for_if_it_hangs(
    monkeypatch: pytest.MonkeyPatch, error: DeviceError, closed: bool
) -> None:
    opened: list[Device] = []
    ended: list[Device] = []
    close = Device.close

    def witness(device: Device) -> None:
        opened.append(device)
        raise error

    monkeypatch.setattr(availability, "witness", witness)
    monkeypatch.setattr(Device, "close", lambda device: (ended.append(device), close(device)))
    box = Availability(SOFTWARE)
    assert box.backend_available("resident").reason == str(error)
    assert ended == (opened if closed else [])
    box.close()
    assert ended == (opened if closed else [])
    close(opened[0])
