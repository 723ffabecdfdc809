"""Models that do not fit on a device together, and the device that they take turns on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tier.tiers import TierOf, model
from tierd.backends.absent import AbsentExecutor
from tierd.backends.resident.backend import Prepared, ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.memory import Shape
from tierd.backends.vkapi import Device
from tierd.backends.vkapi.results import DEVICE_LOST
from tierd.core import Batch, Chunk, PassReason
from tierd.errors import DeviceLostError, DeviceMemoryError, ExecutorError, OrderError
from tierd.progress import Progress
from tierd.settings import ModelSettings
from tierd.slot import Fallback, Seat, Slot
from tierd.tier import retries
from tierd.tier.device_site import DeviceSite
from tierd.tier.marks import DeviceMarks
from tierd.tier.placing import Foreseen, Tier, foresee
from tierd.tier.want import Want

STEP = Batch((Chunk((5, 6, 7), start=0, pages=(0,), logit_rows=(2,)),))
MIB = 1 << 20
ROUNDS = 20


def whole(path: Path, id: str, **options: object) -> ModelSettings:
    """A model of which 4 MiB hold one, and 8 hold two."""
    return model(path, id, context=4096, ctx_strict=True, **options)


def seat_of(slot: Slot) -> Seat:
    assert slot.seat is not None
    return slot.seat


def fallback_of(slot: Slot) -> Fallback:
    assert slot.fallback is not None
    return slot.fallback


def states(*slots: Slot) -> list[str]:
    assert {slot.outcome for slot in slots} <= {"gpu:resident"}
    return [seat_of(slot).state for slot in slots]


def leave(slot: Slot) -> None:
    seat = seat_of(slot)
    seat.leave()
    seat.drop(slot.home)
    slot.marks = seat.save()


def come(slot: Slot) -> None:
    seat = seat_of(slot)
    seat.restore(slot.marks)
    try:
        slot.capture(seat.rearm())
    except BaseException:
        slot.marks = seat.save()
        raise
    slot.marks = None
    seat.settle()


def run(slot: Slot) -> np.ndarray:
    assert isinstance(slot.executor, ResidentExecutor)
    return slot.executor.run(STEP)


def close(tier: Tier, *slots: Slot) -> None:
    """End models as they should: nothing is left of them."""
    for slot in slots:
        slot.close()
        tier.release(slot.id)
    status = tier.status()
    assert (status.used, status.reservations, status.away) == (0, {}, {})


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch, opened: list[Device]) -> Callable[..., None]:
    """Loses the device under slots that are on it, and lets it be tried again at once."""
    monkeypatch.setattr(retries, "FIRST_S", 0.0)

    def lose(*slots: Slot) -> None:
        opened[-1].vk.inject("vkQueueSubmit", DEVICE_LOST)
        for slot in slots:
            with pytest.raises(DeviceLostError):
                run(slot)
            assert fallback_of(slot).retry_at() is not None
            slot.executor.close()
            seat_of(slot).lose()

    return lose


def test_models_that_fit_together_stay_together(tiny: Path, tier_of: TierOf) -> None:
    models = [whole(tiny, id) for id in "ab"]
    tier, settings = tier_of(*models, vram_limit_mb=8)
    slots = [tier.open(each) for each in models]
    assert states(*slots) == ["on", "on"]
    status = tier.status()
    assert status.reservations == {slot.id: seat_of(slot).bytes for slot in slots}
    assert status.away == {}
    assert tier.weight_budget() == 8 * MIB - sum(status.reservations.values())
    assert foresee(settings) == dict.fromkeys("ab", Foreseen("gpu:resident", products="bit for bit"))
    close(tier, *slots)
    assert tier.weight_budget() == 8 * MIB


def test_of_two_that_do_not_the_second_waits_for_its_turn(tiny: Path, tier_of: TierOf) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b", resident_prefill_allowed=True)]
    tier, settings = tier_of(*models, vram_limit_mb=5)
    a, b = (tier.open(each) for each in models)
    assert states(a, b) == ["on", "away"]
    assert (a.marks, b.marks.model) == (None, "b")
    assert (b.context, b.home.room.total, b.scratch, b.serves) == (4096, 2, 2, False)
    status = tier.status()
    assert (status.reservations, status.away) == ({"a": seat_of(a).bytes}, {"b": seat_of(b).bytes})
    turns = Foreseen("gpu:resident", products="bit for bit", turns=True)
    assert foresee(settings) == {"a": turns, "b": turns}

    seen = vars(b.executor)
    with pytest.raises(ExecutorError, match="the model is not on its device now"):
        b.executor.submit(STEP)
    with pytest.raises(DeviceMemoryError, match=r"^b needs .* MiB of the device's 5\.0 MiB, of which 1\.\d "):
        come(b)
    expected = run(a)
    leave(a)
    assert (tier.status().used, states(a, b)) == (0, ["away", "away"])
    come(b)
    assert vars(AbsentExecutor.of(b.executor)) == seen
    np.testing.assert_array_equal(run(b), expected)
    leave(b)
    come(a)
    np.testing.assert_array_equal(run(a), expected)
    close(tier, a, b)


def test_what_nobody_asked_for_is_as_much_as_there_is_without_the_others(tiny: Path, tier_of: TierOf) -> None:
    models = [model(tiny, id, regions=16) for id in "ab"]
    tier, _ = tier_of(*models, vram_limit_mb=3)
    slots = [tier.open(each) for each in models]
    assert states(*slots) == ["on", "away"]
    assert slots[0].context == slots[1].context >= 512
    assert sum(seat_of(slot).bytes for slot in slots) > 5 * MIB
    leave(slots[0])
    come(slots[1])
    close(tier, *slots)


def test_one_that_never_leaves_comes_first_whatever_the_order(tiny: Path, tier_of: TierOf) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b", pin=True), model(tiny, "c")]
    tier, settings = tier_of(*models, mode="resident", vram_limit_mb=6)
    slots = [tier.open(each) for each in models]
    assert slots[0].outcome == "cpu"  # it would never have a turn
    assert slots[0].declined is PassReason.NO_ROOM
    assert " MiB of the device's 6.0 MiB, of which " in slots[0].decline
    assert states(*slots[1:]) == ["on", "on"]
    foreseen = foresee(settings)
    assert foreseen["a"] == Foreseen("cpu", slots[0].decline)
    assert not foreseen["b"].turns
    slots[0].close()
    close(tier, *slots[1:])


def test_beside_one_that_never_leaves_the_others_take_turns(tiny: Path, tier_of: TierOf) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b"), whole(tiny, "c", pin=True)]
    tier, settings = tier_of(*models, vram_limit_mb=8)
    slots = [tier.open(each) for each in models]
    assert states(*slots) == ["on", "away", "on"]
    assert [foreseen.turns for foreseen in foresee(settings).values()] == [True, True, False]
    leave(slots[0])
    come(slots[1])
    assert states(*slots) == ["away", "on", "on"]
    close(tier, *slots)


def test_a_model_need_not_come_before_it_is_asked_for(tiny: Path, tier_of: TierOf) -> None:
    models = [whole(tiny, "a", preload=False), whole(tiny, "b")]
    tier, settings = tier_of(*models, vram_limit_mb=8)
    slots = [tier.open(each) for each in models]
    assert states(*slots) == ["away", "on"]
    assert not foresee(settings)["a"].turns
    come(slots[0])
    assert states(*slots) == ["on", "on"]
    close(tier, *slots)


def test_one_that_comes_later_gets_what_is_left_or_takes_turns(tiny: Path, tier_of: TierOf) -> None:
    tier, _ = tier_of(whole(tiny, "a"), vram_limit_mb=9)
    slots = [tier.open(whole(tiny, id)) for id in "bac"]
    assert states(*slots) == ["on", "on", "away"]
    free = model(tiny, "free", regions=1)
    slots.append(tier.open(free))
    assert states(slots[-1]) == ["on"]
    assert 512 <= slots[-1].context < 4096
    close(tier, *slots)


def test_one_that_comes_later_and_never_leaves_makes_the_others_smaller(tiny: Path, tier_of: TierOf) -> None:
    large = model(tiny, "a", context=4096)
    tier, _ = tier_of(large, vram_limit_mb=4)
    a = tier.open(large)
    assert states(a) == ["on"]
    before = seat_of(a).bytes
    pinned = tier.open(model(tiny, "b", pin=True))
    assert (pinned.context, *states(pinned)) == (512, "away")
    assert seat_of(a).bytes == before  # as long as it is there
    leave(a)
    assert seat_of(a).bytes + seat_of(pinned).bytes <= 4 * MIB
    come(pinned)
    come(a)
    assert states(a, pinned) == ["on", "on"]
    assert 512 <= a.home.most < 4096 == a.context
    close(tier, a, pinned)


def test_who_comes_while_another_leaves_waits_for_its_turn(tiny: Path, tier_of: TierOf) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b")]
    tier, _ = tier_of(*models, vram_limit_mb=8)
    a = tier.open(models[0])
    seat_of(a).leave()
    b = tier.open(models[1])
    assert states(a, b) == ["leaving", "away"]
    with pytest.raises(OrderError, match="b cannot come: a is to leave the device and has not dropped"):
        come(b)
    seat_of(a).stay()
    come(b)
    close(tier, a, b)


class Arming:
    """Has a hand in `ResidentBackend.arm`. errors: that the next calls raise. before, after: done then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[Exception] = []
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        arm = ResidentBackend.arm

        def failing(
            backend: ResidentBackend, prepared: Prepared, shape: Shape, uploading: Progress
        ) -> ResidentExecutor:
            self.before()
            if self.errors:
                raise self.errors.pop(0)
            executor = arm(backend, prepared, shape, uploading)
            self.after()
            return executor

        monkeypatch.setattr(ResidentBackend, "arm", failing)


@pytest.fixture
def arming(monkeypatch: pytest.MonkeyPatch) -> Arming:
    return Arming(monkeypatch)


def test_what_does_not_fit_in_pieces_beside_others_may_fit_alone(
    tiny: Path, tier_of: TierOf, arming: Arming
) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b")]
    tier, _ = tier_of(*models, mode="resident", vram_limit_mb=8)
    arming.errors = [DeviceMemoryError("no room in one piece")]
    declined = tier.open(models[0])
    assert (declined.outcome, declined.decline) == ("cpu", "no room in one piece")  # though it was alone
    declined.close()
    a = tier.open(models[0])
    arming.errors = [DeviceMemoryError("no room in one piece")]
    b = tier.open(models[1])
    assert states(a, b) == ["on", "away"]
    assert tier.status().reservations.keys() == {"a"}
    leave(a)
    come(b)
    close(tier, a, b)


def test_one_that_fails_to_come_may_try_again(tiny: Path, tier_of: TierOf, arming: Arming) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b")]
    tier, _ = tier_of(*models, vram_limit_mb=4)
    a, b = (tier.open(each) for each in models)
    leave(a)
    for error in (DeviceMemoryError("no room in one piece"), ValueError("out of order")):
        arming.errors = [error]
        with pytest.raises(type(error), match=str(error)):
            come(b)
        assert states(a, b) == ["away", "away"]
        assert (tier.status().reservations, tier.status().used) == ({}, 0)
    come(b)
    close(tier, a, b)


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_that_ends_while_it_comes_leaves_nothing(
    tiny: Path, tier_of: TierOf, arming: Arming, when: str
) -> None:
    each = whole(tiny, "a", preload=False)
    tier, _ = tier_of(each)
    slot = tier.open(each)
    setattr(arming, when, lambda: tier.release("a"))
    seat_of(slot).restore(slot.marks)
    with pytest.raises(ValueError if when == "before" else OrderError):
        seat_of(slot).rearm()
    assert states(slot) == ["away"]
    close(tier)


def test_weights_are_let_go_of_with_the_seat(tiny: Path, tier_of: TierOf) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b")]
    tier, _ = tier_of(*models, vram_limit_mb=4)
    a, b = (tier.open(each) for each in models)
    leave(a)
    images = [slot.marks.prepared.image for slot in (a, b)]
    assert all(len(image.data) == image.size for image in images)
    close(tier, a, b)
    assert all(len(image.data) == 0 for image in images)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_is_flat_over_many_turns(tiny: Path, tier_of: TierOf) -> None:
    """What comes and goes is 4 MiB each time."""
    models = [whole(tiny, "a"), whole(tiny, "b")]
    tier, _ = tier_of(*models, vram_limit_mb=4)
    there, away = (tier.open(each) for each in models)
    expected, used, host = run(there), tier.status().used, []
    for _ in range(ROUNDS):
        leave(there)
        assert tier.status().used == 0
        come(away)
        there, away = away, there
        np.testing.assert_array_equal(run(there), expected)
        assert tier.status().used == used
        host.append(resident_bytes())
    assert max(host[ROUNDS // 2 :]) - max(host[: ROUNDS // 2]) < 3 * MIB, host
    close(tier, there, away)
    gc.collect()


def test_who_is_away_when_the_device_is_lost_comes_to_the_next(
    tiny: Path, tier_of: TierOf, lossy: Callable[..., None], opened: list[Device]
) -> None:
    models = [whole(tiny, "a"), whole(tiny, "b")]
    tier, _ = tier_of(*models, vram_limit_mb=300)
    a, b = (tier.open(each) for each in models)
    expected = run(a)
    leave(b)
    lossy(a)
    assert states(a, b) == ["lost", "away"]
    assert tier.weight_budget() == 0
    placed = fallback_of(a).rearm(a)
    assert (placed.seat, placed.marks, a.marks, *states(a)) == (a.seat, None, None, "armed")
    a.capture(placed)
    seat_of(a).settle()
    come(b)
    assert len(opened) == 2
    for slot in (a, b):
        np.testing.assert_array_equal(run(slot), expected)
    close(tier, a, b)


def test_nobody_comes_to_a_device_that_was_given_up(
    tiny: Path, tier_of: TierOf, opened: list[Device]
) -> None:
    tier, _ = tier_of(whole(tiny, "a", preload=False))
    slot = tier.open(whole(tiny, "a", preload=False))
    opened[0].abandon(DeviceLostError("the device is gone"))
    with pytest.raises(DeviceLostError, match="the device is gone"):
        come(slot)
    assert (slot.marks.model, *states(slot), tier.status().faults) == ("a", "away", 1)
    close(tier, slot)


def test_a_device_that_is_lost_while_one_comes_is_not_taken_for_a_full_one(
    tiny: Path, tier_of: TierOf, opened: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, _ = tier_of(whole(tiny, "a", preload=False))
    slot = tier.open(whole(tiny, "a", preload=False))
    renew = DeviceSite.renew

    def lost_after(site: DeviceSite, marks: DeviceMarks) -> DeviceMarks:
        renewed = renew(site, marks)
        opened[0].abandon(DeviceLostError("the device is gone"))
        return renewed

    monkeypatch.setattr(DeviceSite, "renew", lost_after)
    with pytest.raises(DeviceLostError, match="the device is gone"):
        come(slot)
    close(tier, slot)


def test_who_has_no_room_on_the_next_device_beside_others_takes_turns_there(
    tiny: Path, tier_of: TierOf, lossy: Callable[..., None], opened: list[Device]
) -> None:
    """A block of 256 MiB is lost, and 4 of the 260 are left."""
    models = [whole(tiny, id) for id in "abc"]
    tier, _ = tier_of(*models, vram_limit_mb=260)
    slots = a, b, c = [tier.open(each) for each in models]
    assert states(*slots) == ["on", "on", "on"]
    leave(c)
    lossy(a, b)
    a.capture(fallback_of(a).rearm(a))
    placed = fallback_of(b).rearm(b)
    assert (states(*slots), b.marks) == (["armed", "away", "away"], placed.marks)
    assert b.marks.model == "b"
    assert fallback_of(b).retry_at() is not None
    b.capture(placed)
    seat_of(a).settle()
    assert tier.status().away.keys() == {"b", "c"}
    for leaving, coming in ((a, b), (b, c), (c, a)):
        leave(leaving)
        come(coming)
    close(tier, *slots)


def test_a_failed_return_leaves_the_marks_for_another(
    tiny: Path, tier_of: TierOf, lossy: Callable[..., None], arming: Arming
) -> None:
    tier, _ = tier_of(whole(tiny, "a"))
    slot = tier.open(whole(tiny, "a"))
    expected = run(slot)
    lossy(slot)
    for error in (DeviceLostError("lost again"), ValueError("out of order")):
        arming.errors = [error]
        with pytest.raises(type(error), match=str(error)):
            fallback_of(slot).rearm(slot)
        assert (slot.marks.model, *states(slot)) == ("a", "away")
        assert fallback_of(slot).retry_at() is not None
        assert tier.status().reservations == {}
    slot.capture(fallback_of(slot).rearm(slot))
    seat_of(slot).settle()
    np.testing.assert_array_equal(run(slot), expected)
    close(tier, slot)


def test_one_that_finds_no_memory_on_the_next_device_takes_its_turn_there(
    tiny: Path, tier_of: TierOf, lossy: Callable[..., None], arming: Arming
) -> None:
    """Though it is alone: what somebody else has may be free later."""
    tier, _ = tier_of(whole(tiny, "a"))
    slot = tier.open(whole(tiny, "a"))
    expected = run(slot)
    lossy(slot)
    arming.errors = [DeviceMemoryError("no room in one piece")]
    slot.capture(fallback_of(slot).rearm(slot))
    assert (slot.marks.model, *states(slot)) == ("a", "away")
    assert tier.status().reservations == {}
    assert fallback_of(slot).retry_at() is not None
    come(slot)
    np.testing.assert_array_equal(run(slot), expected)
    close(tier, slot)


def test_regions_may_be_shorter_on_the_next_device_for_one_that_is_away(
    tiny: Path, tier_of: TierOf, lossy: Callable[..., None]
) -> None:
    """64 regions of 4096 positions take more than is left of 300 MiB once a block of 256 is lost."""
    models = [model(tiny, "a"), model(tiny, "b", regions=64, context=4096, preload=False)]
    tier, _ = tier_of(*models, vram_limit_mb=300)
    a, b = (tier.open(each) for each in models)
    before = seat_of(b).bytes
    assert before > 44 * MIB
    lossy(a)
    a.capture(fallback_of(a).rearm(a))
    seat_of(a).settle()
    assert seat_of(b).bytes < before  # as whoever decides on turns must know
    if seat_of(a).bytes + seat_of(b).bytes > 44 * MIB:
        leave(a)
    come(b)
    assert (b.context, b.executor.page_positions < 4096) == (4096, True)
    close(tier, a, b)


def test_a_want_is_read_back_as_one(tiny: Path, tier_of: TierOf) -> None:
    each = whole(tiny, "a", pin=True)
    tier, settings = tier_of(each)
    assert tier.want(each) == Want.of(each, settings)
    assert tier.want(each).pinned
    assert tier_of(each, mode="off")[0].want(each) == Want()


def test_the_device_is_armed_once_unless_it_is_turned_off(
    tiny: Path, tier_of: TierOf, opened: list[Device]
) -> None:
    off, _ = tier_of(mode="off")
    assert (off.arm(), off.weight_budget(), off.status().reason) == (False, 0, "gpu.mode is off")
    assert not opened
    refused, _ = tier_of(allow_software=False)
    assert not refused.arm()
    assert "counts only when gpu.allow_software is set" in refused.status().reason
    assert not opened
    tier, _ = tier_of(vram_limit_mb=8)
    assert (tier.weight_budget(), tier.status().reason) == (0, "not opened")
    assert tier.arm()
    assert tier.arm()
    assert len(opened) == 1
    assert tier.status().reason == ""


def test_the_host_keeps_no_promise_to_one_that_was_declined_and_ended(tiny: Path, tier_of: TierOf) -> None:
    tier, _ = tier_of(mode="off")
    slot = tier.open(whole(tiny, "a"))
    promised = tier._host._promised._promised
    assert promised["a"] > 0
    slot.close()
    tier.release("a")
    assert promised["a"] == 0
