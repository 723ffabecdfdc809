"""Models of which a part is on the device: what gets there, what is said, and what is given back."""

from __future__ import annotations

import logging
import re
import sys
import time
from pathlib import Path

import pytest

from kompute import needs_kompute
from no_gpu import NO_DRIVER, NO_GPU
from tier.tiers import TierOf, model
from tierd.backends import library
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.rails.products import Products
from tierd.backends.vkapi import Device
from tierd.core import PassReason
from tierd.engine.snapshot import observe
from tierd.errors import DeviceLostError, DeviceMemoryError, NoDeviceError, RequiredTierError
from tierd.kv.origin import place_of
from tierd.slot import Seat, Slot
from tierd.tier import device_site, retries
from tierd.tier.budget import Placement
from tierd.tier.placing import Foreseen, foresee
from tiny import write_llama

# On the device a layer takes about 1.4 MiB, on rails and whole; a region takes 4 MiB.
WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512, "layers": 4, "context": 4096}
NO_KOMPUTE = "Kompute cannot be loaded (kp is not installed); "


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All its weights are bytes, so that layers alone fit where the model does not."""
    return write_llama(tmp_path_factory.mktemp("rails") / "wide.gguf", format="Q8_0", **WIDE)


@pytest.fixture
def _no_kompute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kp", None)


def tight(path: Path, id: str = "tiny", **options: object) -> object:
    return model(path, id, context=4096, ctx_strict=True, **options)


def seat_of(slot: Slot) -> Seat:
    assert slot.seat is not None
    return slot.seat


def executor_of(slot: Slot) -> RailsExecutor:
    assert isinstance(slot.executor, RailsExecutor)
    return slot.executor


def leave(slot: Slot) -> None:
    """Take a model off the device."""
    seat_of(slot).leave()
    seat_of(slot).drop(slot.home)
    slot.marks = seat_of(slot).save()


def come(slot: Slot) -> None:
    """Bring it back."""
    seat_of(slot).restore(slot.marks)
    seat_of(slot).rearm()
    seat_of(slot).settle()


@needs_kompute
def test_a_model_that_does_not_fit_has_as_many_layers_there_as_fit(wide: Path, tier_of: TierOf) -> None:
    each = tight(wide)
    tier, settings = tier_of(each, vram_limit_mb=4)
    slot = tier.open(each)
    assert (slot.outcome, slot.declined, slot.there) == ("gpu:rails", None, True)
    assert " of the device's 4.0 MiB" in slot.decline
    rails = observe([slot]).models["tiny"].rails
    assert rails is not None
    assert rails.layers == (0, 1, 2, 3)
    assert 0 < len(rails.on_device) < 4
    assert rails.on_device == tuple(range(len(rails.on_device)))
    status = tier.status()
    assert status.used == status.reservations["tiny"] <= status.budget
    assert foresee(settings) == {"tiny": Foreseen("gpu:rails", slot.decline)}
    slot.close()
    tier.release("tiny")
    assert (tier.status().reservations, tier.status().used) == ({}, 0)


@needs_kompute
def test_mode_rails_leaves_models_on_the_host(tiny: Path, tier_of: TierOf) -> None:
    each = model(tiny)
    tier, settings = tier_of(each, mode="rails")
    assert foresee(settings) == {"tiny": Foreseen("gpu:rails")}
    slot = tier.open(each)
    assert (slot.outcome, slot.decline) == ("gpu:rails", "")
    assert isinstance(slot.executor, RailsExecutor)
    assert slot.executor.layers == slot.executor.all_layers == (0, 1)
    slot.close()


@needs_kompute
def test_those_that_come_later_get_what_is_left(wide: Path, tier_of: TierOf) -> None:
    models = [model(wide, id) for id in "abc"]
    tier, _ = tier_of(*models, mode="rails", vram_limit_mb=8)
    slots = [tier.open(each) for each in models]
    assert [slot.outcome for slot in slots] == ["gpu:rails"] * 3
    layers = [len(slot.executor.layers) for slot in slots if isinstance(slot.executor, RailsExecutor)]
    assert layers[0] == 4 > layers[1] > layers[2] == 0
    assert [slot.there for slot in slots] == [True, True, False]
    assert all(slot.serves for slot in slots)
    assert tier.status().away.keys() == {"c"}
    assert sum(tier.status().reservations.values()) <= tier.status().budget
    slots[0].close()
    tier.release("a")
    again = tier.open(models[0])
    assert again.there
    for slot in (*slots[1:], again):
        slot.close()


@needs_kompute
def test_layers_leave_and_come_back_and_the_model_serves_on(wide: Path, tier_of: TierOf) -> None:
    each = model(wide)
    tier, _ = tier_of(each, mode="rails")
    slot = tier.open(each)
    seat, executor = slot.seat, slot.executor
    assert seat is not None
    assert isinstance(executor, RailsExecutor)
    seat.leave()
    assert (slot.there, slot.serves, executor.layers) == (False, True, executor.all_layers)
    seat.drop(slot.home)
    marks = seat.save()
    assert (slot.home.executor, executor.layers) == (executor, ())
    assert (tier.status().reservations, tier.status().used) == ({}, 0)
    assert slot.serves
    seat.restore(marks)
    placed = seat.rearm()
    seat.settle()
    assert (placed.home, placed.seat) == (slot.home, seat)
    assert (slot.there, executor.layers) == (True, executor.all_layers)
    slot.close()


@needs_kompute
def test_one_that_is_not_to_be_there_early_is_away_and_serves(wide: Path, tier_of: TierOf) -> None:
    each = model(wide, preload=False)
    tier, _ = tier_of(each, mode="rails")
    slot = tier.open(each)
    assert (slot.outcome, slot.there, slot.serves) == ("gpu:rails", False, True)
    assert slot.marks is not None
    slot.close()


@needs_kompute
def test_a_model_that_finds_no_room_after_all_leaves_nothing(
    tiny: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DeviceMemoryError("no room in one piece")

    each = model(tiny)
    tier, _ = tier_of(each, mode="rails")
    with monkeypatch.context() as patch:
        patch.setattr(Products, "__init__", full)
        slot = tier.open(each)
    assert (slot.outcome, slot.decline) == ("cpu", "no room in one piece")
    assert (tier.status().reservations, tier.status().used) == ({}, 0)
    slot.close()


@needs_kompute
@pytest.mark.parametrize(("mode", "outcome"), [("auto", "gpu:resident"), ("rails", "gpu:rails")])
def test_rails_are_the_least_that_is_required(tiny: Path, tier_of: TierOf, mode: str, outcome: str) -> None:
    each = model(tiny)
    tier, _ = tier_of(each, mode=mode, require="rails")
    slot = tier.open(each)
    assert slot.outcome == outcome
    slot.close()


@needs_kompute
def test_rails_are_not_enough_where_a_whole_model_is_required(wide: Path, tier_of: TierOf) -> None:
    each = tight(wide, require="resident")
    tier, settings = tier_of(each, vram_limit_mb=6)
    with pytest.raises(RequiredTierError, match="tiny: it must be resident on the GPU, as `require` demands"):
        tier.open(each)
    assert foresee(settings)["tiny"].outcome == "cpu"


@needs_kompute
def test_the_origin_of_rows_names_the_device_its_driver_and_the_layers_that_it_may_have(
    wide: Path, tier_of: TierOf
) -> None:
    """It is the same for the same placement, also while the layers are away: the host has its part in it."""
    origins = []
    for limit in (4, 4, 8):
        each = model(wide)
        tier, _ = tier_of(each, mode="rails", vram_limit_mb=limit)
        slot = tier.open(each)
        origins.append(slot.home.origin)
        layers = ",".join(map(str, executor_of(slot).layers))
        place = place_of(slot.home.origin)
        assert place.startswith(
            f"rails over cpu {library.level()}, layers {layers} on {slot.device}, driver "
        )
        leave(slot)
        assert slot.home.origin == origins[-1]
        slot.close()
    assert origins[0] == origins[1] != origins[2]


@needs_kompute
def test_a_device_that_failed_is_tried_again_when_that_is_due(
    wide: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, other = model(wide, "a"), model(wide, "b")
    tier, _ = tier_of(each, other, mode="rails")
    slots = [tier.open(each), tier.open(other)]
    held = tier.status().reservations
    monkeypatch.setattr(retries, "FIRST_S", 600.0)
    assert [seat_of(slot).barred for slot in slots] == [0.0, 0.0]
    site = tier._device
    assert site is not None
    site.card().abandon(DeviceLostError("it is lost"))
    for slot in slots:
        assert executor_of(slot).failure == "it is lost"
        seat_of(slot).lose()
        slot.marks = seat_of(slot).save()
    assert seat_of(slots[0]).barred > time.monotonic()
    status = tier.status()
    assert (status.reservations, status.device != "", status.faults) == ({}, True, 1)
    assert status.fault == "it is lost"
    assert status.retry_s is not None
    assert 0.0 < status.retry_s <= 600.0
    seat_of(slots[0]).restore(slots[0].marks)
    with pytest.raises(DeviceLostError, match="it is lost"):
        seat_of(slots[0]).rearm()
    slots[0].marks = seat_of(slots[0]).save()

    monkeypatch.setattr(site._availability, "_clock", lambda: time.monotonic() + 600.0)
    for slot in slots:
        come(slot)
        assert (executor_of(slot).failure, executor_of(slot).layers) == ("", (0, 1, 2, 3))
        assert seat_of(slot).barred == 0.0
    assert (tier.status().reservations, tier.status().retry_s) == (held, None)
    for slot in slots:
        slot.close()


@needs_kompute
def test_layers_do_not_come_to_another_device(
    wide: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that it computes would pass for those of the device that the model was loaded for."""
    each = model(wide)
    tier, _ = tier_of(each, mode="rails")
    slot = tier.open(each)
    site = tier._device
    assert site is not None
    leave(slot)
    place = site.card().place
    monkeypatch.setattr(site.card(), "place", "another, driver 2")
    seat_of(slot).restore(slot.marks)
    message = f"tiny was loaded for {place}, and the device is another, driver 2 now; load it again"
    with pytest.raises(NoDeviceError, match=re.escape(message)):
        seat_of(slot).rearm()
    assert tier.status().reservations == {}
    slot.close()


@needs_kompute
@pytest.mark.parametrize("pin", [False, True])
def test_what_was_promised_to_a_part_is_not_dealt_out_again_on_a_fresh_device(
    pin: bool, wide: Path, tiny: Path, tier_of: TierOf, opened: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_S", 0.0)
    part, whole = tight(wide, "part", pin=pin), model(tiny, "whole")
    tier, _ = tier_of(part, whole, vram_limit_mb=6)
    slots = {each.id: tier.open(each) for each in (part, whole)}
    assert {id: slot.outcome for id, slot in slots.items()} == {"part": "gpu:rails", "whole": "gpu:resident"}
    site, size = tier._device, seat_of(slots["part"]).bytes
    assert site is not None
    before = site.shares()
    if slots["whole"].there:
        slots["whole"].executor.close()
        seat_of(slots["whole"]).lose()
    leave(slots["part"])
    opened[0].abandon(DeviceLostError("it is lost"))
    site.lost()
    monkeypatch.setattr(device_site, "all_fit", lambda *_: False)
    site.probe()
    after = site.shares()
    assert len(opened) == 2
    assert after["part"] == before["part"]
    assert seat_of(slots["part"]).bytes == size
    there = [share for share in after.values() if isinstance(share, Placement)]
    assert sum(share.bytes for share in there if share.pinned or not share.turns) <= tier.status().budget
    for slot in slots.values():
        slot.close()


@pytest.mark.usefixtures("_no_kompute")
def test_without_kompute_the_cpu_serves_and_says_why(
    wide: Path, tier_of: TierOf, caplog: pytest.LogCaptureFixture
) -> None:
    each = tight(wide)
    tier, settings = tier_of(each, vram_limit_mb=6)
    slot = tier.open(each)
    assert (slot.outcome, slot.declined) == ("cpu", PassReason.NO_ROOM)
    assert " of the device's 6.0 MiB" in slot.decline
    assert f"; nor on rails: {NO_KOMPUTE}" in slot.decline
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"model=tiny declined by the device: {slot.decline}" in warned
    assert foresee(settings) == {"tiny": Foreseen("cpu", slot.decline)}
    slot.close()


@pytest.mark.usefixtures("_no_kompute")
def test_without_kompute_required_rails_are_an_error(tiny: Path, tier_of: TierOf) -> None:
    each = model(tiny)
    tier, _ = tier_of(each, mode="rails", require="rails")
    with pytest.raises(RequiredTierError) as refused:
        tier.open(each)
    message = f"tiny: it must be rails on the GPU, as `require` demands, but {NO_KOMPUTE}"
    assert str(refused.value).startswith(message)


def test_without_a_device_there_are_no_rails(
    tiny: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)
    each = model(tiny)
    tier, _ = tier_of(each, mode="rails")
    slot = tier.open(each)
    assert slot.outcome == "cpu"
    assert slot.decline.startswith((NO_DRIVER, "Kompute cannot be loaded"))
    slot.close()
