from __future__ import annotations

import pytest

from tierd.backends.resident import manifest, witness
from tierd.backends.vkapi import Device
from tierd.errors import DeviceError


def test_a_device_that_adds_is_believed() -> None:
    with Device.open(allow_software=True, validate=True) as device:
        witness.witness(device)
        assert device.messages == []


def test_one_that_adds_wrongly_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given one of the summands twice."""
    pack = manifest.pack

    def crossed(kernel: manifest.Kernel, /, **fields: float) -> bytes:
        return pack(kernel, **{**fields, "b": fields["a"]})

    monkeypatch.setattr(manifest, "pack", crossed)
    with (
        Device.open(allow_software=True) as device,
        pytest.raises(DeviceError, match="adds wrongly; its driver cannot be trusted"),
    ):
        witness.witness(device)
