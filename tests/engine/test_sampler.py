from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.null_slot import ByteTokenizer, request
from reference import sampling
from tierd.backends import library
from tierd.backends.picking import measure
from tierd.backends.protocol import Logits, LogitsResult
from tierd.chat.stops import text_stream
from tierd.core import Batch, Chunk, SamplingParams, Sequence, TokenLogprobs, TokenMask
from tierd.engine import sampler
from tierd.errors import InvalidRequestError
from tierd.slot import Step

LOGITS = np.array([0.0, 3.0, 2.5, 3.0, -1.0, 2.0], dtype=np.float32)


def pick(step: Step, logits: Logits) -> list[int | None]:
    """Pick for everybody, where the executor draws nothing."""
    return sampler.pick(step, LogitsResult(logits), [True] * len(step.sequences))


def pick_token(row: npt.NDArray[np.float32], params: SamplingParams, position: int) -> int:
    """Pick the token at `position` of a stream that said nothing yet."""
    (token,) = pick(one_step(params, [0] * position, []), row[None])
    assert token is not None
    return token


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
    chosen = {pick_token(LOGITS, SamplingParams(**params), position) for position in range(1, 400)}  # type: ignore[arg-type]
    assert chosen == possible


def test_draws_are_distributed_as_the_logits_say() -> None:
    draws = np.array([pick_token(LOGITS, SamplingParams(seed=seed), 3) for seed in range(20_000)])
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert np.bincount(draws, minlength=6) / len(draws) == pytest.approx(expected, abs=0.015)


@given(seed=st.integers(-(2**70), 2**70), position=st.integers(1, 2**40))
def test_a_draw_is_a_function_of_seed_and_position(seed: int, position: int) -> None:
    (sequence,) = one_step(SamplingParams(seed=seed), [0], []).sequences
    (other,) = one_step(SamplingParams(seed=seed + 2**64), [0, 1], [2]).sequences
    uniform = sampler.draw(sequence, position, 50).uniform
    assert 0 <= uniform < 1
    assert (
        uniform == sampler.draw(sequence, position, 50).uniform == sampler.draw(other, position, 50).uniform
    )
    assert uniform != sampler.draw(sequence, position + 1, 50).uniform


def test_seeds_and_positions_differ() -> None:
    flat = np.zeros(1000, dtype=np.float32)
    tokens = {pick_token(flat, SamplingParams(seed=s), p) for s in range(10) for p in range(1, 11)}
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


def _changed(
    row: npt.NDArray[np.float32], params: SamplingParams, prompt: list[int], said: list[int]
) -> None:
    """Do what llama.cpp's repeat penalty and OpenAI's formula for the other two say, behind logit_bias."""
    for id, amount in params.logit_bias:
        row[id] += np.float32(amount)
    first = max(0, len(prompt) + len(said) - params.penalty_window) if params.penalty_window else 0
    generated = said[max(0, first - len(prompt)) :]
    repeat = np.float32(params.repeat_penalty)
    for id in {*prompt[first:], *generated}:
        row[id] = row[id] / repeat if row[id] > 0 else row[id] * repeat
    for id in set(generated):
        row[id] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * np.float32(
            generated.count(id)
        )


@given(
    params=penalised,
    prompt=st.lists(st.integers(0, 19), min_size=1, max_size=12),
    generated=st.lists(st.integers(0, 19), max_size=12),
    logits=st.lists(numbers, min_size=20, max_size=20),
    allowed=st.none() | st.sets(st.integers(0, 19), min_size=1),
)
def test_a_draw_says_all_that_the_pick_depends_on(
    params: SamplingParams,
    prompt: list[int],
    generated: list[int],
    logits: list[float],
    allowed: set[int] | None,
) -> None:
    """The adjustments make the very logits that bias and penalties do, and the pick falls on the same id."""
    row = np.array(logits, np.float32)
    if allowed is not None:
        params = replace(params, allowed=TokenMask.of([*allowed], row.size))
    step = one_step(params, prompt, generated)
    (sequence,) = step.sequences
    told = sampler.draw(sequence, len(sequence.tokens), row.size)
    by = told.adjustments
    assert (np.diff(by["id"].astype(int)) > 0).all()
    adjusted = sampling.change(row, by["id"].astype(int), by["plus"], by["repeat"], by["minus"])
    expected = row.copy()
    _changed(expected, params, prompt, generated)
    np.testing.assert_array_equal(adjusted, expected)
    assert told.allowed is params.allowed
    if allowed is not None:
        adjusted[[id for id in range(row.size) if id not in allowed]] = -np.inf
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
    assert allowed is None or drawn in allowed
    assert told.top_logprobs == 2


def test_who_changes_no_logits_has_no_adjustments() -> None:
    (sequence,) = one_step(SamplingParams(temperature=1.0, penalty_window=9), [1], [2]).sequences
    sequence.request = replace(sequence.request, top_logprobs=None)
    told = sampler.draw(sequence, 2, 50)
    assert (told.adjustments.size, told.allowed, told.top_logprobs) == (0, None, None)
    assert not told.changes_logits


def test_a_mask_holds_for_greedy_picks_and_draws_behind_bias_and_penalties() -> None:
    mask = TokenMask.of([0, 5, 4], LOGITS.size)
    assert pick(one_step(SamplingParams(temperature=0, allowed=mask), [1], []), LOGITS[None]) == [5]
    lifted = SamplingParams(temperature=0, allowed=mask, logit_bias=((1, 100.0), (4, 5.0)))
    assert pick(one_step(lifted, [1], []), LOGITS[None]) == [4]
    tired = SamplingParams(temperature=0, allowed=mask, presence_penalty=2.0, frequency_penalty=1.0)
    assert pick(one_step(tired, [1], [5]), LOGITS[None]) == [0]
    drawn = [pick_token(LOGITS, SamplingParams(allowed=mask, seed=seed), 1) for seed in range(300)]
    shares = np.where([id in mask for id in range(LOGITS.size)], np.exp(LOGITS), 0)
    assert np.bincount(drawn, minlength=6) / 300 == pytest.approx(shares / shares.sum(), abs=0.08)
    assert set(drawn) == {0, 4, 5}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_nothing_else_is_picked_where_logits_of_all_that_is_allowed_are_broken(
    temperature: float, broken: float
) -> None:
    logits = LOGITS.copy()
    logits[[3, 5]] = broken
    params = SamplingParams(temperature=temperature, allowed=TokenMask.of([5, 3], LOGITS.size))
    assert pick(one_step(params, [1], []), logits[None]) == [3]


def test_a_mask_of_nothing_is_an_error_of_the_request() -> None:
    with pytest.raises(InvalidRequestError, match="none of the model's tokens is allowed to come next"):
        TokenMask(np.zeros(3, np.uint32))


def test_who_has_penalties_waits_for_the_text_and_who_has_a_mask_does_not() -> None:
    def waits(**params: object) -> bool:
        (sequence,) = one_step(SamplingParams(**params), [1], []).sequences  # type: ignore[arg-type]
        return sampler.awaits_text(sequence)

    assert waits(repeat_penalty=1.1)
    assert waits(frequency_penalty=0.1, allowed=TokenMask.of([1], 50))
    assert not waits(allowed=TokenMask.of([1], 50), logit_bias=((1, 1.0),), seed=5)


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
