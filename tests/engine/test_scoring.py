"""Log-probabilities of prompts: the same bits, whatever a prompt was fed with, after, or in which parts."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from engine.device_slot import device_slot
from engine.drive import begin, complete, enqueue, run, serve
from engine.harness import NULL, Gate, model, running
from engine.null_slot import null_slot, request
from engine.places import Slots
from engine.scored import expected, scores, scoring
from tierd.backends.protocol import SCORED_ROWS
from tierd.core import Batch, FinishedEvent, FinishReason, TextEvent, TokenMask, Usage
from tierd.errors import DeviceLostError
from tierd.settings import ModelSettings

PROMPT = bytes(range(40, 80))


@pytest.mark.parametrize("chunk_rows", [1, 7, 64])
def test_scores_are_the_same_alone_and_among_others(place: Slots, chunk_rows: int) -> None:
    slot = place(chunk_rows=chunk_rows)
    prompts = {f"s{n}": PROMPT[n : n + 11 * n + 1] for n in range(4)}
    asked = [scoring(name, prompt, n, top=n) for n, (name, prompt) in enumerate(prompts.items())]
    others = [request(f"t{n}", b"text %d" % n, 9 + n) for n in range(3)]
    sequences = enqueue(slot, others[0], asked[3], others[1], *asked[:3], others[2])
    events = list(serve(slot))
    found = scores(events)
    for n, (name, prompt) in enumerate(prompts.items()):
        assert found[name] == expected(prompt, n), name
    assert not any(found[other.id] for other in others)
    assert [sequence.generated for sequence in sequences] == [9, 3, 10, 0, 1, 2, 11]
    assert slot.home.room.used == 0


def test_tokens_are_those_of_a_request_that_asks_for_no_scores(place: Slots) -> None:
    (scored,) = run(place(), scoring("s", PROMPT, 9))
    (plain,) = run(place(), request("t", PROMPT, 9))
    assert scored.tokens == plain.tokens


def test_scores_are_the_same_cold_and_warm(place: Slots) -> None:
    """K/V of others is not used, be they done or under way, as only what is fed gives logits."""
    slot = place()
    run(slot, request("before", PROMPT, 4))
    kept = slot.home.room.cached
    (beside, scored) = enqueue(slot, request("beside", [*PROMPT, 5], 4), scoring("s", [*PROMPT, 5], 3))
    assert scores(serve(slot))["s"] == expected([*PROMPT, 5])
    assert (beside.cached, scored.cached) == (len(PROMPT), 0)
    assert slot.home.room.cached >= kept


def test_a_request_for_no_token_ends_with_its_prompt(place: Slots) -> None:
    slot = place()
    (sequence,) = enqueue(slot, request("t", PROMPT, 0))
    ((_, end),) = list(serve(slot))
    assert end == FinishedEvent(FinishReason.LENGTH, Usage(len(PROMPT), 0))
    assert sequence.tokens == list(PROMPT)
    (after,) = run(slot, request("after", PROMPT, 2))
    assert after.cached == len(PROMPT) - 1


@pytest.mark.parametrize("streams", [1, 3])
def test_a_step_has_few_rows_of_logits(streams: int) -> None:
    """As many as the executor has room for, and never so many of prompts that others wait for long."""
    settings = ModelSettings(id="null", path=NULL.path, streams=8)
    for most in (3, 5, 200):
        slot = null_slot(settings, chunk_rows=128, pages=256)
        slot.executor.logit_rows = most
        enqueue(slot, *(scoring(f"s{n}", bytes(range(100 + n)), 1) for n in range(streams)))
        largest = 0
        while step := begin(slot):
            largest = max(largest, step.batch.logit_rows)
            complete(slot)
        assert largest == min(most, SCORED_ROWS + streams)


def test_the_engine_tells_scores_as_they_come() -> None:
    with running(NULL, pages=64) as harness:
        harness.engine.submit(scoring("s", bytes(range(80)), 2))
        end = harness.mail.terminal("s")
        assert (end.reason, end.usage) == (FinishReason.LENGTH, Usage(80, 2))
        assert end.usage.prompt_s > 0
        events = [event for event in harness.mail.events("s") if isinstance(event, TextEvent)]
        assert [entry for event in events for entry in event.prompt] == expected(bytes(range(80)))
        assert len([event for event in events if event.prompt]) > 2
        sample = harness.metrics.registry.get_sample_value
        assert sample("tierd_generated_tokens_total", {"model": "null"}) == 2
        assert sample("tierd_rows_discarded_total", {"model": "null"}) == 0


def test_a_request_is_cancelled_in_the_midst_of_its_prompt() -> None:
    gate = Gate()
    with running(NULL, before_step=gate) as harness:
        harness.engine.submit(scoring("s", PROMPT))
        gate.wait()
        harness.engine.cancel("s")
        assert harness.mail.terminal("s").reason is FinishReason.CANCELLED
        gate.let(5)
        harness.snapshot_when(lambda _: harness.rests())
        assert len(harness.mail.events("s")) == 1


def test_what_is_fed_again_is_not_told_twice() -> None:
    """The device is lost between two chunks of a prompt, which then goes on at the CPU."""
    steps = []

    def lose(batch: Batch) -> None:
        steps.append(batch)
        if len(steps) == 3:
            raise DeviceLostError("lost")

    slot = partial(device_slot, regions=1, before_step=lose, chunk_rows=8)
    with running(model("null", streams=2), open_slot=slot) as harness:
        harness.engine.submit(scoring("s", PROMPT, 2))
        assert isinstance(harness.mail.terminal("s"), FinishedEvent)
        events = [event for event in harness.mail.events("s") if isinstance(event, TextEvent)]
        assert [entry for event in events for entry in event.prompt] == expected(PROMPT)
        harness.snapshot_when(lambda _: harness.rests())


def test_a_scored_prompt_may_fill_the_context() -> None:
    with running(NULL, context=32, pages=8) as harness:
        harness.engine.submit(scoring("s", PROMPT[:32]))
        assert harness.mail.terminal("s").usage == Usage(32, 0)


def test_a_mask_of_ids_that_come_twice() -> None:
    mask = TokenMask.of((3, 40, 3, 31), 70)
    assert [id for id in range(70) if id in mask] == [3, 31, 40]
    assert mask.words.size == 3


def test_a_grammar_does_not_look_at_the_prompt(place: Slots) -> None:
    mask = TokenMask.of(range(65, 70), 258)
    asked = scoring("s", PROMPT, 5)
    asked = replace(asked, sampling=replace(asked.sampling, allowed=mask))
    slot = place()
    (sequence,) = enqueue(slot, asked)
    assert scores(serve(slot))["s"] == expected(PROMPT)
    assert all(token in mask for token in sequence.tokens[len(PROMPT) :])


@pytest.mark.parametrize("seed", range(40))
def test_a_step_wants_no_more_logits_than_there_is_room_for(seed: int) -> None:
    """One row of each stream, and those that are spare, whatever ends in the step."""
    dice = random.Random(seed)
    slot = null_slot(model("null", streams=6), chunk_rows=32)
    slot.executor.logit_rows = room = 6 + dice.randrange(4)
    enqueue(
        slot,
        *(
            scoring(f"s{n}", PROMPT[: dice.randint(2, 9)], dice.randint(0, 3))
            if dice.random() < 0.7
            else request(f"t{n}", PROMPT[: dice.randint(2, 9)], dice.randint(1, 6))
            for n in range(12)
        ),
    )
    most = 0
    while (step := begin(slot)) is not None:
        most = max(most, step.batch.logit_rows)
        complete(slot)
    assert 1 < most <= room
