"""Who waits, how long, and what those are told who may not."""

from __future__ import annotations

import re
import threading
import time

import pytest

from engine.harness import NULL, Gate, Harness, model, running
from engine.null_slot import null_slot, request
from tierd.chat.stops import text_stream
from tierd.core import FailedEvent, FinishedEvent, Request, Sequence
from tierd.engine import queue
from tierd.engine.scheduler import schedule
from tierd.errors import BusyError, ContextLengthExceededError, QueueFullError, QueueTimeoutError
from tierd.settings import QueueSettings, ServerSettings, Settings
from tierd.slot import Slot


def settings(capacity: int = 64, timeout_s: float = 0.0) -> Settings:
    return Settings(queue=QueueSettings(capacity=capacity, timeout_s=timeout_s))


def busy(harness: Harness, request_id: str) -> BusyError:
    event = harness.mail.terminal(request_id)
    assert isinstance(event, FailedEvent)
    assert isinstance(event.error, BusyError)
    return event.error


def enqueue(slot: Slot, r: Request, submitted: float = 0.0) -> Sequence:
    sequence = Sequence(r, text_stream(slot.tokenizer, r.stop), list(r.prompt), submitted=submitted)
    slot.waiting.append(sequence)
    return sequence


@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize("at_once", [True, False], ids=["while the slot rests", "while a step runs"])
def test_a_hundred_requests_and_a_queue_of_sixteen(streams: int, at_once: bool) -> None:
    gate = Gate()
    with running(
        model("null", streams=streams), settings=settings(16), before_step=gate, pages=400
    ) as harness:
        if not at_once:
            harness.engine.submit(request("r0"))
            gate.wait()
        for i in range(0 if at_once else 1, 100):
            harness.engine.submit(request(f"r{i}"))
        refused = 100 - 16 - streams
        harness.mail.wait(lambda: len(harness.mail.terminals()) == refused)
        gate.let(1000)
        harness.mail.wait(lambda: len(harness.mail.terminals()) == 100)
        failed = [name for name in harness.mail.terminals() if not harness.mail.started(name)]
        assert failed == [f"r{i}" for i in range(16 + streams, 100)]
        assert all(isinstance(busy(harness, name), QueueFullError) for name in failed)
        value = harness.metrics.registry.get_sample_value(
            "tierd_requests_total", {"model": "null", "outcome": "queue_full"}
        )
        assert value == refused
        assert harness.rests()


def test_memory_fills_the_queue_as_streams_do() -> None:
    """Ten pages hold three requests of three; a fourth and a fifth wait for memory, a sixth is refused."""
    gate = Gate()
    with running(NULL, settings=settings(2), before_step=gate, pages=10) as harness:
        for i in range(6):
            harness.engine.submit(request(f"r{i}", b"1234567", 6))
        assert str(busy(harness, "r5")) == (
            "null: the queue is full (2 of 2 wait): the first in it waits for memory, "
            "its 7 tokens need 3 pages of K/V to begin, 1 are free; try again later"
        )
        gate.let(1000)
        for i in range(5):
            assert isinstance(harness.mail.terminal(f"r{i}"), FinishedEvent)


def test_without_a_queue_only_those_are_served_who_can_run() -> None:
    gate = Gate()
    with running(model("null", streams=1), settings=settings(0), before_step=gate) as harness:
        harness.engine.submit(request("runs"))
        harness.engine.submit(request("waits"))
        assert str(busy(harness, "waits")) == (
            "null: the queue is full (0 of 0 wait): all of the model's streams (1) are taken; try again later"
        )
        gate.let(100)
        harness.mail.terminal("runs")
        harness.engine.submit(request("runs too"))
        assert isinstance(harness.mail.terminal("runs too"), FinishedEvent)


def test_each_model_has_a_queue_of_its_own() -> None:
    gate = Gate()
    with running(
        model("a", streams=1), model("b", streams=1), settings=settings(1), before_step=gate
    ) as harness:
        for i in range(3):
            for name in "ab":
                harness.engine.submit(request(f"{name}{i}", model=name))
        for name in "ab":
            assert isinstance(busy(harness, f"{name}2"), QueueFullError)
        gate.let(1000)
        for name in ("a0", "a1", "b0", "b1"):
            assert isinstance(harness.mail.terminal(name), FinishedEvent)


def test_what_could_never_fit_is_refused_at_once() -> None:
    with running(NULL, pages=3, context=99) as harness:
        harness.engine.submit(request("a", b"1234567", 7))
        event = harness.mail.terminal("a")
        assert isinstance(event, FailedEvent)
        assert type(event.error) is ContextLengthExceededError
        assert str(event.error) == (
            "7 prompt tokens and 7 tokens of output need 4 pages of K/V, more than the 3 there are; "
            "shorten the prompt or lower max_tokens"
        )


def test_the_engine_may_be_told_to_wait_for_longer_than_a_lock_can() -> None:
    gate = Gate()
    longest = Settings(
        queue=QueueSettings(timeout_s=1e300), server=ServerSettings(reader_timeout_s=1e300, reader_backlog=1)
    )
    with running(model("null", streams=1), settings=longest, before_step=gate) as harness:
        harness.engine.submit(request("runs", max_tokens=2))
        gate.wait()
        harness.engine.submit(request("waits"))
        gate.let(1)
        harness.snapshot_when(lambda snapshot: snapshot.models["null"].paused == 1)
        harness.engine.cancel("runs")
        gate.let(1)
        harness.mail.wait(lambda: harness.mail.started("waits"))
        gate.let(100)


def test_who_waits_too_long_is_told_and_the_others_are_served_in_order() -> None:
    gate = Gate()
    with running(model("null", streams=1), settings=settings(timeout_s=0.2), before_step=gate) as harness:
        harness.engine.submit(request("runs", max_tokens=2))
        gate.wait()
        started = time.monotonic()
        harness.engine.submit(request("late"))
        error = busy(harness, "late")
        waited = time.monotonic() - started
        assert isinstance(error, QueueTimeoutError)
        assert str(error) == (
            "null: waited 0.2 s in the queue: all of the model's streams (1) are taken; try again later"
        )
        assert 0.2 <= waited < 2
        harness.engine.submit(request("first", max_tokens=1))
        harness.engine.submit(request("second", max_tokens=1))
        gate.let(100)
        for name in ("runs", "first", "second"):
            assert isinstance(harness.mail.terminal(name), FinishedEvent)
        ends = [
            name for call in harness.mail.calls for name, event in call if isinstance(event, FinishedEvent)
        ]
        assert ends == ["runs", "first", "second"]
        assert not harness.mail.started("late")
        sample = harness.metrics.registry.get_sample_value
        assert sample("tierd_requests_total", {"model": "null", "outcome": "queue_timeout"}) == 1
        assert sample("tierd_queue_wait_seconds_count", {"model": "null"}) == 4
        assert sample("tierd_queue_wait_seconds_bucket", {"model": "null", "le": "0.1"}) == 3


def test_waiting_takes_no_processor() -> None:
    others = set(threading.enumerate())
    gate = Gate()
    with running(model("null", streams=1), settings=settings(timeout_s=600), before_step=gate) as harness:
        harness.engine.submit(request("runs"))
        gate.wait()
        harness.engine.submit(request("waits"))
        harness.snapshot_when(lambda s: s.models["null"].waiting == 1)
        (engine,) = [t for t in set(threading.enumerate()) - others if t.name == "tierd-engine"]
        clock = time.pthread_getcpuclockid(engine.ident or 0)

        def used(over: float) -> float:
            before = time.clock_gettime(clock)
            time.sleep(over)
            return time.clock_gettime(clock) - before

        assert any(used(0.02) == 0 for _ in range(100))
        assert used(0.2) == 0
        gate.let(100)


def test_who_can_run_next_is_not_timed_out() -> None:
    slot = null_slot(model("null", streams=2), pages=6)
    limits = QueueSettings(timeout_s=5)
    for name in ("a", "b", "c"):
        enqueue(slot, request(name, b"1234567", 2), submitted=10.0)
    assert queue.ready(slot) == 2
    assert queue.deadline(slot, limits) == 15.0
    assert queue.overdue(slot, limits, 14.9) is None
    late = queue.overdue(slot, limits, 15.0)
    assert late is slot.waiting[2]
    schedule(slot)
    assert [s.request.id for s in slot.waiting] == ["c"]
    assert queue.ready(slot) == 0


def test_who_is_ready_is_counted_in_order_and_as_pages_allow() -> None:
    slot = null_slot(NULL, pages=5)
    enqueue(slot, request("two", b"1234567", 2))
    enqueue(slot, request("five", b"1234567890123", 12))
    enqueue(slot, request("one", b"12", 2))
    assert queue.ready(slot) == 1  # nobody overtakes
    assert queue.ready(slot) == 1  # nor does asking change anything
    assert queue.deadline(slot, QueueSettings(timeout_s=0)) is None


def test_retry_after_is_whole_seconds_from_measured_durations() -> None:
    slot = null_slot(model("null", streams=4))
    assert queue.retry_after(slot, 1, 0.0) == 1
    slot.running = [enqueue(slot, request(f"r{i}")) for i in range(4)]
    assert queue.retry_after(slot, 1, 2.0) == 1
    assert queue.retry_after(slot, 1, 10.0) == 3
    assert queue.retry_after(slot, 16, 10.0) == 40
    assert queue.retry_after(slot, 16, 1e9) == queue.LONGEST_RETRY_S


def test_retry_after_grows_with_what_requests_take() -> None:
    gate = Gate()
    with running(model("null", streams=1), settings=settings(0), before_step=gate) as harness:
        harness.engine.submit(request("a", max_tokens=1))
        gate.wait()
        time.sleep(1.1)
        gate.let()
        harness.mail.terminal("a")
        harness.engine.submit(request("b", max_tokens=1))
        gate.wait()
        harness.engine.submit(request("c"))
        assert busy(harness, "c").retry_after == 2
        gate.let()


def test_the_reason_is_logged_without_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tierd")
    gate = Gate()
    with running(model("null", streams=1), settings=settings(0), before_step=gate) as harness:
        harness.engine.submit(request("runs"))
        harness.engine.submit(request("refused", b"a secret"))
        busy(harness, "refused")
        gate.let(100)
    (line,) = [r.getMessage() for r in caplog.records if "request=refused" in r.getMessage()]
    assert re.fullmatch(
        r"request=refused model=null prompt=8 .*generated=0 queue_ms=- ttft_ms=- total_ms=[\d.]+ "
        r"outcome=queue_full error=.null: .*",
        line,
    )
    assert "secret" not in caplog.text
