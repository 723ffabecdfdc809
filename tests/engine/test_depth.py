"""Executors that are given steps ahead: every stream reads as it does without, and nothing is lost.

The null device of depth 2 or more draws greedy tokens itself and leaves random and penalised ones to the
sampler; then what it was given ahead is void.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from engine.drive import Faults, begin, complete, ended, enqueue, greedy, rows, run, serve
from engine.harness import NULL, model
from engine.null_slot import null_slot, request
from tierd.core import (
    FinishedEvent,
    FinishReason,
    Request,
    SamplingParams,
    Sequence,
    TextEvent,
    TokenMask,
)
from tierd.engine.flights import Flight, flights
from tierd.engine.pace import Allowance
from tierd.engine.scheduler import choose_rows, leave
from tierd.slot import Slot

LETTERS = tuple(map(chr, range(0x20, 0x40)))  # as stop strings: one token in eight ends the stream
EVEN = TokenMask.of(range(0, 258, 2), 258)
SAMPLINGS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.7, seed=9, top_k=20, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=0, repeat_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1),
    SamplingParams(temperature=0, logit_bias=((65, 0.5), (66, -1.0))),
    SamplingParams(temperature=1.2, seed=3, frequency_penalty=0.5, penalty_window=6),
    SamplingParams(temperature=0, allowed=EVEN),
    SamplingParams(temperature=0.9, seed=8, allowed=EVEN, presence_penalty=0.3),
)
ENDS: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True},
    {"ignore_eos": False, "sampling": SamplingParams(temperature=0, logit_bias=((257, 0.1),))},
    {"ignore_eos": True, "stop": LETTERS},
    {"ignore_eos": True, "stop": ("ab", *LETTERS[:4])},
)


def requests() -> list[Request]:
    """All ways to pick with all ways to end, behind prompts of many lengths that often begin alike."""
    asked = []
    for i, (sampling, end) in enumerate(itertools.product(SAMPLINGS, ENDS * 2)):
        prompt = [*b"abcd" * (i % 3), *range(i, i + 1 + 7 * i % 15)]
        r = request(f"r{i}", prompt, 1 + 5 * i % 23)
        asked.append(replace(r, top_logprobs=i % 4 or None, **{"sampling": sampling, **end}))
    return asked


def told(slot: Slot, asked: list[Request]) -> dict[str, tuple[object, ...]]:
    """Serve requests; return each one's tokens, texts with log-probabilities, and end."""
    sequences = enqueue(slot, *asked)
    texts: dict[str, list[TextEvent]] = defaultdict(list)
    ends: dict[str, tuple[FinishReason, int]] = {}
    for sequence, event in serve(slot):
        if isinstance(event, TextEvent):
            texts[sequence.request.id].append(event)
        else:
            assert isinstance(event, FinishedEvent)
            assert sequence.request.id not in ends
            ends[sequence.request.id] = (event.reason, event.usage.completion_tokens)
    assert (slot.home.pool.used, slot.home.pool.reserved) == (0, 0)
    return {s.request.id: (s.tokens, texts[s.request.id], ends[s.request.id]) for s in sequences}


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("chunk_rows", [1, 4, 64])
@pytest.mark.parametrize("pages", [14, 400])
def test_every_stream_is_as_with_one_step_at_a_time(depth: int, chunk_rows: int, pages: int) -> None:
    asked = requests()
    plain = told(null_slot(model("null", streams=6), pages=pages, chunk_rows=chunk_rows), asked)
    slot = null_slot(model("null", streams=6), pages=pages, chunk_rows=chunk_rows, depth=depth)
    assert told(slot, asked) == plain
    reasons = {end[0] for _, _, end in plain.values()}  # type: ignore[index]
    assert reasons == {FinishReason.LENGTH, FinishReason.STOP}


def test_each_step_is_given_before_the_last_is_done_and_one_row_is_lost_for_each_stop() -> None:
    """Steady greedy decoding, four streams; two come to an end of text of their own."""
    slot = null_slot(NULL, depth=2)
    asked = [request(f"r{i}", bytes([i] * 3), 30) for i in range(4)]
    sequences = enqueue(slot, *(replace(r, stop=LETTERS) if i < 2 else r for i, r in enumerate(asked)))
    fed = steps = 0
    while True:
        while slot.has_room and (step := begin(slot)):
            fed += step.batch.rows
            steps += 1
        if not slot.steps:
            break
        if any(sequence.generated + 2 < sequence.request.max_tokens for sequence in slot.running):
            assert len(slot.steps) == 2
        complete(slot)
    stopped = [s for s in sequences if s.generated < 30]
    assert len(stopped) == 2
    assert fed == sum(len(s.tokens) - 1 for s in sequences) + len(stopped)
    assert steps == 30


def test_nothing_is_fed_ahead_that_cannot_be() -> None:
    slot = null_slot(NULL, depth=2)
    last, penalised, free, paused = enqueue(
        slot,
        *(request(name, b"abc", 5 if name != "last" else 1) for name in ("last", "pen", "free", "paused")),
    )
    penalised.request = replace(
        penalised.request, sampling=SamplingParams(temperature=0, presence_penalty=0.1)
    )
    assert rows(begin(slot)) == {"last": 3, "pen": 3, "free": 3, "paused": 3}
    assert flights(slot) == {
        last: Flight(3, 1, 0), penalised: Flight(3, 1, 1), free: Flight(3, 1, 2), paused: Flight(3, 1, 3)
    }  # fmt: skip
    paused.paused = True
    assert choose_rows(flights(slot), Allowance(16), 256) == [(free, 1)]
    step = begin(slot)
    assert step is not None
    assert [(chunk.tokens, chunk.start) for chunk in step.batch.chunks] == [((-3,), 3)]
    assert not slot.has_room


def test_what_is_fed_ahead_was_drawn_from_what_is_allowed() -> None:
    """A mask that stays the same does not hang on the text, so a stream does not wait for it."""
    slot = null_slot(NULL, depth=2)
    sampling = SamplingParams(temperature=0, allowed=EVEN)
    (sequence,) = enqueue(slot, replace(request("a", b"abc", 20), sampling=sampling))
    begin(slot)
    step = begin(slot)
    assert step is not None
    assert [chunk.tokens for chunk in step.batch.chunks] == [(-1,)]
    while slot.steps:
        complete(slot)
        assert sequence.foreseen == sequence.tokens[-1]
        begin(slot)
    assert len(sequence.tokens) == 23
    assert all(token % 2 == 0 for token in sequence.tokens[3:])
    assert sequence.tokens != greedy(b"abc", 20)


def test_chunks_of_a_prompt_follow_each_other_in_flight() -> None:
    slot = null_slot(NULL, chunk_rows=4, depth=3)
    (sequence,) = enqueue(slot, request("a", b"0123456789", 5))
    steps = [begin(slot) for _ in range(3)]
    assert [rows(step) for step in steps] == [{"a": 4}, {"a": 4}, {"a": 2}]
    assert [step.batch.logit_rows for step in steps if step] == [0, 0, 1]
    complete(slot)
    assert rows(begin(slot)) == {"a": 1}
    run(slot)
    assert sequence.tokens == greedy(b"0123456789", 5)


def test_a_stream_that_is_paused_keeps_what_is_in_flight() -> None:
    slot = null_slot(NULL, depth=2)
    paused, other = enqueue(slot, request("paused", b"ab", 12), request("other", b"cd", 9))
    begin(slot)
    begin(slot)
    paused.paused = True
    complete(slot)
    assert rows(begin(slot)) == {"other": 1}
    complete(slot)
    assert (paused.generated, paused.fed) == (2, 3)
    for _ in serve(slot):
        pass
    assert (paused.generated, other.generated) == (2, 9)
    paused.paused = False
    run(slot)
    assert paused.tokens == greedy(b"ab", 12)
    assert other.tokens == greedy(b"cd", 9)


def test_a_token_of_an_older_step_cannot_be_referred_to() -> None:
    slot = null_slot(NULL, depth=3)
    paused, other = enqueue(slot, request("paused", b"ab", 6), request("other", b"cd", 6))
    begin(slot)
    paused.paused = True
    assert rows(begin(slot)) == {"other": 1}
    paused.paused = False
    assert flights(slot)[paused] == Flight(2, 1, None)
    assert rows(begin(slot)) == {"other": 1}
    run(slot)
    assert paused.tokens == greedy(b"ab", 6)
    assert other.tokens == greedy(b"cd", 6)


def test_what_a_stream_leaves_is_found_at_once() -> None:
    """The next turn of a conversation comes while the row behind its end is still in flight."""
    slot = null_slot(NULL, depth=2)
    (first,) = enqueue(slot, request("first", b"abcdef", 5, stop=tuple(map(chr, range(256)))))
    begin(slot)
    begin(slot)
    complete(slot)
    assert slot.steps
    assert first not in slot.running
    (next_turn,) = enqueue(slot, request("next", bytes(first.tokens[:6]) + b"xyz", 3))
    begin(slot)
    assert next_turn.cached == 6
    run(slot)
    assert next_turn.tokens == greedy(bytes(next_turn.request.prompt), 3)


@pytest.mark.parametrize("prompt", [b"ab", b"0123456789"], ids=["generating", "prefilling"])
def test_nobody_takes_the_pages_of_who_leaves_until_both_steps_are_done(prompt: bytes) -> None:
    slot = null_slot(NULL, chunk_rows=4, depth=2)
    leaves, stays = enqueue(slot, request("leaves", prompt, 12), request("stays", b"xy", 9))
    begin(slot)
    begin(slot)
    leave(slot, leaves)
    pages = list(leaves.pages)
    complete(slot)
    # A row that was fed unseen adds nothing: then others may look at what there is, and nobody may take it.
    assert (leaves.held if prompt == b"ab" else leaves.pages) == pages
    assert all(slot.home.pool.references(page) for page in pages)
    begin(slot)
    complete(slot)
    assert not leaves.pages
    assert not leaves.held
    # Of the token that was fed unseen nobody knows what it was.
    fed = 2 if prompt == b"ab" else 8
    assert slot.home.prefixes.match([*prompt, 0]).positions == fed == leaves.fed
    (again,) = run(slot, request("again", prompt, 12))
    assert again.tokens == greedy(prompt, 12)
    assert again.cached == min(fed, len(prompt) - 1)
    assert stays.tokens == greedy(b"xy", 9)


def test_a_prompt_is_taken_in_on_copied_rows_while_a_step_is_in_flight() -> None:
    slot = null_slot(NULL, depth=2)
    run(slot, request("first", b"abcdef", 1))
    (runs,) = enqueue(slot, request("runs", b"abcdex", 9))
    begin(slot)
    (joins,) = enqueue(slot, request("joins", b"abcdey", 9))
    begin(slot)
    assert (runs.cached, joins.cached) == (5, 5)
    assert runs.pages[0] == joins.pages[0]
    assert runs.pages[1] != joins.pages[1]
    run(slot)
    assert runs.tokens == greedy(b"abcdex", 9)
    assert joins.tokens == greedy(b"abcdey", 9)


def random_and_greedy(slot: Slot) -> tuple[Sequence, Sequence]:
    """Bring a random stream, whose row in the step to be done next is void, and a greedy one so far."""
    lots, sure = enqueue(
        slot, request("lots", b"abc", 9, temperature=1.0, seed=3), request("sure", b"xyz", 9)
    )
    begin(slot)
    begin(slot)
    complete(slot)
    assert slot.steps[0].void == {lots}
    return lots, sure


def test_a_void_row_is_fed_again_in_its_place() -> None:
    slot = null_slot(NULL, depth=2)
    lots, sure = random_and_greedy(slot)
    step = begin(slot)
    assert step is not None
    assert [(chunk.tokens[0], chunk.start) for chunk in step.batch.chunks] == [(lots.tokens[3], 3), (-2, 4)]
    assert complete(slot)[0][0] is sure
    assert (lots.generated, sure.generated) == (1, 2)


def test_a_failed_step_ends_those_whose_rows_it_held_and_no_others() -> None:
    """Behind it lies a step with rows of streams that end, of one that goes on, and of one that is new."""
    faults = Faults()
    slot = null_slot(NULL, depth=2, before_step=faults)
    lots, sure = random_and_greedy(slot)
    (new,) = enqueue(slot, request("new", b"new", 9))
    assert rows(begin(slot)) == {"lots": 1, "sure": 1, "new": 3}
    faults.next = True
    assert ended(complete(slot)) == [sure]
    assert sure.held
    begin(slot)
    complete(slot)
    assert not sure.held
    assert slot.home.prefixes.match([*sure.tokens, 0]).positions == 3
    run(slot)
    assert new.tokens == greedy(b"new", 9)
    (alone,) = run(null_slot(NULL), request("lots", b"abc", 9, temperature=1.0, seed=3))
    assert lots.tokens == alone.tokens
    assert (slot.home.pool.used, slot.home.pool.reserved) == (0, 0)


def test_both_steps_in_flight_may_fail() -> None:
    faults = Faults()
    slot = null_slot(NULL, chunk_rows=4, depth=2, before_step=faults)
    enqueue(slot, request("a", b"ab", 9), request("b", b"0123456789", 9))
    begin(slot)
    begin(slot)
    lost = []
    for _ in range(2):
        faults.next = True
        lost += [sequence.request.id for sequence in ended(complete(slot))]
    assert lost == ["a", "b"]
    assert slot.home.pool.free == slot.home.pool.total


@pytest.mark.parametrize("end", ["length", "stop string", "end token"])
def test_an_end_in_flight_is_an_end(end: str) -> None:
    """The last token allowed is not fed, and what was fed behind another end is of no account."""
    slot = null_slot(NULL, depth=2)
    texts = (greedy(prompt, 5) for prompt in itertools.product(range(256), repeat=2))
    # Four characters, then the end token.
    tokens = next(t for t in texts if t[6] == 257 and max(t[2:6]) < 128 and t[5] not in t[2:5])
    asked = request("a", tokens[:2], 5 if end == "length" else 9, ignore_eos=end != "end token")
    if end == "stop string":
        tokens = tokens[:6]
        asked = replace(asked, stop=(chr(tokens[-1]),))
    (sequence,) = run(slot, asked)
    assert sequence.tokens == tokens
    assert sequence.fed == len(tokens) - 1
    (again,) = run(slot, request("b", [*tokens, 1, 2], 6))
    assert again.cached == len(tokens) - 1
    assert again.tokens == greedy([*tokens, 1, 2], 6)
