from __future__ import annotations

import numpy as np
import pytest

from reference import oracle


def top20(logits, pos=0):
    log_probabilities = oracle.log_softmax(logits)
    ids = np.argsort(-log_probabilities)[:20]
    return {"pos": pos, "ids": ids.tolist(), "logprobs": log_probabilities[ids].tolist()}


@pytest.fixture
def logits():
    return np.random.default_rng(0).standard_normal((3, 100)) * 3


def test_kl_of_the_same_logits_is_zero(logits):
    assert oracle.mean_kl([top20(row) for row in logits], logits) == pytest.approx(0, abs=1e-12)
    assert oracle.mean_kl([top20(row) for row in logits], logits + 5) == pytest.approx(0, abs=1e-12)


def test_kl_counts_the_rest_as_one_bucket(logits):
    row = logits[0]
    reference = top20(row)
    shuffled = row.copy()
    rest = np.setdiff1d(np.arange(100), reference["ids"])
    shuffled[rest] = row[rest[::-1]]
    assert oracle.mean_kl([reference], [shuffled]) == pytest.approx(0, abs=1e-12)
    raised = row.copy()
    raised[rest] += 1.0
    p = np.exp(oracle.log_softmax(row))[rest].sum()
    q = np.exp(oracle.log_softmax(raised))[rest].sum()
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert oracle.mean_kl([reference], [raised]) == pytest.approx(expected)
    assert oracle.mean_kl([reference, reference], [row, raised]) == pytest.approx(expected / 2)


def test_kl_stays_finite_when_an_id_is_impossible(logits):
    reference = top20(logits[0])
    ours = logits[0].copy()
    ours[reference["ids"][0]] = -np.inf
    assert 1.0 < oracle.mean_kl([reference], [ours]) < 100.0


def test_rows_must_match(logits):
    with pytest.raises(ValueError, match="1 reference rows, 3"):
        oracle.mean_kl([top20(logits[0])], logits)


def test_greedy_feed():
    row = {"prompt_tokens": [5, 6, 7], "tokens": [1, 2, 3]}
    assert oracle.greedy_feed(row) == ([5, 6, 7, 1, 2], [2, 3, 4])


def test_greedy_picks_bar_end_ids():
    logits = np.array([[1.0, 9.0, 2.0, 3.0], [5.0, 9.0, 2.0, 8.0]], np.float32)
    assert oracle.greedy_picks(logits, {1, 3}) == [2, 0]
    assert oracle.greedy_picks(logits, ()) == [1, 1]
    assert logits[0, 1] == 9.0


@pytest.mark.parametrize(
    ("wrong_at", "holds"),
    [((), True), ((0,), False), ((1,), True), ((1, 2), False), ((150,), True)],
)
def test_greedy_rule(wrong_at, holds):
    """Step 0 is sure, steps 1 to 100 are narrow, from 101 on anything goes."""
    margin = [0.5] + [0.1] * 100 + [0.09] * 60
    row = {"tokens": [7] * 161, "margin": margin}
    picks = [8 if step in wrong_at else 7 for step in range(161)]
    verdict = oracle.greedy_rule([row], [picks])
    assert verdict.holds == holds
    assert verdict.wrong == (((0, 0),) if 0 in wrong_at else ())
