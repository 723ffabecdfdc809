"""Scheduler and prefix cache together, on the null device: whoever gets a wrong page gets wrong tokens."""

from __future__ import annotations

from functools import partial

import pytest

from engine import drive
from engine.drive import Faults, complete, enqueue, greedy, rows
from engine.harness import NULL, PATIENCE, Gate, model, running
from engine.null_slot import PAGE_POSITIONS, null_slot, request
from tierd.core import Batch, FailedEvent, FinishedEvent, FinishReason, Request, Sequence, Usage
from tierd.engine.scheduler import can_admit, leave
from tierd.errors import ExecutorError, ModelNotFoundError, UnavailableError
from tierd.slot import Slot

ALPHABET = b"abcdefghijklmnopqrstuvwxyz"


def begin(slot: Slot) -> dict[str, int]:
    """Start a step; return how many rows each stream has in it."""
    return rows(drive.begin(slot))


def run(slot: Slot, *requests: Request) -> list[Sequence]:
    """Serve requests, and whoever is there, to their end."""
    sequences = drive.run(slot, *requests)
    assert (slot.home.pool.used, slot.home.pool.reserved) == (0, 0)
    return sequences


def test_the_next_turn_feeds_only_what_is_new() -> None:
    slot = null_slot(NULL)
    (first,) = run(slot, request("first", ALPHABET[:9], 6))
    assert (first.fed, first.cached) == (14, 0)
    (second,) = enqueue(slot, request("second", [*first.tokens[:13], 1, 2, 3], 5))
    assert begin(slot) == {"second": 3}
    assert second.cached == 13
    complete(slot)
    run(slot)
    assert second.tokens == greedy(second.request.prompt, 5)


@pytest.mark.parametrize("length", range(1, 14))
def test_one_token_of_a_known_prompt_is_fed_for_its_logits(length: int) -> None:
    slot = null_slot(NULL)
    run(slot, request("first", ALPHABET[:13], 1))
    (again,) = enqueue(slot, request("again", ALPHABET[:length], 6))
    assert begin(slot) == {"again": 1}
    complete(slot)
    run(slot)
    assert again.cached == length - 1
    assert again.tokens == greedy(ALPHABET[:length], 6)


def test_shared_pages_are_never_written() -> None:
    """Histories that branch at every position, served together and again: each branch writes its own."""
    slot = null_slot(model("null", streams=4), pages=400, chunk_rows=5)
    run(slot, request("stem", ALPHABET[:14], 3))
    for turn in range(2):
        branches = [request(f"{turn}-{i}", [*ALPHABET[:i], 200 + i], 7) for i in range(1, 15)]
        for sequence in run(slot, *branches):
            assert sequence.tokens == greedy(sequence.request.prompt, 7)
            assert sequence.cached >= len(sequence.request.prompt) - 2 + turn


def test_streams_at_once_share_what_was_fed_before_them_and_nothing_of_each_other() -> None:
    slot = null_slot(NULL, chunk_rows=64)
    run(slot, request("system", ALPHABET[:10], 1))
    twins = enqueue(slot, request("a", ALPHABET, 4), request("b", ALPHABET, 4))
    assert begin(slot) == {"a": 16, "b": 16}
    a, b = twins
    assert a.pages[:2] == b.pages[:2]
    assert not set(a.pages[2:]) & set(b.pages[2:])
    assert [slot.home.pool.references(page) for page in a.pages] == [2, 2, 1, 1, 1, 1, 1]
    complete(slot)
    run(slot)
    for twin in twins:
        assert (twin.cached, twin.tokens) == (10, greedy(ALPHABET, 4))
    # 29 tokens were fed twice; kept are the pages of one of them.
    assert slot.home.pool.cached == 8


def test_a_prompt_joins_while_others_share_its_pages() -> None:
    slot = null_slot(NULL)
    run(slot, request("system", ALPHABET[:9], 1))
    (first,) = enqueue(slot, request("first", [*ALPHABET[:9], 1], 9))
    begin(slot)
    complete(slot)
    (second,) = enqueue(slot, request("second", [*ALPHABET[:9], 2], 9))
    assert begin(slot) == {"first": 1, "second": 1}
    leave(slot, first)
    complete(slot)
    run(slot)
    assert second.tokens == greedy([*ALPHABET[:9], 2], 9)
    assert slot.home.prefixes.match([*first.tokens, 0]).positions == len(first.tokens)


@pytest.mark.parametrize("steps", [1, 2, 4], ids=["first chunk", "second chunk", "generating"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_cancelled_stream_leaves_what_it_was_fed(steps: int, in_flight: bool) -> None:
    slot = null_slot(NULL, chunk_rows=5)
    (sequence,) = enqueue(slot, request("a", ALPHABET[:9], 9))
    for _ in range(steps - in_flight):
        begin(slot)
        complete(slot)
    if in_flight:
        begin(slot)
        leave(slot, sequence)
        assert slot.home.pool.cached == 0
        complete(slot)
    else:
        leave(slot, sequence)
    fed = {1: 5, 2: 9, 4: 11}[steps]
    prompt = [*sequence.tokens, 0] if fed < len(sequence.tokens) else [*sequence.tokens, 0, 0]
    assert slot.home.prefixes.match(prompt).positions == fed
    assert slot.home.pool.cached == -(-fed // PAGE_POSITIONS)
    (again,) = run(slot, request("b", ALPHABET[:9], 9))
    assert again.tokens == greedy(ALPHABET[:9], 9)
    assert again.cached == min(fed, 8)


@pytest.mark.parametrize("left", [False, True])
def test_rows_of_a_failed_step_are_not_kept(left: bool) -> None:
    faults = Faults()
    slot = null_slot(NULL, chunk_rows=6, before_step=faults)
    (sequence,) = enqueue(slot, request("a", ALPHABET[:13], 9))
    begin(slot)
    complete(slot)
    begin(slot)
    if left:
        leave(slot, sequence)
    faults.next = True
    assert drive.ended(complete(slot)) == [sequence] * (not left)
    assert (slot.home.pool.used, slot.home.pool.reserved) == (0, 0)
    assert slot.home.prefixes.match(ALPHABET).positions == 6
    (again,) = run(slot, request("b", ALPHABET[:13], 9))
    assert (again.cached, again.tokens) == (6, greedy(ALPHABET[:13], 9))


def test_cached_pages_make_room_for_a_request_the_oldest_first() -> None:
    slot = null_slot(NULL, pages=6)
    run(slot, request("old", ALPHABET[:8], 1), request("new", ALPHABET[8:16], 1))
    assert slot.home.pool.cached == 4
    (big,) = enqueue(slot, request("big", ALPHABET[16:24], 9))
    assert begin(slot) == {"big": 8}
    assert (slot.home.pool.free, slot.home.pool.cached, slot.home.pool.reserved) == (0, 4, 1)
    complete(slot)
    run(slot)
    assert big.tokens == greedy(ALPHABET[16:24], 9)
    assert slot.home.prefixes.match([*ALPHABET[:8], 0]).positions == 0
    assert slot.home.prefixes.match([*ALPHABET[8:16], 0]).positions == 8


def test_shared_pages_need_no_reserve() -> None:
    slot = null_slot(NULL, pages=6)
    run(slot, request("system", ALPHABET[:16], 1))
    first, second = enqueue(slot, request("a", [*ALPHABET[:16], 1], 4), request("b", [*ALPHABET[:16], 2], 4))
    assert (slot.home.pages_needed(first.request), slot.home.pages_needed(second.request)) == (5, 5)
    assert begin(slot) == {"a": 1, "b": 1}
    assert (slot.home.pool.used, slot.home.pool.reserved, slot.home.pool.free) == (6, 0, 0)
    complete(slot)
    run(slot)
    assert [s.tokens for s in (first, second)] == [greedy(s.request.prompt, 4) for s in (first, second)]


def test_a_page_that_is_both_shared_and_needed_is_not_promised_twice() -> None:
    slot = null_slot(NULL, pages=6)
    run(slot, request("system", ALPHABET[:8], 1))
    enqueue(slot, request("a", b"0123456789", 7), request("b", [*ALPHABET[:8], 1], 4))
    assert begin(slot) == {"a": 10}
    # b needs one page beside the two that it would share; but two of the cached ones are promised to a.
    assert (slot.home.pool.available, slot.home.first_grant(slot.waiting[0])) == (2, 3)
    assert not can_admit(slot)
    complete(slot)
    run(slot)


def test_the_part_of_a_page_is_used_even_when_that_page_is_the_last_to_be_had() -> None:
    slot = null_slot(NULL, pages=4)
    run(slot, request("a", ALPHABET[:14], 1))
    assert (slot.home.pool.free, slot.home.pool.cached) == (0, 4)
    (again,) = run(slot, request("b", [*ALPHABET[:13], 1, 2], 2))
    assert again.cached == 13
    assert again.tokens == greedy([*ALPHABET[:13], 1, 2], 2)


def test_a_page_that_is_copied_from_counts_as_used() -> None:
    slot = null_slot(NULL, pages=3)
    for text in (b"abc", b"def", b"ghi"):
        run(slot, request("a", text, 1))
    (again,) = run(slot, request("b", b"abx", 1))
    assert again.cached == 2
    found = {
        text: slot.home.prefixes.match(text + b"?").positions for text in (b"abc", b"def", b"ghi", b"abx")
    }
    assert found == {b"abc": 3, b"def": 0, b"ghi": 3, b"abx": 3}


def test_deciding_changes_nothing() -> None:
    slot = null_slot(NULL, pages=6)
    run(slot, request("system", ALPHABET[:16], 1))
    enqueue(slot, request("a", [*ALPHABET[:16], 1], 4))
    before = (slot.home.pool.free, slot.home.pool.cached, slot.home.pool.oldest, len(slot.home.prefixes))
    assert can_admit(slot)
    assert can_admit(slot)
    assert (
        slot.home.pool.free,
        slot.home.pool.cached,
        slot.home.pool.oldest,
        len(slot.home.prefixes),
    ) == before


def test_without_the_cache_nothing_is_kept() -> None:
    slot = null_slot(NULL, prefix_cache=False)
    for name in "ab":
        (sequence,) = run(slot, request(name, ALPHABET[:9], 6))
        assert sequence.cached == 0
        assert slot.home.pool.free == slot.home.pool.total


# ---- The engine -----------------------------------------------------------------------------------------


def test_usage_log_metrics_and_snapshot_tell_of_hits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tierd")
    with running(NULL) as harness:
        harness.engine.submit(request("a", ALPHABET[:9], 4))
        assert harness.mail.terminal("a") == FinishedEvent(FinishReason.LENGTH, Usage(9, 4, 0))
        harness.engine.submit(request("b", ALPHABET[:9], 4))
        assert harness.mail.terminal("b") == FinishedEvent(FinishReason.LENGTH, Usage(9, 4, 8))
        assert harness.mail.text("a") == harness.mail.text("b")
        state = harness.snapshot_when(lambda _: harness.rests()).models["null"]
        assert (state.pages_cached, state.pages_used, state.pages_free) == (3, 0, 61)
        sample = partial(harness.metrics.registry.get_sample_value, labels={"model": "null"})
        assert sample("tierd_prefix_cache_queries_total") == 18
        assert sample("tierd_prefix_cache_hits_total") == 8
        assert sample("tierd_prompt_tokens_total") == 10
        assert (sample("tierd_kv_pages_cached"), sample("tierd_kv_pages_used")) == (3, 0)
    assert "request=b model=null prompt=9 cached=8 generated=4 " in caplog.text


def test_without_the_cache_there_is_nothing_to_tell() -> None:
    with running(NULL, prefix_cache=False) as harness:
        for name in "ab":
            harness.engine.submit(request(name, ALPHABET[:9], 4))
            assert harness.mail.terminal(name) == FinishedEvent(FinishReason.LENGTH, Usage(9, 4, 0))
        sample = partial(harness.metrics.registry.get_sample_value, labels={"model": "null"})
        assert sample("tierd_prefix_cache_queries_total") == 0
        assert harness.engine.snapshot.models["null"].pages_free == 64


def test_a_flush_empties_one_model_or_all() -> None:
    with running(model("a"), model("b")) as harness:
        for name in "ab":
            harness.engine.submit(request(name, ALPHABET[:9], 4, model=name))
            harness.mail.terminal(name)
        assert isinstance(harness.engine.flush("c").exception(PATIENCE), ModelNotFoundError)
        assert harness.engine.flush("a").result(PATIENCE) == 3
        state = harness.snapshot_when(lambda s: s.models["a"].pages_cached == 0)
        assert (state.models["a"].pages_free, state.models["b"].pages_cached) == (64, 3)
        assert harness.engine.flush().result(PATIENCE) == 3
        assert harness.engine.flush().result(PATIENCE) == 0
        state = harness.snapshot_when(lambda s: s.models["b"].pages_cached == 0)
        assert state.models["b"].pages_free == state.models["b"].pages_total
    with pytest.raises(UnavailableError):
        harness.engine.flush()


def test_a_flush_does_not_disturb_who_runs() -> None:
    gate = Gate()
    with running(NULL, before_step=gate) as harness:
        gate.let(1)
        harness.engine.submit(request("system", ALPHABET[:9], 1))
        harness.mail.terminal("system")
        gate.wait()
        harness.engine.submit(request("a", [*ALPHABET[:9], 1], 9))
        gate.wait()
        assert harness.engine.flush().result(PATIENCE) == 1  # two of the three pages are shared
        gate.let(99)
        assert harness.mail.terminal("a") == FinishedEvent(FinishReason.LENGTH, Usage(10, 9, 9))
        harness.engine.submit(request("b", [*ALPHABET[:9], 1], 9))
        assert harness.mail.terminal("b") == FinishedEvent(FinishReason.LENGTH, Usage(10, 9, 9))
        assert harness.mail.text("a") == harness.mail.text("b")
        assert harness.engine.flush().result(PATIENCE) == 5
        state = harness.snapshot_when(lambda s: s.models["null"].pages_cached == 0).models["null"]
        assert state.pages_free == state.pages_total


def test_the_engine_keeps_nothing_of_a_step_that_failed() -> None:
    faulty = [False, True, False]

    def step(batch: Batch) -> None:
        if faulty and faulty.pop(0):
            raise ExecutorError("the device fell over")

    with running(NULL, before_step=step, chunk_rows=6) as harness:
        harness.engine.submit(request("a", ALPHABET[:13], 4))
        assert isinstance(harness.mail.terminal("a"), FailedEvent)
        harness.engine.submit(request("b", ALPHABET[:13], 4))
        assert harness.mail.terminal("b") == FinishedEvent(FinishReason.LENGTH, Usage(13, 4, 6))


def test_a_flush_is_answered_when_the_engine_itself_fails() -> None:
    with running(NULL) as harness:
        with harness.mail._changed:  # holds the engine thread back at the end of its turn
            before = harness.engine.snapshot
            harness.engine.submit(request("refused", model="other"))
            harness.snapshot_when(lambda snapshot: snapshot is not before)
            harness.slots["null"].waiting = None  # type: ignore[assignment]
            harness.engine.submit(request("a"))
            freed = harness.engine.flush()
        assert isinstance(freed.exception(PATIENCE), UnavailableError)
