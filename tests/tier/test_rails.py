"""Models of which a part is on the device: what gets there, what is said, and what is given back."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from kompute import needs_kompute
from no_gpu import NO_DRIVER, NO_GPU
from tier.tiers import TierOf, model
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.rails.products import Products
from tierd.core import PassReason
from tierd.engine.snapshot import observe
from tierd.errors import DeviceMemoryError, RequiredTierError
from tierd.tier.placing import Foreseen, foresee
from tiny import write_llama

# On the device a layer takes about 1.4 MiB, on rails and whole; a region takes 4 MiB.
WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512, "layers": 4, "context": 4096}
NO_KOMPUTE = "Kompute cannot be loaded (import of kp halted; None in sys.modules); "


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All its weights are bytes, so that layers alone fit where the model does not."""
    return write_llama(tmp_path_factory.mktemp("rails") / "wide.gguf", format="Q8_0", **WIDE)


@pytest.fixture
def _no_kompute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kp", None)


def tight(path: Path, id: str = "tiny", **options: object) -> object:
    return model(path, id, context=4096, ctx_strict=True, **options)


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
