from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.null_slot import ByteTokenizer, request
from tierd.backends import library
from tierd.backends.protocol import Logits, LogitsResult
from tierd.chat.stops import text_stream
from tierd.core import Batch, Chunk, SamplingParams, Sequence, TokenLogprobs
from tierd.engine import sampler
from tierd.engine.sampler import measure, pick_token
from tierd.slot import Step

LOGITS = np.array([0.0, 3.0, 2.5, 3.0, -1.0, 2.0], dtype=np.float32)


def pick(step: Step, logits: Logits) -> list[int | None]:
    """Pick for everybody, where the executor draws nothing."""
    return sampler.pick(step, LogitsResult(logits), [True] * len(step.sequences))


def score(step: Step, logits: Logits, tokens: list[int | None]) -> list[TokenLogprobs | None]:
    return sampler.score(step, LogitsResult(logits), tokens)


def test_temperature_zero_takes_the_lowest_id_of_the_best() -> None:
    assert pick_token(LOGITS, SamplingParams(temperature=0, seed=5), 9) == 1


@pytest.mark.parametrize(
    ("params", "possible"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 1e-6}, {1}),
        ({"min_p": 1.0}, {1, 3}),
        ({"min_p": 0.5}, {1, 2, 3}),
        ({"temperature": 0.001}, {1, 3}),
        ({"temperature": 50.0}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_every_setting_narrows_the_choice(params: dict[str, float], possible: set[int]) -> None:
    chosen = {pick_token(LOGITS, SamplingParams(**params), position) for position in range(400)}  # type: ignore[arg-type]
    assert chosen == possible


def test_draws_are_distributed_as_the_logits_say() -> None:
    draws = np.array([pick_token(LOGITS, SamplingParams(seed=3), position) for position in range(20_000)])
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert np.bincount(draws, minlength=6) / len(draws) == pytest.approx(expected, abs=0.015)


@given(seed=st.integers(-(2**70), 2**70), position=st.integers(0, 2**40))
def test_a_draw_is_a_function_of_seed_and_position(seed: int, position: int) -> None:
    params = SamplingParams(seed=seed)
    token = pick_token(LOGITS, params, position)
    assert token == pick_token(LOGITS, params, position)
    assert token == pick_token(LOGITS, SamplingParams(seed=seed + 2**64), position)


def test_seeds_and_positions_differ() -> None:
    flat = np.zeros(1000, dtype=np.float32)
    tokens = {pick_token(flat, SamplingParams(seed=s), p) for s in range(10) for p in range(10)}
    assert len(tokens) > 80


def test_each_sequence_gets_its_own_row_and_position() -> None:
    sequences = [
        Sequence(
            request(name, [1] * length, temperature=t, seed=7), text_stream(ByteTokenizer()), [1] * length
        )
        for name, length, t in (("greedy", 2, 0.0), ("prefill", 3, 1.0), ("seeded", 4, 1.0))
    ]
    chunks = (Chunk((1, 1), 0, (0,), (1,)), Chunk((1, 1), 0, (1,)), Chunk((1, 1, 1, 1), 0, (2,), (3,)))
    logits = np.random.default_rng(1).standard_normal((2, 50), dtype=np.float32)
    picked = pick(Step(Batch(chunks), tuple(sequences)), logits)
    assert picked == [int(np.argmax(logits[0])), None, pick_token(logits[1], SamplingParams(seed=7), 4)]


def one_step(params: SamplingParams, prompt: list[int], generated: list[int]) -> Step:
    asked = replace(request("r", prompt), sampling=params, top_logprobs=2)
    sequence = Sequence(asked, text_stream(ByteTokenizer()), prompt + generated)
    return Step(Batch((Chunk((1,), len(prompt + generated) - 1, (0,), (0,)),)), (sequence,))


@pytest.mark.parametrize(
    ("params", "prompt", "generated", "best"),
    [
        ({}, [1], [3], 1),
        ({"logit_bias": ((1, -100.0), (5, 1.5))}, [0], [], 5),
        ({"logit_bias": ((1, -100.0), (3, -100.0), (0, 100.0))}, [0], [], 0),
        # Prompt and answer count for repeat; a negative logit sinks as well.
        ({"repeat_penalty": 1.3}, [1], [3], 2),
        ({"repeat_penalty": 1.3}, [1, 3], [], 2),
        ({"repeat_penalty": 1.3, "penalty_window": 1}, [1], [3], 1),
        ({"repeat_penalty": 1.3, "penalty_window": 2}, [1, 3], [0, 0], 1),
        ({"repeat_penalty": 0.5}, [5], [], 5),
        # The answer alone counts for presence and frequency.
        ({"presence_penalty": 0.6}, [1, 3], [], 1),
        ({"presence_penalty": 0.6}, [0], [1, 1, 3], 2),
        ({"presence_penalty": 0.4}, [0], [1, 1, 1], 3),
        ({"presence_penalty": -1.0}, [0], [5, 5], 1),
        ({"frequency_penalty": 0.3}, [1, 1, 1, 1], [], 1),
        ({"frequency_penalty": 0.3}, [0], [1, 1, 3, 3], 2),
        ({"frequency_penalty": 0.3, "penalty_window": 1}, [0], [1, 3, 3, 1], 3),
        ({"frequency_penalty": 0.3, "penalty_window": 2}, [1, 1], [3], 1),
        ({"frequency_penalty": -0.7}, [0], [5, 5], 5),
        # Bias comes before the penalties: 2.0 + 2.0 = 4.0, and 4.0 / 1.5 is less than 3.0.
        ({"logit_bias": ((5, 2.0),), "repeat_penalty": 1.5}, [5], [], 1),
    ],
)
def test_bias_and_penalties_hold_for_greedy_picks(
    params: dict[str, object], prompt: list[int], generated: list[int], best: int
) -> None:
    logits = LOGITS[None].copy()
    step = one_step(SamplingParams(temperature=0, **params), prompt, generated)  # type: ignore[arg-type]
    assert pick(step, logits) == [best]
    assert (logits == LOGITS).all()


def test_bias_holds_for_draws() -> None:
    only = SamplingParams(logit_bias=((0, 100.0),))
    ban = SamplingParams(logit_bias=((1, -100.0), (3, -100.0)))
    for length in range(1, 200):
        assert pick(one_step(only, [4] * length, []), LOGITS[None]) == [0]
        assert pick(one_step(ban, [4] * length, []), LOGITS[None])[0] in (0, 2, 4, 5)


def test_penalties_follow_a_growing_sequence() -> None:
    """The history is kept from step to step; what it says is what a fresh sequence would say."""
    params = SamplingParams(temperature=0, frequency_penalty=0.4, repeat_penalty=1.1, penalty_window=7)
    growing = one_step(params, [0, 2], [])
    said: list[int] = []
    for _ in range(30):
        (token,) = pick(growing, LOGITS[None])
        assert token is not None
        assert [token] == pick(one_step(params, [0, 2], said), LOGITS[None])
        said.append(token)
        growing.sequences[0].tokens.append(token)
    assert len(set(said)) >= 4


numbers = st.floats(-10, 10, width=32)
penalised = st.builds(
    SamplingParams,
    logit_bias=st.dictionaries(st.integers(0, 19), numbers, max_size=6).map(lambda d: tuple(d.items())),
    repeat_penalty=st.sampled_from([1.0, 1.1, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.1, -0.3, 1.7]),
    frequency_penalty=st.sampled_from([0.0, 0.1, -0.2, 1.3]),
    penalty_window=st.sampled_from([0, 1, 3, 8, 100]),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 3, 10**30]),
    top_p=st.sampled_from([1.0, 0.6]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(-(2**64), 2**64),
)


@given(
    params=penalised,
    prompt=st.lists(st.integers(0, 19), min_size=1, max_size=12),
    generated=st.lists(st.integers(0, 19), max_size=12),
    logits=st.lists(numbers, min_size=20, max_size=20),
)
def test_an_executor_is_told_all_that_the_pick_depends_on(
    params: SamplingParams, prompt: list[int], generated: list[int], logits: list[float]
) -> None:
    """The adjustments make the very logits that bias and penalties do, and the draw falls on the same id."""
    row = np.array(logits, np.float32)
    step = one_step(params, prompt, generated)
    (sequence,) = step.sequences
    told = sampler.draw(sequence, len(sequence.tokens), row.size)
    adjusted = row.copy()
    for id, plus, repeat, minus in told.adjustments:
        value = adjusted[id] + np.float32(plus)
        value = value / np.float32(repeat) if value > 0 else value * np.float32(repeat)
        adjusted[id] = value - np.float32(minus)
    assert len({id for id, *_ in told.adjustments}) == len(told.adjustments)
    expected = row.copy()
    sampler.bias(expected, params)
    sampler.penalise(expected, params, np.array(sequence.tokens, np.int32), len(prompt))
    assert (adjusted == expected).all()
    if told.temperature:
        drawn = library.sample(
            adjusted,
            temperature=told.temperature,
            top_k=told.top_k,
            top_p=told.top_p,
            min_p=told.min_p,
            uniform=told.uniform,
        )
    else:
        drawn = library.argmax(adjusted)
    assert [drawn] == pick(step, row[None])
    assert told.scored


def test_who_changes_no_logits_has_no_adjustments() -> None:
    (sequence,) = one_step(SamplingParams(temperature=1.0, penalty_window=9), [1], [2]).sequences
    sequence.request = replace(sequence.request, top_logprobs=None)
    told = sampler.draw(sequence, 2, 50)
    assert (told.adjustments, told.scored) == ((), False)


def test_what_the_executor_drew_is_taken_and_what_nobody_cares_for_is_left() -> None:
    drawn, left, gone = (one_step(SamplingParams(temperature=0), [1], []).sequences[0] for _ in range(3))
    left.foreseen = 1  # the last time
    chunk = Chunk((1,), 0, (0,), (0,))
    step = Step(Batch((chunk, chunk, chunk)), (gone, drawn, left))
    result = LogitsResult(np.stack([LOGITS] * 3), (3, 4, None))
    assert sampler.pick(step, result, [False, True, True]) == [None, 4, 1]
    assert [s.foreseen for s in (gone, drawn, left)] == [-1, 4, -1]


def test_scores_are_those_of_the_models_own_logits() -> None:
    params = SamplingParams(temperature=0, logit_bias=((1, -100.0), (3, -100.0)), presence_penalty=1.0)
    step = one_step(params, [0], [2])
    tokens = pick(step, LOGITS[None])
    expected = LOGITS - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    (entry,) = score(step, LOGITS[None], tokens)
    assert isinstance(entry, TokenLogprobs)
    assert entry.token == tokens[0] == 5
    assert entry.logprob == pytest.approx(expected[5], abs=1e-6)
    assert [id for id, _ in entry.top] == [1, 3]
    assert [logprob for _, logprob in entry.top] == pytest.approx(expected[[1, 3]], abs=1e-6)


def test_who_asks_for_no_scores_gets_none() -> None:
    asks, quiet, prefill = (one_step(SamplingParams(temperature=0), [1], []).sequences[0] for _ in range(3))
    quiet.request = replace(quiet.request, top_logprobs=None)
    chunk = Chunk((1,), 0, (0,), (0,))
    step = Step(Batch((chunk, Chunk((1,), 0, (0,)), chunk)), (quiet, prefill, asks))
    logits = np.stack([LOGITS, LOGITS[::-1]])
    scores = score(step, logits, pick(step, logits))
    assert scores[:2] == [None, None]
    assert scores[2] == measure(logits[1], 2, 2)


def test_a_top_k_past_any_integer_of_c_keeps_all() -> None:
    all_tokens = SamplingParams(temperature=1.0, seed=11)
    row = LOGITS.astype(np.float32)
    assert pick_token(row, replace(all_tokens, top_k=10**30), 3) == pick_token(row, all_tokens, 3)
