"""Models that must be on the device: whatever happens there, none of their streams is the CPU's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.device_dance import BANK, RESTLESS
from engine.device_live import Served, serving
from engine.failing import WAIT, Phase
from tier.tiers import model
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.vkapi import Device
from tierd.backends.vkapi.results import DEVICE_LOST, OUT_OF_DEVICE_MEMORY
from tierd.core import FailedEvent
from tierd.engine import dance
from tierd.errors import NoDeviceError, UnavailableError
from tierd.settings import ModelSettings
from tierd.tier import retries
from tiny import write_llama

PROMPT = list(range(5, 35))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("required") / "tiny.gguf", head_size=32, ff=96)


def must(path: Path, id: str) -> ModelSettings:
    return model(path, id, context=128, ctx_strict=True, regions=2, require="resident")


@pytest.fixture(scope="module")
def room(path: Path) -> int:
    """Bytes that hold one of the models, and not two."""
    with serving(must(path, "tiny")) as served:
        return served.tier.status().reservations["tiny"] * 3 // 2


def stays_off_the_cpu(served: Served) -> None:
    """Check that nothing of any model was given to the CPU, nor made ready there."""
    for id, slot in served.harness.slots.items():
        assert slot.outcome == "gpu:resident"
        assert served.passes(id) == {}
        assert slot.understudy is None


def test_streams_wait_for_their_turn_where_others_would_go_on_at_the_cpu(path: Path, room: int) -> None:
    switch = replace(RESTLESS, resume="cpu")
    with serving(must(path, "one"), must(path, "two"), vram_limit=room, bank=BANK, switch=switch) as served:
        asked = [(served.ask(PROMPT, 8, model=id), id) for id in ("one", "two", "one")]
        for name, id in asked:
            served.check(name, PROMPT, 8, model=id)
        assert served.harness.engine.snapshot.switches >= 2
        stays_off_the_cpu(served)


def test_a_model_that_could_not_come_is_tried_again_and_waited_for(
    path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dance, "_BAR_S", 0.05)
    with serving(must(path, "one"), must(path, "two"), vram_limit=room, bank=BANK, switch=RESTLESS) as served:
        with Phase("arm", "vkAllocateMemory", of=ResidentBackend).failing(OUT_OF_DEVICE_MEMORY) as met:
            name = served.ask(PROMPT, model="two")
            served.check(name, PROMPT, model="two")
            assert met.is_set()
        stays_off_the_cpu(served)


def test_streams_of_a_device_that_does_not_come_back_end_with_the_reason(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open(**options: object) -> Device:
        raise NoDeviceError("it was taken out")

    monkeypatch.setattr(retries, "TRIES", 1)
    with serving(must(path, "tiny")) as served, pytest.MonkeyPatch.context() as patch:
        served.serve(PROMPT, 2)
        patch.setattr(Device, "open", open)
        with Phase("collect", WAIT).failing(DEVICE_LOST) as met:
            end = served.harness.mail.terminal(served.ask(PROMPT[::-1]))
            assert met.is_set()
        assert isinstance(end, FailedEvent), end
        assert isinstance(end.error, UnavailableError)
        assert "the CPU cannot serve the model (`require` demands that it is resident on" in str(end.error)
        stays_off_the_cpu(served)
