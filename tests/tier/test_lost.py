"""A device that is lost under its models: they go to a fresh one, or to the CPU."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tier.tiers import TierOf, model
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.vkapi import Device
from tierd.backends.vkapi.results import DEVICE_LOST
from tierd.core import Batch, Chunk, PassReason
from tierd.errors import DeviceLostError, DeviceMemoryError, ModelError, RequiredTierError
from tierd.slot import Fallback, Seat, Slot
from tierd.tier import host_needs, retries
from tiny import write_llama

STEP = Batch((Chunk((5, 6, 7), start=0, pages=(0,), logit_rows=(2,)),))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first try come without a wait."""
    monkeypatch.setattr(retries, "FIRST_S", 0.0)


def fallback_of(slot: Slot) -> Fallback:
    assert slot.fallback is not None
    return slot.fallback


def seat_of(slot: Slot) -> Seat:
    assert slot.seat is not None
    return slot.seat


def run(slot: Slot) -> np.ndarray:
    assert isinstance(slot.executor, ResidentExecutor)
    return slot.executor.run(STEP)


def lose(device: Device, *slots: Slot) -> None:
    """Let a device fail in a step of the first slot; the others notice."""
    device.vk.inject("vkQueueSubmit", DEVICE_LOST)
    for slot in slots:
        with pytest.raises(DeviceLostError):
            run(slot)
        assert fallback_of(slot).retry_at() is not None
        slot.executor.close()
        seat_of(slot).lose()


def rearm(slot: Slot) -> None:
    placed = fallback_of(slot).rearm(slot)
    assert (placed.fallback, placed.seat, placed.marks) == (slot.fallback, slot.seat, None)
    slot.home = placed.home
    seat_of(slot).settle()


def test_models_go_back_to_a_fresh_device_with_what_they_had(
    tiny: Path, tier_of: TierOf, opened: list[Device]
) -> None:
    models = [model(tiny, "a", context=1000), model(tiny, "b")]
    tier, _ = tier_of(*models)
    slots = [tier.open(each) for each in models]
    before = tier.status()
    assert (before.backend, before.faults, before.fault, before.retry_s) == ("resident", 0, "", None)
    assert before.reservations.keys() == {"a", "b"}
    assert sum(before.reservations.values()) >= before.used
    expected = [run(slot) for slot in slots]
    held = [(slot.executor.pages, slot.executor.page_positions) for slot in slots]

    lose(opened[0], *slots)
    lost = tier.status()
    assert (lost.device, lost.used, lost.budget, lost.reservations) == ("", 0, 0, {})
    assert lost.reason == lost.fault == opened[0].abandoned
    assert (lost.faults, lost.retry_s) == (1, 0.0)

    for slot in slots:
        rearm(slot)
    assert len(opened) == 2
    after = tier.status()
    assert (after.device, after.used, after.reservations) == (before.device, before.used, before.reservations)
    assert after.budget < before.budget
    assert (after.faults, after.fault, after.retry_s) == (1, opened[0].abandoned, None)
    assert [(slot.executor.pages, slot.executor.page_positions) for slot in slots] == held
    for slot, logits in zip(slots, expected, strict=True):
        np.testing.assert_array_equal(run(slot), logits)
        slot.close()


@pytest.mark.parametrize("require", ["none", "resident"])
def test_what_is_left_may_be_less(tiny: Path, tier_of: TierOf, opened: list[Device], require: str) -> None:
    """64 regions of 4096 positions take more than is left of 300 MiB once a block of 256 is lost."""
    each = model(tiny, regions=64, context=4096)
    tier, _ = tier_of(each, vram_limit_mb=300, require=require)
    slot = tier.open(each)
    assert (slot.context, slot.executor.page_positions) == (4096, 4096)
    lose(opened[0], slot)
    if require == "none":
        rearm(slot)
        assert 512 <= slot.executor.page_positions < 4096
        assert tier.status().reservations["tiny"] <= tier.status().budget == 44 << 20
        slot.close()
    else:  # a stream may have been promised all of it, and cannot go elsewhere
        with pytest.raises(DeviceMemoryError, match=r"at context 4096 need .* of the device's 44\.0 MiB; "):
            fallback_of(slot).rearm(slot)
        assert fallback_of(slot).retry_at() is None
        assert tier.status().reservations == {}


def test_a_model_that_nothing_is_left_for_is_not_offered_again(
    tiny: Path, tier_of: TierOf, opened: list[Device]
) -> None:
    tier, _ = tier_of(model(tiny), vram_limit_mb=5)
    slot = tier.open(model(tiny))
    lose(opened[0], slot)
    with pytest.raises(DeviceMemoryError, match=r"need .* of the device's 0\.0 MiB; "):
        fallback_of(slot).rearm(slot)
    assert fallback_of(slot).retry_at() is None


def test_a_device_that_is_not_back_is_tried_later(
    tiny: Path, tier_of: TierOf, opened: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, _ = tier_of(model(tiny))
    slot = tier.open(model(tiny))
    monkeypatch.setattr(retries, "FIRST_S", 50.0)
    lose(opened[0], slot)
    with pytest.raises(DeviceLostError, match="was lost"):
        fallback_of(slot).rearm(slot)
    with pytest.raises(RequiredTierError, match=r"as `require` demands, but .* was lost"):
        tier.open(model(tiny, "other", require="resident"))
    assert len(opened) == 1
    due = fallback_of(slot).retry_at()
    assert due is not None
    assert 40 < due - time.monotonic() <= 50


def test_a_model_that_loses_its_device_while_it_is_put_there_is_on_the_cpu(
    tiny: Path, tier_of: TierOf, opened: list[Device]
) -> None:
    models = [model(tiny, id) for id in "ab"]
    tier, _ = tier_of(*models)
    slot = tier.open(models[0])
    opened[0].vk.inject("vkBeginCommandBuffer", DEVICE_LOST)  # nothing is submitted where the host sees all
    other = tier.open(models[1])
    assert (other.outcome, other.declined, other.fallback) == ("cpu", PassReason.DEVICE_LOST, None)
    assert other.decline == opened[0].abandoned
    assert tier.status().faults == 1
    other.close()
    lose(opened[0], slot)
    rearm(slot)
    assert tier.status().reservations.keys() == {"a"}
    slot.close()


def test_a_model_that_is_loaded_once_the_device_was_lost_gets_a_fresh_one(
    tiny: Path, tier_of: TierOf, opened: list[Device]
) -> None:
    tier, _ = tier_of(model(tiny, "a"), model(tiny, "b"))
    first = tier.open(model(tiny, "a"))
    lose(opened[0], first)
    second = tier.open(model(tiny, "b"))
    assert (second.outcome, len(opened)) == ("gpu:resident", 2)
    rearm(first)
    assert len(opened) == 2
    for slot in (first, second):
        run(slot)
        slot.close()


def test_an_understudy_is_the_same_model_on_the_cpu(tiny: Path, tier_of: TierOf) -> None:
    tier, _ = tier_of(model(tiny))
    slot = tier.open(model(tiny))
    understudy = fallback_of(slot).understudy(slot)
    assert (understudy.outcome, understudy.context, understudy.chunk_rows) == ("cpu", slot.context, 16)
    assert (understudy.decline, understudy.declined, understudy.fallback) == ("", None, None)
    assert understudy.tokenizer is slot.tokenizer
    assert understudy.executor.row_bytes == slot.executor.row_bytes
    (expected,) = run(slot)
    understudy.executor.submit(STEP)
    np.testing.assert_allclose(understudy.executor.collect().logits(0), expected, atol=0.01)
    understudy.close()
    slot.close()


def test_an_understudy_stays_within_the_memory_that_is_free(
    tiny: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, _ = tier_of(model(tiny, context=4096))
    slot = tier.open(model(tiny, context=4096))
    monkeypatch.setattr(host_needs, "available_memory", lambda: 1000)
    with pytest.raises(ModelError, match="MiB are free; serve fewer models"):
        fallback_of(slot).understudy(slot)
    monkeypatch.setattr(host_needs, "available_memory", lambda: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(ModelError, match="tiny: there is not the memory to load it once more"):
        fallback_of(slot).understudy(slot)
    slot.close()


def test_another_file_is_not_put_in_the_place_of_the_first(
    tiny: Path, tmp_path: Path, tier_of: TierOf, opened: list[Device]
) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(tiny, path)
    tier, _ = tier_of(model(path))
    slot = tier.open(model(path))
    write_llama(path, head_size=64, context=4096)
    with pytest.raises(ModelError, match="is not the file that was loaded; restart tierd"):
        fallback_of(slot).understudy(slot)
    before = run(slot)
    lose(opened[0], slot)
    rearm(slot)
    np.testing.assert_array_equal(run(slot), before)  # as its weights are mapped
    slot.close()


@pytest.mark.parametrize(
    ("require", "refusal"), [("none", ""), ("resident", "`require` demands that it is resident on the GPU")]
)
def test_a_model_that_must_be_on_the_device_has_no_understudy(
    tiny: Path, tier_of: TierOf, require: str, refusal: str
) -> None:
    tier, _ = tier_of(model(tiny), require=require)
    slot = tier.open(model(tiny))
    assert fallback_of(slot).refusal == refusal
    slot.close()
