"""Picking and scoring on the device: as the host would by the same rows, most of which it never sees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tiny
from backends.resident.conftest import TOKENS, WIDE, Opener, feed
from tierd.backends.picking import measure, pick
from tierd.backends.resident.executor import ResidentExecutor, ResidentResult
from tierd.core import ADJUSTMENT, Batch, Chunk, Draw, TokenMask
from tierd.models import GGUFFile

VOCABULARY = 301
# Of log-probabilities: float32 sums of weights, and of numbers near 16.
TOLERANCE = 4e-6


@pytest.fixture(scope="module")
def q4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tiny.write_llama(tmp_path_factory.mktemp("tiny") / "q4.gguf", format="Q4_1", **WIDE)
    with GGUFFile.open(path) as file:
        yield file


def result_of(executor: ResidentExecutor, *draws: Draw) -> ResidentResult:
    """Draw from the logits behind each of the first tokens."""
    chunk = Chunk(TOKENS[: len(draws)], 0, (0,), tuple(range(len(draws))))
    executor.submit(Batch((chunk,), draws))
    return executor.collect()


def test_what_the_device_cannot_decide_is_read_back(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    expected = feed(executor, TOKENS[:2])[-1]
    flat = Draw(temperature=100.0, uniform=0.99, top_logprobs=3)  # all ids alike: far outside the 64 best
    result = result_of(executor, Draw(), flat)
    assert result.drawn(0) is not None
    assert result.drawn(1) is None
    np.testing.assert_array_equal(result.logits(1), expected)
    assert result.logprobs(1, 5, 3) == measure(expected, 5, 3)
    assert result.rows_read == 1


@pytest.mark.parametrize(
    "ids", [[300], [5, 31, 32, 63, 64, 299], range(0, 301, 3), range(301)], ids=["one", "six", "third", "all"]
)
def test_what_is_drawn_is_what_the_host_draws_of_what_is_allowed(
    ids: list[int], q4: GGUFFile, opened: Opener
) -> None:
    """Behind adjustments, too, and where a row has to be read back, which takes more ids than candidates."""
    executor = opened(q4)
    logits = feed(executor, TOKENS[:4])
    mask = TokenMask.of(ids, VOCABULARY)
    by = np.array([(5, 4.0, 1.3, 0.0), (64, 0.0, 1.0, -2.0), (300, 9.0, 2.0, 1.0)], ADJUSTMENT)
    tails = 0
    for uniform in np.linspace(0, 0.999, 9).tolist():
        draws = (
            Draw(allowed=mask),
            Draw(allowed=mask, uniform=uniform, temperature=1.0, adjustments=by),
            Draw(allowed=mask, uniform=uniform, temperature=3.0, top_k=100),
            Draw(allowed=mask, uniform=uniform, temperature=1.0, top_p=0.9, adjustments=by),
        )
        result = result_of(executor, *draws)
        for row, draw in enumerate(draws):
            drawn = result.drawn(row)
            if drawn is None:
                tails += 1
                drawn = pick(result.logits(row), draw)
            assert drawn in mask
            assert drawn == pick(logits[row], draw)
    assert (tails > 0) == (len(ids) > 64)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_else_is_drawn_where_all_that_is_allowed_is_impossible(
    temperature: float, q4: GGUFFile, opened: Opener
) -> None:
    by = np.array([(40, -np.inf, 1.0, 0.0), (50, -np.inf, 1.0, 0.0)], ADJUSTMENT)
    draw = Draw(temperature=temperature, adjustments=by, allowed=TokenMask.of([50, 40], VOCABULARY))
    result = result_of(opened(q4), draw)
    assert (result.drawn(0), result.rows_read) == (None, 1)
    assert pick(result.logits(0), draw) == 40


def test_a_rows_mask_gives_way_to_another_and_to_none(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    (row,) = feed(executor, TOKENS[:1])
    best = np.argsort(-row, kind="stable").tolist()
    masks = [TokenMask.of(best[3:], VOCABULARY), TokenMask.of(best[9:], VOCABULARY)]
    for mask in (*masks, None, masks[0]):
        for _ in range(executor.depth):  # each of the steps in flight has masks of its own
            drawn = result_of(executor, Draw(allowed=mask)).drawn(0)
            assert drawn == next(id for id in best if mask is None or id in mask)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
def test_log_probabilities_are_told_without_reading_rows_back(
    temperature: float, q4: GGUFFile, opened: Opener
) -> None:
    """They are those of the model's logits at temperature 1, whatever the row's: against float64."""
    executor = opened(q4)
    logits = feed(executor, TOKENS[:4])
    tops = (0, 1, 20, 64)
    chain = {"temperature": temperature, "top_k": 10, "uniform": 0.6}
    result = result_of(executor, *(Draw(top_logprobs=top, **chain) for top in tops))
    assert result.rows_read == 0
    for row, top in enumerate(tops):
        token = result.drawn(row)
        assert token == pick(logits[row], Draw(**chain))
        exact = logits[row].astype(np.float64)
        exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
        told, expected = result.logprobs(row, token, top), measure(logits[row], token, top)
        ids = [id for id, _ in told.top]
        assert (told.token, ids) == (token, [id for id, _ in expected.top])
        assert told.logprob == pytest.approx(exact[token], abs=TOLERANCE)
        assert [value for _, value in told.top] == pytest.approx(exact[ids], abs=TOLERANCE)


def test_rows_are_read_back_for_log_probabilities_that_candidates_do_not_tell(
    q4: GGUFFile, opened: Opener
) -> None:
    """Of changed logits these are not the model's likeliest. The token's own is told all the same."""
    executor = opened(q4)
    logits = feed(executor, TOKENS[:4])
    changes = (
        {"adjustments": np.array([(7, 50.0, 1.0, 0.0)], ADJUSTMENT)},
        {"allowed": TokenMask.of(range(100, 200), VOCABULARY)},
    )
    draws = [Draw(**change, top_logprobs=top) for top in (0, 3) for change in changes]
    result = result_of(executor, *draws)
    assert result.rows_read == 2
    for row, draw in enumerate(draws):
        token, top = result.drawn(row), draw.top_logprobs
        assert token == pick(logits[row], draw)
        told, expected = result.logprobs(row, token, top), measure(logits[row], token, top)
        assert told.top == expected.top
        assert told.logprob == pytest.approx(expected.logprob, abs=TOLERANCE)


def test_rows_that_are_read_in_any_case_do_not_wait_for_the_next_step(q4: GGUFFile, opened: Opener) -> None:
    executor, device = opened(q4), opened.backend.device
    scored = Draw(allowed=TokenMask.of(range(VOCABULARY), VOCABULARY), top_logprobs=5)
    executor.submit(Batch((Chunk(TOKENS[:4], 0, (0,), (3,)),), (scored,)))
    executor.submit(Batch((Chunk((-1,), 4, (0,), (0,)),), (Draw(),)))
    before = device.calls
    result = executor.collect()
    assert device.calls == before + 1  # its wait: the row was read back behind the step itself
    assert result.rows_read == 1
    assert result.drawn(0) == int(result.logits(0).argmax())
    executor.collect()


def test_more_changes_than_there_is_room_for_are_made_by_the_host(
    q4: GGUFFile, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierd.backends.resident.draws._MOST_CHANGES", 3)
    executor = opened(q4)
    logits = feed(executor, TOKENS[:3])
    by = np.array([(7, 50.0, 1.0, 0.0), (8, 1.0, 1.0, 0.0)], ADJUSTMENT)
    result = result_of(
        executor, Draw(adjustments=by), Draw(adjustments=by, top_logprobs=0), Draw(top_logprobs=0)
    )
    assert [result.drawn(row) for row in range(3)] == [7, None, int(logits[2].argmax())]
    assert result.rows_read == 1
    np.testing.assert_array_equal(result.logits(1), logits[1])
    assert result.logprobs(1, 7, 0) == measure(logits[1], 7, 0)
