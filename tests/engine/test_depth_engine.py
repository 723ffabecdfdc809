"""A running engine over an executor that takes two steps at a time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from engine.harness import NULL, PATIENCE, Gate, Harness, model, running
from engine.null_slot import PAGE_POSITIONS, ByteTokenizer, null_slot, request
from tierd.backends.null import NullExecutor
from tierd.backends.protocol import LogitsResult
from tierd.core import (
    Batch,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    SamplingParams,
    TextEvent,
    Usage,
)
from tierd.errors import ExecutorError, UnavailableError
from tierd.kv.paged import PagedHome
from tierd.settings import ModelSettings, ServerSettings, Settings
from tierd.slot import Slot

LETTERS = tuple(map(chr, range(0x20, 0x40)))


class Recorder(NullExecutor):
    """Writes down what it is asked for; refuses the steps of these numbers."""

    def __init__(self, *, refuses: tuple[int, ...] = (), **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.log: list[tuple[str, int]] = []
        self.fed = 0
        self._refuses = refuses
        self._asked = self._begun = 0

    def submit(self, batch: Batch) -> None:
        self._asked += 1
        if self._asked in self._refuses:
            raise ExecutorError("no room on the device")
        super().submit(batch)
        self.fed += batch.rows
        self.log.append(("submitted", sum(name == "submitted" for name, _ in self.log)))

    def collect(self) -> LogitsResult:
        result = super().collect()
        self.log.append(("collected", self._begun))
        self._begun += 1
        return result


def recorded(settings: ModelSettings, **options: object) -> Slot:
    """Return a null slot of depth 2 whose executor is a recorder."""
    slot = null_slot(settings, depth=2)
    slot.home = PagedHome(
        Recorder(
            pages=64,
            page_positions=PAGE_POSITIONS,
            max_rows=slot.executor.max_rows,
            vocabulary=ByteTokenizer.vocabulary,
            depth=2,
            **options,
        )
    )
    return slot


def recorder(harness: Harness) -> Recorder:
    executor = harness.slots["null"].executor
    assert isinstance(executor, Recorder)
    return executor


def test_each_step_is_given_before_the_last_one_is_collected() -> None:
    """No step of greedy decoding passes the gate before the next one lies behind it.

    One row is lost: the one behind the token with which the second stream stops.
    """
    gate = Gate()
    with running(NULL, open_slot=lambda settings: recorded(settings, before_step=gate)) as harness:
        harness.engine.submit(request("a", b"abc", 20))
        gate.wait()
        harness.engine.submit(request("b", b"xyz", 20, stop=LETTERS))
        for step in range(20):
            if step < 19:
                harness.snapshot_when(lambda _, step=step: ("submitted", step + 1) in recorder(harness).log)
            gate.let()
            if step < 19:
                gate.wait()
        assert harness.mail.terminal("a") == FinishedEvent(FinishReason.LENGTH, Usage(3, 20))
        stopped = harness.mail.terminal("b")
        harness.snapshot_when(lambda _: harness.rests())
        log = recorder(harness).log
    assert all(log.index(("submitted", n + 1)) < log.index(("collected", n)) for n in range(19))
    assert isinstance(stopped, FinishedEvent)
    assert stopped.reason is FinishReason.STOP
    assert stopped.usage.completion_tokens < 16
    assert recorder(harness).fed == 3 + 19 + 3 + stopped.usage.completion_tokens - 1 + 1
    discarded = harness.metrics.registry.get_sample_value("tierd_rows_discarded_total", {"model": "null"})
    assert discarded == 1


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_step_that_is_not_taken_ends_its_streams_only(refused: int) -> None:
    gate = Gate()
    with running(
        model("null", streams=2),
        open_slot=lambda settings: recorded(settings, refuses=(refused,), before_step=gate),
    ) as harness:
        for name in "abc":
            harness.engine.submit(request(name, b"12" + name.encode(), 9))
        gate.let(99)
        ends = {name: harness.mail.terminal(name) for name in "abc"}
        harness.snapshot_when(lambda _: harness.rests())
        errors = {name: str(end.error) for name, end in ends.items() if isinstance(end, FailedEvent)}
        assert set(errors.values()) == {"no room on the device"}
        assert set(errors) <= {"a", "b"}
        harness.engine.submit(request("again", b"12a", 9))
        assert isinstance(harness.mail.terminal("again"), FinishedEvent)
    assert all(len(events) == 1 for events in harness.mail.terminals().values())


def test_a_stream_whose_row_is_void_survives_a_failed_step() -> None:
    """Random draws are left to the sampler, so what was fed ahead of them is void when that step fails."""
    gate = Gate()
    fails = threading.Event()

    def step(batch: Batch) -> None:
        gate(batch)
        if fails.is_set():
            fails.clear()
            raise ExecutorError("a fault")

    with running(NULL, depth=2, before_step=step) as harness:
        harness.engine.submit(request("lots", b"abc", 9, temperature=1.0, seed=3))
        gate.wait()
        harness.snapshot_when(lambda _: len(harness.slots["null"].steps) == 2)
        gate.let()
        gate.wait()
        fails.set()
        gate.let(99)
        assert harness.mail.terminal("lots") == FinishedEvent(FinishReason.LENGTH, Usage(3, 9))
        assert not fails.is_set()
        harness.engine.submit(request("again", b"abc", 9, temperature=1.0, seed=3))
        harness.mail.terminal("again")
        assert harness.mail.text("again") == harness.mail.text("lots")


def test_stopping_waits_for_both_steps() -> None:
    gate = Gate()
    with running(NULL, depth=2, before_step=gate) as harness:
        for name in "ab":
            harness.engine.submit(request(name))
        gate.wait()
        harness.snapshot_when(lambda _: len(harness.slots["null"].steps) == 2)
        stopper = threading.Thread(target=harness.engine.stop, args=(PATIENCE,))
        stopper.start()
        for name in "ab":
            event = harness.mail.terminal(name)
            assert isinstance(event, FailedEvent)
            assert isinstance(event.error, UnavailableError)
        gate.let()
        gate.wait()
        assert not harness.slots["null"].executor.closed  # type: ignore[attr-defined]
        gate.let()
        stopper.join(PATIENCE)
        assert harness.slots["null"].executor.closed  # type: ignore[attr-defined]
        assert harness.rests()


def test_a_drain_lets_what_is_in_flight_finish() -> None:
    gate = Gate()
    with running(NULL, depth=2, before_step=gate) as harness:
        harness.engine.submit(request("a", max_tokens=5))
        gate.wait()
        drained = harness.engine.drain()
        gate.let(99)
        assert harness.mail.terminal("a") == FinishedEvent(FinishReason.LENGTH, Usage(8, 5))
        drained.result(PATIENCE)


def test_a_cancel_is_answered_while_both_steps_are_in_flight() -> None:
    gate = Gate()
    with running(NULL, depth=2, before_step=gate) as harness:
        harness.engine.submit(request("a", b"abc", 9))
        gate.wait()
        harness.snapshot_when(lambda _: len(harness.slots["null"].steps) == 2)
        harness.engine.cancel("a")
        assert harness.mail.terminal("a") == FinishedEvent(FinishReason.CANCELLED, Usage(3, 0))
        assert harness.engine.snapshot.models["null"].pages_used == 1
        gate.let()
        gate.wait()
        assert not harness.rests()
        gate.let()
        harness.snapshot_when(lambda _: harness.rests())


def mixed(dice: random.Random, count: int) -> list[Request]:
    asked = []
    for i in range(count):
        prompt = [*b"abcdef"[: dice.randint(0, 6)], *dice.randbytes(dice.randint(1, 9))]
        stop, ignore = LETTERS * dice.randint(0, 1), dice.random() < 0.5
        r = request(f"r{i}", prompt, dice.randint(1, 30), stop=stop, ignore_eos=ignore)
        sampling = SamplingParams(
            temperature=dice.choice([0, 0, 1]), seed=i, frequency_penalty=dice.choice([0.0, 0.0, 0.3])
        )
        asked.append(replace(r, sampling=sampling))
    return asked


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_the_same_whoever_cancels_and_however_slow_the_readers(seed: int) -> None:
    """Streams are cancelled at any time, and paused: their clients take a text now and then."""
    asked = mixed(random.Random(seed), 60)
    with running(model("null", streams=4), pages=60) as harness:
        for r in asked:
            harness.engine.submit(r)
        expected = {r.id: (harness.mail.terminal(r.id), harness.mail.text(r.id)) for r in asked}

    settings = Settings(server=ServerSettings(reader_backlog=3, reader_timeout_s=PATIENCE))
    with running(model("null", streams=4), pages=60, chunk_rows=5, depth=2, settings=settings) as harness:
        dice, open_ids = random.Random(f"{seed}/slow"), [r.id for r in asked]
        cancelled, taken = set(dice.sample(open_ids, 15)), Counter[str]()
        for r in asked:
            harness.engine.submit(r)
        harness.snapshot_when(lambda s: s.models["null"].paused == 4)
        while open_ids:
            for name in dice.sample(open_ids, len(open_ids)):
                count = dice.randint(
                    0, sum(isinstance(e, TextEvent) for e in harness.mail.events(name)) - taken[name]
                )
                harness.engine.taken(name, count)
                taken[name] += count
                if name in cancelled and dice.random() < 0.02:
                    harness.engine.cancel(name)
            time.sleep(0.0005)
            open_ids = [name for name in open_ids if not harness.mail.terminals().get(name)]
        harness.snapshot_when(lambda _: harness.rests())
        ends: Counter[FinishReason] = Counter()
        for name, (end, text) in expected.items():
            got = harness.mail.terminal(name)
            assert isinstance(got, FinishedEvent)
            assert isinstance(end, FinishedEvent)
            ends[got.reason] += 1
            if got.reason is FinishReason.CANCELLED:
                assert text.startswith(harness.mail.text(name))
            else:
                assert (got.reason, harness.mail.text(name)) == (end.reason, text)
                assert got.usage.completion_tokens == end.usage.completion_tokens
    assert set(ends) == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED}
