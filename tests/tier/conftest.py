from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from faulty import close_checked
from tier.tiers import TierOf, build
from tierd.backends.vkapi import Device
from tiny import write_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32 values, so that every codec fits."""
    return write_llama(tmp_path_factory.mktemp("tier") / "tiny.gguf", head_size=32, ff=96, context=4096)


@pytest.fixture
def tier_of(opened: list[Device]) -> Iterator[TierOf]:
    """Builds tiers of models, with settings of [gpu]; see `tiers.build`. They close before their devices."""
    with ExitStack() as stack:
        yield partial(build, stack)


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Device]]:
    """All devices that are opened meanwhile, under the validation layer; they are checked after the test."""
    devices: list[Device] = []
    open = Device.open

    def noted(**options: object) -> Device:
        devices.append(open(validate=True, **options))  # type: ignore[arg-type]
        return devices[-1]

    monkeypatch.setattr(Device, "open", noted)
    yield devices
    for device in devices:
        close_checked(device)
