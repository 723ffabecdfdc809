"""Embeddings: each vector has the same bits, whatever its prompt was fed with, after, or in which parts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from engine.device_slot import device_slot
from engine.drive import Faults, begin, enqueue, run, serve
from engine.embedded import POOLINGS, embed, expected, vectors
from engine.harness import NULL, Gate, model, running
from engine.null_slot import null_slot, request
from engine.places import Slots
from tierd.core import (
    Batch,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Pooling,
    Usage,
)
from tierd.errors import ContextLengthExceededError, DeviceLostError, ExecutorError
from tierd.kv.bank import Bank

PROMPT = bytes(range(40, 80))


@pytest.mark.parametrize("chunk_rows", [1, 7, 16])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_the_same_alone_and_among_others(place: Slots, pooling: Pooling, chunk_rows: int) -> None:
    slot = place(chunk_rows=chunk_rows)
    others = [request(f"t{n}", b"text %d" % n, 9 + n) for n in range(3)]
    prompts = {f"e{n}": PROMPT[n : n + 11 * n + 7] for n in range(4)}
    asked = [embed(name, prompt, pooling) for name, prompt in prompts.items()]
    sequences = enqueue(slot, others[0], asked[3], others[1], *asked[:3], others[2])
    found = vectors(serve(slot))
    assert found.keys() == prompts.keys()
    for name, prompt in prompts.items():
        np.testing.assert_array_equal(found[name].embedding, expected(prompt, pooling))
        assert found[name] == FinishedEvent(FinishReason.STOP, Usage(len(prompt), 0))
    assert [sequence.generated for sequence in sequences] == [9, 0, 10, 0, 0, 0, 11]
    assert slot.home.room.used == 0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_the_same_cold_and_warm(place: Slots, pooling: Pooling) -> None:
    """K/V of others is not used, be they done or under way, as only what is fed gives hidden states."""
    slot = place()
    run(slot, request("before", PROMPT, 4))
    enqueue(slot, request("beside", [*PROMPT, 5], 4), embed("e", [*PROMPT, 5], pooling))
    found = vectors(serve(slot))["e"]
    np.testing.assert_array_equal(found.embedding, expected([*PROMPT, 5], pooling))
    assert found.usage.cached_tokens == 0


def test_embeddings_drive_no_conversation_out(place: Slots) -> None:
    slot = place()
    run(slot, request("before", PROMPT, 4))
    kept = slot.home.room.cached
    for n in range(40):
        run(slot, embed(f"e{n}", bytes([n]) * 30))
    assert slot.home.room.cached == kept > 0
    (after,) = run(slot, request("after", [*PROMPT, 5, 6], 3))
    assert after.cached == len(PROMPT)


def test_a_vector_may_be_cut(place: Slots) -> None:
    slot = place()
    enqueue(slot, embed("e", PROMPT, dimensions=3), embed("whole", PROMPT))
    found = vectors(serve(slot))
    cut, whole = found["e"].embedding, found["whole"].embedding
    np.testing.assert_array_equal(cut, expected(PROMPT, Pooling.MEAN, 3))
    np.testing.assert_allclose(cut, whole[:3] / np.linalg.norm(whole[:3]), rtol=1e-6)
    assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-6)


def test_no_logits_are_asked_for(place: Slots) -> None:
    slot = place(chunk_rows=16)
    enqueue(slot, embed("e", PROMPT, Pooling.LAST), embed("all", PROMPT[:20]))
    steps = []
    while step := begin(slot):
        steps.append(step.batch)
        result = slot.executor.collect()
        for sequence, chunk in zip(step.sequences, step.chunks, strict=True):
            sequence.fed += len(chunk.tokens)
        assert result.hidden.shape == (step.batch.hidden_rows, 8)
        slot.steps.clear()
    assert sum(batch.logit_rows for batch in steps) == 0
    assert sum(batch.hidden_rows for batch in steps) == 1 + 20


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("bank", [0, 1 << 20], ids=["to be fed again", "with its rows in the bank"])
def test_a_text_that_gives_up_its_pages_goes_on_as_if_nothing_had_been(
    pooling: Pooling, depth: int, bank: int
) -> None:
    slot = null_slot(NULL, pages=17, chunk_rows=1, bank=Bank(bank), depth=depth)
    _, text = enqueue(slot, request("talk", b"hello", 60), embed("e", PROMPT, pooling))
    found = vectors(serve(slot))
    np.testing.assert_array_equal(found["e"].embedding, expected(PROMPT, pooling))
    assert text.preemptions == slot.preemptions.total() > 0
    assert slot.home.room.used == slot.home.room.reserved == 0


def test_a_step_that_fails_ends_it_once_and_gives_its_pages_back() -> None:
    faults = Faults()
    slot = null_slot(NULL, before_step=faults)
    enqueue(slot, embed("e", PROMPT))
    faults.next = True
    ((sequence, event),) = list(serve(slot))
    assert isinstance(event, FailedEvent)
    assert isinstance(event.error, ExecutorError)
    assert slot.home.room.used == 0
    assert sequence not in slot.running


def test_a_prompt_may_fill_the_context_and_no_more() -> None:
    with running(NULL, context=32, pages=8) as harness:
        for length in (32, 33):
            harness.engine.submit(embed(f"{length}", PROMPT[:length]))
        fits, other = (harness.mail.terminal(name) for name in ("32", "33"))
        assert isinstance(fits, FinishedEvent)
        np.testing.assert_array_equal(fits.embedding, expected(PROMPT[:32], Pooling.MEAN))
        assert isinstance(other, FailedEvent)
        assert isinstance(other.error, ContextLengthExceededError)


def test_the_engine_delivers_one_end_and_counts() -> None:
    with running(NULL) as harness:
        harness.engine.submit(embed("e", PROMPT, Pooling.CLS))
        end = harness.mail.terminal("e")
        np.testing.assert_array_equal(end.embedding, expected(PROMPT, Pooling.CLS))
        assert harness.mail.events("e") == [end]
        assert harness.mail.started("e")
        sample = harness.metrics.registry.get_sample_value
        labels = {"model": "null"}
        assert sample("tierd_requests_total", {**labels, "outcome": "stop"}) == 1
        assert sample("tierd_prompt_tokens_total", labels) == len(PROMPT)
        assert sample("tierd_generated_tokens_total", labels) == 0
        assert sample("tierd_rows_discarded_total", labels) == 0
        assert sample("tierd_gpu_hidden_rows_read_total", labels) == 0


def test_a_request_is_cancelled_in_the_midst_of_its_prompt() -> None:
    gate = Gate()
    with running(NULL, before_step=gate) as harness:
        harness.engine.submit(embed("e", PROMPT))
        gate.wait()
        harness.engine.cancel("e")
        end = harness.mail.terminal("e")
        assert end.reason is FinishReason.CANCELLED
        assert end.embedding is None
        gate.let(5)
        harness.snapshot_when(lambda _: harness.rests())


class Loss:
    """Loses the device at its third step."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, batch: Batch) -> None:
        self.steps += 1
        if self.steps == 3:
            raise DeviceLostError("lost")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("known", [False, True], ids=["nobody knows its rows", "the bank has them"])
def test_what_is_fed_again_is_not_added_twice(pooling: Pooling, known: bool) -> None:
    """The device is lost between two chunks of a prompt, which then goes on at the CPU."""
    loss = Loss()
    slot = partial(device_slot, regions=1, before_step=loss, chunk_rows=8)
    with running(model("null", streams=2), open_slot=slot) as harness:
        if known:  # and moves them out for another conversation
            loss.steps = -99
            for name, prompt in (("before", PROMPT), ("other", b"something else")):
                harness.engine.submit(request(name, prompt, 2))
                harness.mail.terminal(name)
            loss.steps = 0
        harness.engine.submit(embed("e", PROMPT, pooling))
        end = harness.mail.terminal("e")
        assert isinstance(end, FinishedEvent), end
        np.testing.assert_array_equal(end.embedding, expected(PROMPT, pooling))
