from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.null_slot import ByteTokenizer, request
from tierd.chat.stops import text_stream
from tierd.core import Batch, Chunk, SamplingParams, Sequence
from tierd.engine.sampler import pick, pick_token
from tierd.slot import Step

LOGITS = np.array([0.0, 3.0, 2.5, 3.0, -1.0, 2.0], dtype=np.float32)


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
