"""Streams that have a grammar, over the null device: which tokens come, in what company, and what fails."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

from engine.harness import NULL, PATIENCE, Harness, model, running
from engine.null_slot import request
from engine.words import Word, is_word
from tierd.backends.picking import pick
from tierd.core import (
    ADJUSTMENT,
    NO_ADJUSTMENTS,
    Batch,
    Constraint,
    Draw,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    SamplingParams,
    TokenMask,
)
from tierd.engine import runner
from tierd.engine.following import NO_WORDS, narrow
from tierd.errors import ExecutorError, InvalidRequestError


def spells_word(text: str, length: int = 12) -> bool:
    return is_word(list(text.encode()), length)


def constrained(id: str, word: Word, prompt: bytes = b"a prompt", **fields: object) -> Request:
    return replace(request(id, prompt, 40, ignore_eos=False), **{"grammar": word} | fields)  # type: ignore[arg-type]


def answer(harness: Harness, id: str) -> str:
    end = harness.mail.terminal(id)
    assert isinstance(end, FinishedEvent), end
    assert end.reason is FinishReason.STOP
    return harness.mail.text(id)


def ended(harness: Harness, id: str) -> tuple[FinishReason, int]:
    end = harness.mail.terminal(id)
    assert isinstance(end, FinishedEvent), end
    return end.reason, end.usage.completion_tokens


def failure(harness: Harness, id: str) -> Exception:
    event = harness.mail.terminal(id)
    assert isinstance(event, FailedEvent)
    return event.error


WAYS = {
    "greedy": SamplingParams(temperature=0),
    "random": SamplingParams(temperature=1, seed=5),
    "penalised": SamplingParams(temperature=0, frequency_penalty=1.5, logit_bias=((ord("c"), 0.5),)),
    "few": SamplingParams(temperature=1, top_k=2, seed=9),
}


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_words_alone_and_in_company(depth: int) -> None:
    requests = [
        constrained(f"{way}{n}", Word(), bytes([65 + n]) * (3 + 5 * n), sampling=sampling)
        for n in range(2)
        for way, sampling in WAYS.items()
    ]
    others = [request(f"free{n}", bytes([75 + n]) * 9, 60, temperature=n % 2) for n in range(8)]
    alone, together = [], []
    with running(NULL, depth=depth, pages=256) as harness:
        for r in requests:
            harness.engine.submit(r)
            alone.append(answer(harness, r.id))
    with running(model("null", streams=16), depth=depth, pages=1024, chunk_rows=7) as harness:
        for r in [*others, *requests]:
            harness.engine.submit(r)
        together = [answer(harness, r.id) for r in requests]
        for r in others:
            assert ended(harness, r.id) == (FinishReason.LENGTH, 60)
        assert harness.rests()
    assert alone == together
    assert all(map(spells_word, alone))
    assert len(set(alone)) > 4


@pytest.mark.parametrize("depth", [1, 2])
def test_who_is_late_delays_no_other_and_gets_the_same(depth: int) -> None:
    held = threading.Event()
    slow = Word(held=held)
    with running(NULL, depth=depth, pages=256) as harness:
        harness.engine.submit(constrained("slow", slow))
        assert slow.asked.acquire(timeout=PATIENCE)
        harness.engine.submit(request("free", b"go on", 40))
        assert isinstance(harness.mail.terminal("free"), FinishedEvent)
        assert harness.mail.text("slow") == ""
        held.set()
        late = answer(harness, "slow")
        harness.engine.submit(constrained("again", Word()))
        assert answer(harness, "again") == late
        assert harness.rests()


def test_who_is_slow_keeps_no_other_waiting_again() -> None:
    """Once it was slow."""
    held = threading.Event()
    held.set()
    slow = Word(held=held, slow=True)
    with running(NULL) as harness:
        harness.engine.submit(constrained("slow", slow))
        harness.mail.wait(lambda: bool(harness.mail.text("slow")))
        held.clear()
        harness.engine.submit(constrained("quick", Word(), b"go on"))
        assert spells_word(answer(harness, "quick"))
        held.set()
        assert spells_word(answer(harness, "slow"))


WORKED_OUT_BY = {
    "a quick one": (1, False, "tierd-null"),
    "a slow one": (1, True, "tierd-grammar"),
    "one for who draws by himself": (2, False, "tierd-grammar"),
}


@pytest.mark.parametrize("case", WORKED_OUT_BY)
def test_who_works_out_what_may_come(case: str) -> None:
    """A thread beside a step would take a core from those that run it."""
    depth, slow, by = WORKED_OUT_BY[case]
    word = Word(slow=slow)
    with running(NULL, depth=depth) as harness:
        harness.engine.submit(constrained("a", word))
        assert spells_word(answer(harness, "a"))
    assert word.askers == ["tierd-grammar", *[by] * 12]


def test_a_step_waits_so_long_for_what_may_come_and_the_rest_goes_on_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "FIND_S", 0.0)
    word = Word()
    with running(NULL) as harness:
        harness.engine.submit(constrained("a", word))
        assert spells_word(answer(harness, "a"))
    assert word.askers == ["tierd-grammar"] * 13


def test_the_last_row_of_who_is_late_is_fed_once_more() -> None:
    held = threading.Event()
    rows: list[tuple[int, int]] = []

    def note(batch: Batch) -> None:
        rows.extend((chunk.start, len(chunk.tokens)) for chunk in batch.chunks)

    with running(NULL, chunk_rows=4, before_step=note) as harness:
        harness.engine.submit(constrained("slow", Word(3, held=held), b"0123456789"))
        discarded = {"model": "null"}
        harness.snapshot_when(
            lambda _: harness.metrics.registry.get_sample_value("tierd_rows_discarded_total", discarded) == 1
        )
        assert rows == [(0, 4), (4, 4), (8, 2)]
        held.set()
        assert spells_word(answer(harness, "slow"), 3)
    assert rows[3:] == [(9, 1), (10, 1), (11, 1), (12, 1)]


def test_who_draws_by_himself_gets_no_row_before_it_is_known_what_may_come() -> None:
    held = threading.Event()
    word = Word(held=held)
    steps: list[Batch] = []
    with running(NULL, depth=2, before_step=steps.append) as harness:
        harness.engine.submit(constrained("slow", word))
        assert word.asked.acquire(timeout=PATIENCE)
        harness.engine.submit(request("free", b"x", 5))
        harness.mail.terminal("free")
        assert all(len(batch.chunks) == 1 and batch.chunks[0].tokens != tuple(b"a prompt") for batch in steps)
        held.set()
        assert spells_word(answer(harness, "slow"))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fails_at", [0, 5])
def test_a_grammar_that_cannot_go_on_ends_its_stream_alone(depth: int, fails_at: int) -> None:
    with running(NULL, depth=depth) as harness:
        harness.engine.submit(request("free", b"go on", 40))
        harness.engine.submit(constrained("other", Word()))
        harness.engine.submit(constrained("bad", Word(fails_at=fails_at)))
        error = failure(harness, "bad")
        assert isinstance(error, InvalidRequestError)
        assert str(error) == "the grammar cannot go on: it has lost the thread"
        assert len(harness.mail.text("bad")) == fails_at
        assert isinstance(harness.mail.terminal("free"), FinishedEvent)
        assert spells_word(answer(harness, "other"))
        assert harness.rests()


def test_a_grammar_that_breaks_down_ends_its_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Word):
        def begin(self) -> Constraint:
            raise ZeroDivisionError("oh")

    with running(NULL) as harness:
        harness.engine.submit(constrained("bad", Broken()))
        harness.engine.submit(constrained("good", Word()))
        error = failure(harness, "bad")
        assert isinstance(error, ExecutorError)
        assert "ZeroDivisionError: oh" in str(error)
        assert spells_word(answer(harness, "good"))
    assert "request=bad its grammar failed" in caplog.text


def test_with_ignore_eos_a_text_ends_where_nothing_else_may_come() -> None:
    with running(NULL) as harness:
        harness.engine.submit(constrained("a", Word(), ignore_eos=True))
        assert spells_word(answer(harness, "a"))
        harness.engine.submit(replace(request("b", b"x", 30), grammar=Word(free=True)))
        assert ended(harness, "b") == (FinishReason.LENGTH, 30)


def test_choices_have_a_constraint_each_which_goes_with_them() -> None:
    word = Word()
    with running(NULL) as harness:
        for n in range(4):
            sampling = SamplingParams(temperature=1, seed=n)
            harness.engine.submit(constrained(f"c{n}", word, sampling=sampling))
        texts = [answer(harness, f"c{n}") for n in range(4)]
        assert all(map(spells_word, texts))
        assert len(set(texts)) == 4
        held = threading.Event()
        waiting = Word(held=held)
        harness.engine.submit(constrained("gone", waiting))
        assert waiting.asked.acquire(timeout=PATIENCE)
        harness.engine.cancel("gone")
        harness.mail.terminal("gone")
        held.set()
        harness.engine.submit(request("last", b"x", 3))
        harness.mail.terminal("last")
        harness.snapshot_when(
            lambda _: not any(ref() for ref in (*word.begun, *waiting.begun)) or bool(gc.collect())
        )


def test_what_else_a_request_allows() -> None:
    def mask(*ids: int) -> TokenMask:
        return TokenMask.of(ids, 64)

    plain = Request(id="a", model="m", prompt=(1,), max_tokens=1, sampling=SamplingParams(temperature=0))
    fixed = replace(plain, sampling=SamplingParams(temperature=0, allowed=mask(3, 9)))
    endless = replace(plain, ignore_eos=True)
    ends = mask(9, 40).words
    given = mask(3, 5, 9)
    assert narrow(given, plain, ends) is given
    assert narrow(None, plain, ends) is None
    assert narrow(None, fixed, ends) is fixed.sampling.allowed
    assert ids(narrow(given, fixed, ends)) == [3, 9]
    assert ids(narrow(given, endless, ends)) == [3, 5]
    assert ids(narrow(given, replace(fixed, ignore_eos=True), ends)) == [3]
    assert ids(narrow(mask(9, 40), endless, ends)) == [9, 40]
    assert narrow(given, endless, NO_WORDS) is given
    assert narrow(mask(3, 50), endless, ends[:1]) is not None
    with pytest.raises(InvalidRequestError, match="allowed_token_ids leaves none"):
        narrow(mask(5), fixed, ends)


def ids(mask: TokenMask | None) -> list[int]:
    assert mask is not None
    return [id for id in range(64) if id in mask]


def test_an_engine_that_ends_lets_its_threads_end() -> None:
    with running(NULL) as harness:
        harness.engine.submit(constrained("a", Word()))
        answer(harness, "a")
        threads = [thread for thread in threading.enumerate() if thread.name == "tierd-grammar"]
        assert threads
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_mask_of_one_token_leaves_nothing_to_pick() -> None:
    logits = np.full(70, -np.inf, np.float32)
    logits[5] = 3.0
    for id in (0, 31, 32, 69):
        one = Draw(allowed=TokenMask.of([id], 70), temperature=1.0, uniform=0.9)
        assert pick(logits, one) == id
        assert pick(logits, replace(one, temperature=0.0)) == id


def test_where_nothing_may_be_picked_the_lowest_of_what_is_allowed_is() -> None:
    for logits in (np.full(70, -np.inf, np.float32), np.full(70, np.nan, np.float32)):
        for temperature in (0.0, 1.0):
            draw = Draw(allowed=TokenMask.of([9, 40], 70), temperature=temperature, uniform=0.9)
            assert pick(logits, draw) == 9


@pytest.mark.parametrize("way", WAYS)
def test_a_draw_of_what_is_allowed_is_one_with_no_other_likely(way: str) -> None:
    random = np.random.default_rng(7)
    sampling = WAYS[way]
    adjustments = np.array([(3, 2.0, 1.0, 0.5), (290, -1.0, 1.3, 0.0)], ADJUSTMENT)
    for _ in range(200):
        logits = random.normal(0, 2, 300).astype(np.float32)
        ids = sorted(random.choice(300, random.integers(2, 300), replace=False))
        free = Draw(
            adjustments=adjustments if sampling.penalises else NO_ADJUSTMENTS,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            uniform=random.random(),
        )
        masked = np.where(np.isin(np.arange(300), ids), logits, -np.inf).astype(np.float32)
        assert pick(logits, replace(free, allowed=TokenMask.of(ids, 300))) == pick(masked, free)
