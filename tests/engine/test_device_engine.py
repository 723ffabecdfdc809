"""A model on a device, served by a running engine: conversations, streams that pass to the CPU, faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from engine.device_drive import MODEL, check, ended, passes, text
from engine.device_slot import NullFallback, device_slot
from engine.drive import greedy
from engine.harness import Gate, Harness, model, running
from engine.null_slot import null_slot, request
from tierd.core import (
    Batch,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    TextEvent,
    TokenLogprobs,
)
from tierd.engine import Snapshot
from tierd.errors import DeviceLostError, DeviceMemoryError, DeviceTimeoutError, ModelError
from tierd.slot import Slot

FAULTS = [DeviceLostError("lost"), DeviceTimeoutError("hung"), DeviceMemoryError("full")]


def slot_of(harness: Harness) -> Slot:
    return harness.slots[MODEL]


def fallback(harness: Harness) -> NullFallback:
    found = slot_of(harness).fallback
    assert isinstance(found, NullFallback)
    return found


def rests(harness: Harness) -> Callable[[Snapshot], bool]:
    return lambda snapshot: all(
        region.state in ("free", "parked") for region in snapshot.models[MODEL].regions
    )


def test_streams_served_from_the_device_leave_no_passes() -> None:
    with running(model(MODEL, streams=2), open_slot=device_slot) as harness:
        for n in range(4):
            check(harness, f"r{n}", b"conversation %d" % n)
        assert passes(harness) == {}
        assert harness.engine.snapshot.models[MODEL].passes == {}


@pytest.mark.parametrize("bank", [1 << 20, 4000, 0])
def test_two_hundred_turns_of_more_conversations_than_regions(bank: int) -> None:
    """Every text is right; tokens are fed again only as far as there was no room for their rows."""
    chance = random.Random(6)
    with running(
        model(MODEL, streams=3), open_slot=partial(device_slot, regions=3, positions=256, bank=bank)
    ) as harness:
        talks = [b"talk %d: " % n for n in range(9)]
        known: list[list[int]] = []
        refed = 0
        for turn in range(200):
            n = chance.randrange(len(talks))
            prompt = talks[n] + b"q%d " % turn if len(talks[n]) < 200 else b"talk %d: anew %d " % (n, turn)
            harness.engine.submit(request(f"t{turn}", prompt, 6))
            end = harness.mail.terminal(f"t{turn}")
            assert isinstance(end, FinishedEvent)
            ids = greedy(prompt, 6)
            answer = bytes(t for t in ids[len(prompt) :] if t < 256)
            assert harness.mail.text(f"t{turn}") == answer.decode("utf-8", "replace")
            seen = max((shared(ids[: len(prompt) - 1], old) for old in known), default=0)
            refed += seen - end.usage.cached_tokens
            known.append(ids[:-1])
            talks[n] = prompt + answer
            harness.snapshot_when(rests(harness))
        assert passes(harness) == {}
        metric = harness.metrics.registry.get_sample_value
        assert metric("tierd_kv_reprefilled_tokens_total", {"model": MODEL}) == refed
        assert (refed == 0) is (bank > 10000)


def shared(a: list[int], b: list[int]) -> int:
    """Return how many leading tokens are the same."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_stream_without_a_region_runs_on_the_cpu_and_is_counted() -> None:
    gate = Gate()
    with running(
        model(MODEL, streams=3), open_slot=partial(device_slot, regions=2, before_step=gate)
    ) as harness:
        for name in "abc":
            harness.engine.submit(request(name, b"prompt " + name.encode(), 8))
        harness.mail.terminal("c")
        snapshot = harness.engine.snapshot.models[MODEL]
        assert {s.request: s.region for s in snapshot.sessions} == {"a": 0, "b": 1}
        gate.let(99)
        for name in "abc":
            harness.mail.terminal(name)
            assert harness.mail.text(name) == text(b"prompt " + name.encode(), 8)
        assert passes(harness) == {"unhomed": 9 - 1}


@pytest.mark.parametrize("bank", [1 << 20, 0])
def test_a_stream_on_the_cpu_goes_back_to_a_region_that_becomes_free(bank: int) -> None:
    """With its rows; it stays where it is if the bank has no room for them."""
    gate, cpu = Gate(), Gate()
    slot = partial(device_slot, regions=1, positions=128, bank=bank, before_step=gate, cpu_step=cpu)
    with running(model(MODEL, streams=2), open_slot=slot) as harness:
        harness.engine.submit(request("a", b"prompt a", 4))
        gate.wait()
        harness.engine.submit(request("b", b"prompt b", 90))
        cpu.wait()
        cpu.let(10)
        gate.let(4)
        harness.mail.terminal("a")
        cpu.let(1000)
        gate.let(1000)
        ended(harness, "b", b"prompt b", 90)
        counted = passes(harness)
        assert set(counted) <= {"unhomed", "paged"}
        assert (sum(counted.values()) < 60) is (bank > 0)
        assert refed(harness) == 0
        harness.snapshot_when(rests(harness))


@pytest.mark.parametrize("bank", [1 << 20, 0])
def test_conversations_that_begin_alike_take_turns_in_one_region(bank: int) -> None:
    """What is not shared goes to the bank, or is counted as fed again where that has no room."""
    with running(
        model(MODEL, streams=1), open_slot=partial(device_slot, regions=1, positions=128, bank=bank)
    ) as harness:
        talks = {name: b"the same system prompt; " + name.encode() for name in "ab"}
        wanted = {"a": 0, "b": 0}
        for turn in range(4):
            for name in "ab":
                harness.engine.submit(request(f"{name}{turn}", talks[name], 4))
                end = ended(harness, f"{name}{turn}", talks[name], 4)
                ids = greedy(talks[name], 4)
                if bank:
                    assert end.usage.cached_tokens >= wanted[name]
                talks[name] = bytes(t % 256 for t in ids) + b" and then?"
                wanted[name] = len(ids) - 1 if all(t < 256 for t in ids) else 0
        assert (refed(harness) > 0) is (bank == 0)
        assert passes(harness) == {}


def refed(harness: Harness) -> float:
    """Return how many tokens were fed again because their rows could be kept nowhere."""
    value = harness.metrics.registry.get_sample_value("tierd_kv_reprefilled_tokens_total", {"model": MODEL})
    return value or 0.0


def test_a_stream_that_outgrows_its_region_goes_on_on_the_cpu() -> None:
    with running(
        model(MODEL, streams=2), open_slot=partial(device_slot, positions=32, context=200)
    ) as harness:
        check(harness, "a", b"0123456789", 100)
        check(harness, "b", b"abcdefghij" * 5, 10)
        assert passes(harness) == {"cap": (110 - 32 - 1) + 4 + 9}
        assert slot_of(harness).understudy is not None
        check(harness, "c", b"short", 4)


def test_draws_penalties_and_stops_are_the_same_across_a_hand_over() -> None:
    """A stream draws as it would have drawn at one place, and its text ends where it would have ended."""
    asked = request("a", b"0123456789", 60, temperature=0.9, seed=7)
    asked = replace(
        asked,
        sampling=replace(asked.sampling, presence_penalty=0.4, repeat_penalty=1.2, penalty_window=20),
        top_logprobs=2,
    )
    with running(model(MODEL, streams=2), open_slot=partial(null_slot, context=200)) as harness:
        whole = drawn(harness, asked)
        stop = whole[0][18:28]
        stopped = drawn(harness, replace(asked, id="b", stop=(stop,)))
    assert stop
    assert stopped[0] == whole[0][: whole[0].index(stop)]
    slot = partial(device_slot, positions=32, context=200)
    with running(model(MODEL, streams=2), open_slot=slot) as harness:
        assert drawn(harness, asked) == whole
        assert drawn(harness, replace(asked, id="b", stop=(stop,))) == stopped
        assert "cap" in passes(harness)


def drawn(harness: Harness, asked: Request) -> tuple[str, list[TokenLogprobs]]:
    """Return the text of a request and what is told of its tokens."""
    harness.engine.submit(asked)
    assert isinstance(harness.mail.terminal(asked.id), FinishedEvent)
    told = [
        each
        for event in harness.mail.events(asked.id)
        if isinstance(event, TextEvent)
        for each in event.logprobs
    ]
    return harness.mail.text(asked.id), told


def test_a_stream_that_outgrows_its_region_ends_there_where_the_cpu_cannot_have_it() -> None:
    with running(
        model(MODEL, streams=2), open_slot=partial(device_slot, positions=32, context=200)
    ) as harness:
        fallback(harness).declines.append(ModelError("no memory"))
        harness.engine.submit(request("a", b"0123456789", 100))
        end = harness.mail.terminal("a")
        assert isinstance(end, FinishedEvent)
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.LENGTH, 32 - 10 + 1)
        assert harness.mail.text("a") == text(b"0123456789", 23)


class Fault:
    """Lets the step of a number fail, once."""

    def __init__(self, step: int, error: Exception) -> None:
        self.step, self.error = step, error

    def __call__(self, batch: Batch) -> None:
        self.step -= 1
        if self.step == 0:
            raise self.error


@pytest.mark.parametrize("error", FAULTS, ids=["lost", "hung", "full"])
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_streams_go_on_when_the_device_is_lost(error: Exception, step: int) -> None:
    """They are fed again on the CPU, token for token as they would have been, and the device comes back."""
    with running(
        model(MODEL, streams=2), open_slot=partial(device_slot, before_step=Fault(step, error))
    ) as harness:
        for name in "ab":
            harness.engine.submit(request(name, b"prompt " + name.encode(), 12))
        for name in "ab":
            end = harness.mail.terminal(name)
            assert isinstance(end, FinishedEvent)
            assert end.usage.completion_tokens == 12
            assert harness.mail.text(name) == text(b"prompt " + name.encode(), 12)
        assert "device_lost" in passes(harness) or "paged" in passes(harness)
        harness.snapshot_when(lambda s: not s.models[MODEL].decline)
        before = passes(harness)
        check(harness, "again", b"prompt again", 5)
        assert passes(harness) == before
        harness.snapshot_when(rests(harness))


def test_a_device_that_cannot_continue_prompts_gets_them_whole_and_no_longer_ones() -> None:
    slot = partial(device_slot, regions=2, prefill_continues=False, rewinds=False)
    with running(model(MODEL, streams=3), open_slot=slot) as harness:
        prompts = [b"prompt %d" % n for n in range(3)] + [b"longer than one step of sixteen"]
        for n, prompt in enumerate(prompts):
            harness.engine.submit(request(f"r{n}", prompt, 4))
        for n, prompt in enumerate(prompts):
            ended(harness, f"r{n}", prompt, 4)
        counted = passes(harness)
        assert counted.pop("continuation") == 2 + 3
        assert set(counted) <= {"unhomed", "paged"}


def test_all_models_of_a_device_lose_it_at_once() -> None:
    fault = Fault(3, DeviceLostError("lost"))
    with running(
        model(MODEL, streams=2), model("idle"), open_slot=partial(device_slot, before_step=fault)
    ) as harness:
        for slot in harness.slots.values():
            assert isinstance(slot.fallback, NullFallback)
            slot.fallback.tries = 0
        check(harness, "a", b"prompt a", 12)
        models = harness.engine.snapshot.models
        assert {id: (state.outcome, state.decline) for id, state in models.items()} == {
            MODEL: ("cpu", "lost"),
            "idle": ("cpu", "lost"),
        }


def test_a_device_that_does_not_come_back_leaves_the_model_on_the_cpu() -> None:
    with running(
        model(MODEL, streams=2), open_slot=partial(device_slot, before_step=Fault(3, DeviceLostError("lost")))
    ) as harness:
        fallback(harness).broken.extend([DeviceLostError("still lost")] * 3)
        check(harness, "a", b"prompt a", 12)
        harness.snapshot_when(lambda s: fallback(harness).tries == 0)
        check(harness, "b", b"prompt b", 12)
        assert set(passes(harness)) == {"device_lost"}
        assert harness.engine.snapshot.models[MODEL].decline == "lost"


def test_a_lost_device_is_waited_for_where_the_cpu_cannot_have_the_streams() -> None:
    with running(
        model(MODEL, streams=2), open_slot=partial(device_slot, before_step=Fault(3, DeviceLostError("lost")))
    ) as harness:
        fallback(harness).declines.append(ModelError("no memory"))
        fallback(harness).broken.append(DeviceLostError("still lost"))
        check(harness, "a", b"prompt a", 12)
        assert passes(harness) == {}


def test_streams_end_where_there_is_neither_device_nor_cpu() -> None:
    with running(
        model(MODEL, streams=2), open_slot=partial(device_slot, before_step=Fault(3, DeviceLostError("lost")))
    ) as harness:
        fallback(harness).declines.append(ModelError("no memory"))
        fallback(harness).broken.extend([DeviceLostError("still lost")] * 3)
        harness.engine.submit(request("a", b"prompt a", 12))
        assert isinstance(harness.mail.terminal("a"), FailedEvent)


def test_choices_of_one_prompt_are_prefilled_once() -> None:
    prompt = b"a prompt that is long enough to be worth waiting for, as it were"
    with running(
        model(MODEL, streams=4), open_slot=partial(device_slot, regions=4, positions=128)
    ) as harness:
        for name in "abcd":
            harness.engine.submit(request(name, prompt, 4))
        cached = []
        for name in "abcd":
            end = harness.mail.terminal(name)
            assert isinstance(end, FinishedEvent)
            assert harness.mail.text(name) == text(prompt, 4)
            cached.append(end.usage.cached_tokens)
        assert cached == [0] + [len(prompt) - 1] * 3
