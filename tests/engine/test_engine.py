from __future__ import annotations

import logging
import random
import re
import threading
import time
from functools import partial

import pytest

from engine.harness import NULL, PATIENCE, Gate, Harness, model, running
from engine.null_slot import null_slot, request
from tierd.backends.null import NullExecutor
from tierd.core import (
    Batch,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    StartedEvent,
    TextEvent,
    Usage,
)
from tierd.errors import (
    ConflictError,
    ContextLengthExceededError,
    ExecutorError,
    InvalidRequestError,
    ModelError,
    ModelNotFoundError,
    UnavailableError,
)
from tierd.kv.paged import PagedHome
from tierd.settings import ModelSettings
from tierd.slot import Slot


def failure(harness: Harness, request_id: str) -> Exception:
    event = harness.mail.terminal(request_id)
    assert isinstance(event, FailedEvent)
    return event.error


def test_a_stream_from_submit_to_finish() -> None:
    with running(NULL) as harness:
        harness.engine.submit(request("a", b"hello", 20))
        assert harness.mail.terminal("a") == FinishedEvent(FinishReason.LENGTH, Usage(5, 20))
        *texts, _ = harness.mail.events("a")
        assert len(texts) > 10
        assert all(isinstance(event, TextEvent) and event.text for event in texts)
        assert harness.rests()


def test_the_answer_depends_on_the_request_alone() -> None:
    requests = [
        request(f"r{i}", bytes(range(i, 2 * i + 1)), 12, temperature=i % 2, seed=i) for i in range(12)
    ]
    alone, together = [], []
    with running(NULL, chunk_rows=64) as harness:
        for r in requests:
            harness.engine.submit(r)
            harness.mail.terminal(r.id)
            alone.append(harness.mail.text(r.id))
    with running(model("null", streams=5), chunk_rows=7) as harness:
        for r in requests:
            harness.engine.submit(r)
        for r in requests:
            harness.mail.terminal(r.id)
            together.append(harness.mail.text(r.id))
    assert alone == together
    assert len(set(alone)) == len(alone)


def test_one_delivery_for_all_events_of_a_step() -> None:
    gate = Gate()
    with running(NULL, before_step=gate) as harness:
        harness.engine.submit(request("first", b"1", 1))
        gate.wait()
        for name in "abc":
            harness.engine.submit(request(name, b"x" + name.encode(), 2))
        harness.snapshot_when(lambda s: s.models["null"].waiting == 3)
        gate.let(3)
        for name in "abc":
            harness.mail.terminal(name)
        calls = [
            {name for name, event in call if not isinstance(event, StartedEvent)}
            for call in harness.mail.calls
        ]
        assert [call for call in calls if call] == [{"first"}, {"a", "b", "c"}, {"a", "b", "c"}]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_cancelled_or_not_every_request_ends_once(seed: int, depth: int) -> None:
    """Cancels come from other threads, at times of their own, into queue, prefill, generation and flight."""
    dice = random.Random(seed)
    count = 60
    with running(model("null", streams=4), pages=24, chunk_rows=3, depth=depth) as harness:
        plans = [
            [
                (
                    request(
                        f"{client}-{i}",
                        dice.randbytes(dice.randint(1, 20)),
                        dice.randint(1, 30),
                        temperature=1.0,
                        ignore_eos=dice.random() < 0.5,
                    ),
                    dice.choice([None, None, 0, 1, 20, 200]),
                )
                for i in range(count // 3)
            ]
            for client in range(3)
        ]

        def client(plan: list[tuple[Request, int | None]]) -> None:
            for r, delay in plan:
                harness.engine.submit(r)
                if delay is not None:
                    for _ in range(delay):
                        time.sleep(0)
                    harness.engine.cancel(r.id)

        threads = [threading.Thread(target=client, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        harness.mail.wait(lambda: len(harness.mail.terminals()) == count)
        harness.snapshot_when(lambda _: harness.rests())
        terminals = harness.mail.terminals()
    assert all(len(events) == 1 for events in terminals.values())
    reasons = {events[0].reason for events in terminals.values() if isinstance(events[0], FinishedEvent)}
    assert FinishReason.LENGTH in reasons
    assert FinishReason.CANCELLED in reasons
    assert not any(isinstance(events[0], FailedEvent) for events in terminals.values())


def test_a_request_can_be_ended_as_if_its_model_had() -> None:
    gate = Gate()
    with running(model("null", streams=2), before_step=gate, chunk_rows=4) as harness:
        for name in ("generates", "queues", "third"):
            harness.engine.submit(request(name, b"12", 9))
        gate.wait()
        for _ in range(3):
            gate.let()
            gate.wait()
        for name in ("queues", "generates", "third"):
            harness.engine.finish(name)
            event = harness.mail.terminal(name)
            assert isinstance(event, FinishedEvent)
            assert event.reason is FinishReason.STOP
            assert event.usage == Usage(2, 0 if name == "third" else 3)
        assert event.usage.prompt_s == event.usage.generation_s == 0
        gate.let()
        harness.snapshot_when(lambda _: harness.rests())
        harness.engine.finish("generates")
        harness.engine.finish("nobody")
    assert all(len(events) == 1 for events in harness.mail.terminals().values())


def test_an_end_says_how_long_prompt_and_answer_took() -> None:
    with running(NULL, before_step=lambda _: time.sleep(0.01), chunk_rows=4) as harness:
        harness.engine.submit(request("a", bytes(12), 4))
        end = harness.mail.terminal("a")
        assert isinstance(end, FinishedEvent)
        texts = [event for event in harness.mail.events("a") if isinstance(event, TextEvent)]
    assert 0.03 <= end.usage.prompt_s < 5  # three steps
    assert 0.03 <= end.usage.generation_s < 5  # three more tokens
    counts = [text.generated for text in texts]
    assert counts == sorted(set(counts))
    assert counts[-1] <= 4


def test_a_cancel_is_answered_while_a_step_runs() -> None:
    gate = Gate()
    with running(model("null", streams=2), before_step=gate, chunk_rows=4) as harness:
        for name in ("generates", "prefills", "queues"):
            harness.engine.submit(request(name, b"123456" if name == "prefills" else b"12", 9))
        gate.wait()
        harness.snapshot_when(lambda s: s.models["null"].running == 2 and s.models["null"].waiting == 1)
        for name in ("queues", "prefills", "generates"):
            harness.engine.cancel(name)
            assert harness.mail.terminal(name) == FinishedEvent(
                FinishReason.CANCELLED, Usage(6 if name == "prefills" else 2, 0)
            )
        state = harness.engine.snapshot.models["null"]
        assert (state.running, state.waiting) == (0, 0)
        assert state.pages_used > 0
        gate.let()
        harness.snapshot_when(lambda _: harness.rests())
        harness.engine.cancel("generates")
        harness.engine.cancel("nobody")
    assert all(len(events) == 1 for events in harness.mail.terminals().values())


def test_requests_that_come_while_a_step_runs_join_the_next_one() -> None:
    gate = Gate()
    sizes: list[int] = []

    def watch(batch: Batch) -> None:
        sizes.append(len(batch.chunks))
        gate(batch)

    with running(NULL, before_step=watch) as harness:
        harness.engine.submit(request("a", max_tokens=3))
        gate.wait()
        harness.engine.submit(request("b", max_tokens=1))
        harness.snapshot_when(lambda s: s.models["null"].waiting == 1)
        gate.let(3)
        harness.mail.terminal("a")
    assert sizes == [1, 2, 1]


def test_a_failed_step_ends_its_own_streams_only() -> None:
    faulty = threading.Event()
    gate = Gate()

    def step(batch: Batch) -> None:
        gate(batch)
        if faulty.is_set():
            faulty.clear()
            raise RuntimeError("the device fell over")

    with running(model("null", streams=2), before_step=step) as harness:
        for name in ("a", "b", "c"):
            harness.engine.submit(request(name))
        gate.wait()
        harness.snapshot_when(lambda s: s.models["null"].waiting == 1)
        gate.let()
        gate.wait()
        faulty.set()
        gate.let(99)
        for name in ("a", "b"):
            error = failure(harness, name)
            assert type(error) is ExecutorError
            assert str(error) == "null: RuntimeError in a step: the device fell over; try again"
        assert isinstance(harness.mail.terminal("c"), FinishedEvent)
        assert harness.rests()


def test_an_error_of_the_executor_arrives_as_it_is() -> None:
    error = ExecutorError("no luck today")

    def step(batch: Batch) -> None:
        raise error

    with running(NULL, before_step=step) as harness:
        harness.engine.submit(request("a"))
        assert failure(harness, "a") is error
        assert harness.rests()


def test_a_stream_cancelled_in_a_step_that_fails_ends_once() -> None:
    gate = Gate()

    def step(batch: Batch) -> None:
        gate(batch)
        raise ExecutorError("too late")

    with running(NULL, before_step=step) as harness:
        harness.engine.submit(request("a"))
        gate.wait()
        harness.engine.cancel("a")
        harness.mail.terminal("a")
        gate.let()
        harness.snapshot_when(lambda _: harness.rests())
    assert len(harness.mail.terminals()["a"]) == 1


@pytest.mark.parametrize(
    ("faulty", "kind", "words"),
    [
        (request("a", model="other"), ModelNotFoundError, "there is no model 'other'; models served: null"),
        (request("a", b"1234567", 4), ContextLengthExceededError, "7 prompt tokens and 4 tokens of output"),
        (request("a", b""), InvalidRequestError, "at least one prompt token"),
        (request("a", b"1", -1), InvalidRequestError, "no less than 0 of output"),
        (request("a", [1, 258]), InvalidRequestError, "outside 0 to 257"),
        (request("a", [-1]), InvalidRequestError, "outside 0 to 257"),
        (request("a", b"1", 2, stop=("",)), InvalidRequestError, "empty"),
    ],
)
def test_what_cannot_be_served_is_refused_and_harms_nobody(
    faulty: Request, kind: type[Exception], words: str
) -> None:
    with running(NULL, context=10) as harness:
        harness.engine.submit(request("good", b"123", 7))
        harness.engine.submit(faulty)
        error = failure(harness, "a")
        assert type(error) is kind
        assert words in str(error)
        assert isinstance(harness.mail.terminal("good"), FinishedEvent)
        assert harness.rests()


def test_stopping_ends_every_stream_and_frees_everything() -> None:
    before = set(threading.enumerate())
    gate = Gate()
    with running(model("null", streams=2), before_step=gate) as harness:
        for name in "abcd":
            harness.engine.submit(request(name))
        gate.wait()
        harness.snapshot_when(lambda s: s.models["null"].waiting == 2)
        stopper = threading.Thread(target=harness.engine.stop, args=(PATIENCE,))
        stopper.start()
        for name in "abcd":
            assert isinstance(failure(harness, name), UnavailableError)
        assert not harness.engine.catalogue
        assert not harness.slots["null"].executor.closed  # type: ignore[attr-defined]
        with pytest.raises(UnavailableError):
            harness.engine.submit(request("late"))
        with pytest.raises(UnavailableError):
            harness.engine.load(model("late"))
        harness.engine.cancel("a")
        gate.let()
        stopper.join(PATIENCE)
        assert harness.slots["null"].executor.closed  # type: ignore[attr-defined]
        assert harness.rests()
        harness.engine.stop(0)
    assert all(len(events) == 1 for events in harness.mail.terminals().values())
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("tierd-")]


def test_a_step_that_hangs_does_not_hang_the_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with running(NULL, before_step=gate) as harness:
        harness.engine.submit(request("a"))
        gate.wait()
        assert not harness.engine.stop(0.2)
        assert "left behind" in caplog.text
        began = time.monotonic()
        assert not harness.engine.stop(0.2)
        assert time.monotonic() - began < 0.2
        assert caplog.text.count("left behind") == 1
        assert isinstance(failure(harness, "a"), UnavailableError)
        gate.let()
        assert harness.engine.stop(PATIENCE)


def test_an_engine_that_never_ran_refuses_and_stops() -> None:
    harness = Harness()
    with pytest.raises(UnavailableError):
        harness.engine.submit(request("a"))
    harness.engine.cancel("a")
    harness.engine.stop(PATIENCE)


class SlowOpener:
    """Opens a model called "slow" only once it is told to go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, settings: ModelSettings) -> Slot:
        assert settings.id != "slow" or self.go_on.wait(PATIENCE)
        return null_slot(settings)


def test_models_are_opened_in_workers_and_listed_when_ready() -> None:
    opener = SlowOpener()
    with running(open_slot=opener) as harness:
        slow = harness.engine.load(model("slow", default=True))
        entry = harness.engine.load(model("quick")).result(PATIENCE)
        assert (entry.id, entry.architecture, entry.context) == ("quick", "null", 256)
        assert harness.engine.catalogue.resolve("quick") is entry
        assert harness.engine.catalogue.loading == ("slow",)
        for name in ("slow", None):
            with pytest.raises(UnavailableError):
                harness.engine.catalogue.resolve(name)
        harness.engine.submit(request("early", model="slow"))
        assert isinstance(failure(harness, "early"), UnavailableError)
        assert isinstance(harness.engine.load(model("slow")).exception(PATIENCE), ConflictError)
        opener.go_on.set()
        assert slow.result(PATIENCE) is harness.engine.catalogue.resolve(None)
        assert isinstance(harness.engine.load(model("slow")).exception(PATIENCE), ConflictError)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (ModelError("bad file"), "bad file"),
        (ZeroDivisionError("oh"), "bad: ZeroDivisionError while it was loaded: oh"),
    ],
)
def test_a_model_that_cannot_be_opened_harms_nobody(raised: Exception, words: str) -> None:
    def open_slot(settings: ModelSettings) -> Slot:
        if settings.id == "bad":
            raise raised
        return null_slot(settings)

    with running(NULL, open_slot=open_slot) as harness:
        error = harness.engine.load(model("bad")).exception(PATIENCE)
        assert type(error) is ModelError
        assert str(error) == words
        assert list(harness.engine.catalogue.entries) == ["null"]
        assert harness.engine.catalogue.loading == ()
        harness.engine.submit(request("a"))
        assert isinstance(harness.mail.terminal("a"), FinishedEvent)


def test_a_model_that_is_ready_after_the_stop_is_closed() -> None:
    opener = SlowOpener()
    with running(open_slot=opener) as harness:
        future = harness.engine.load(model("slow"))
        harness.engine.stop(0)
        opener.go_on.set()
        assert isinstance(future.exception(PATIENCE), UnavailableError)
        assert harness.slots["slow"].executor.closed  # type: ignore[attr-defined]


def test_a_reader_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with running(NULL) as harness:
        harness.mail.broken = True
        harness.engine.submit(request("lost", max_tokens=1))
        harness.snapshot_when(lambda _: "could not be delivered" in caplog.text)
        harness.mail.broken = False
        harness.engine.submit(request("a"))
        assert isinstance(harness.mail.terminal("a"), FinishedEvent)


def test_when_the_engine_itself_fails_everyone_is_told(caplog: pytest.LogCaptureFixture) -> None:
    gate, opener = Gate(), SlowOpener()

    def open_slot(settings: ModelSettings) -> Slot:
        slot = opener(settings)
        slot.home = PagedHome(NullExecutor(pages=64, before_step=gate))
        return slot

    with running(NULL, open_slot=open_slot) as harness:
        slow = harness.engine.load(model("slow"))
        harness.engine.submit(request("a"))
        gate.wait()
        harness.slots["null"].waiting = None  # type: ignore[assignment]
        harness.engine.submit(request("b"))
        for name in ("a", "b"):
            assert isinstance(failure(harness, name), UnavailableError)
        assert isinstance(slow.exception(PATIENCE), UnavailableError)
        assert not harness.engine.catalogue
        assert "the engine thread has failed" in caplog.text
        with pytest.raises(UnavailableError):
            harness.engine.submit(request("c"))
        opener.go_on.set()
        gate.let()


def test_an_idle_engine_uses_no_processor() -> None:
    others = set(threading.enumerate())
    with running(NULL) as harness:
        harness.engine.submit(request("a"))
        harness.mail.terminal("a")
        threads = {t.name: t.ident for t in set(threading.enumerate()) - others}
        assert sorted(threads) == ["tierd-engine", "tierd-null"]

        def used(over: float) -> float:
            """Return the seconds of processor time that the engine takes over so many seconds."""
            clocks = [time.pthread_getcpuclockid(ident or 0) for ident in threads.values()]
            before = sum(map(time.clock_gettime, clocks))
            time.sleep(over)
            return sum(map(time.clock_gettime, clocks)) - before

        assert any(used(0.02) == 0 for _ in range(100))  # it comes to rest
        assert used(0.2) == 0


def test_one_line_at_each_end_and_no_word_of_the_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tierd")
    with running(NULL) as harness:
        harness.engine.submit(request("done", b"a secret", 4))
        harness.mail.terminal("done")
        harness.engine.submit(request("refused", b"a secret", 4000))
        harness.mail.terminal("refused")
        secret = harness.mail.text("done")
    (line,) = [r.getMessage() for r in caplog.records if "done" in r.getMessage()]
    assert re.fullmatch(
        r"request=done model=null prompt=8 cached=0 generated=4 "
        r"queue_ms=[\d.]+ ttft_ms=[\d.]+ total_ms=[\d.]+ outcome=length",
        line,
    )
    (line,) = [r.getMessage() for r in caplog.records if "request=refused" in r.getMessage()]
    assert re.fullmatch(
        r"request=refused model=null prompt=8 cached=0 generated=0 queue_ms=- ttft_ms=- total_ms=[\d.]+ "
        r"outcome=refused error=.8 prompt tokens and 4000 tokens of output do not fit .*",
        line,
    )
    assert "secret" not in caplog.text
    assert secret not in caplog.text


def test_the_metrics_tell_what_happened() -> None:
    gate = Gate()
    with running(NULL, before_step=gate, chunk_rows=4) as harness:
        harness.engine.submit(request("a", b"123456", 3))
        gate.wait()
        harness.engine.submit(request("b", b"12", 9))
        harness.snapshot_when(lambda s: s.models["null"].waiting == 1)
        sample = partial(harness.metrics.registry.get_sample_value, labels={"model": "null"})
        assert sample("tierd_requests_running") == sample("tierd_requests_waiting") == 1
        assert (sample("tierd_kv_pages_used"), sample("tierd_kv_pages")) == (1, 64)
        harness.engine.cancel("b")
        gate.let(99)
        harness.mail.terminal("a")
        harness.mail.terminal("b")
        harness.snapshot_when(lambda _: harness.rests())
        assert sample("tierd_prompt_tokens_total") == 6
        assert sample("tierd_generated_tokens_total") == 3
        assert sample("tierd_step_rows_count") == sample("tierd_step_duration_seconds_count") == 4
        assert sample("tierd_step_rows_sum") == 6 + 2
        assert sample("tierd_time_to_first_token_seconds_count") == 1
        assert sample("tierd_inter_token_seconds_count") == 2
        assert sample("tierd_request_duration_seconds_count") == 2
        for outcome in ("length", "cancelled"):
            value = harness.metrics.registry.get_sample_value(
                "tierd_requests_total", {"model": "null", "outcome": outcome}
            )
            assert value == 1
        assert sample("tierd_requests_running") == sample("tierd_requests_waiting") == 0
        assert sample("tierd_kv_pages_used") == 0
