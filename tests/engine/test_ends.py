"""Every request ends exactly once, whatever befalls it, and leaves nothing behind."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from engine.harness import PATIENCE, Gate, Harness, model, running
from engine.null_slot import request
from tierd.core import (
    Batch,
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    StartedEvent,
    TerminalEvent,
    TextEvent,
)
from tierd.engine import Engine
from tierd.engine.models import Models
from tierd.engine.streams import Streams
from tierd.errors import (
    ExecutorError,
    QueueFullError,
    QueueTimeoutError,
    SlowReaderError,
    UnavailableError,
)
from tierd.settings import QueueSettings, ServerSettings, Settings

CLIENTS = 6
ROUNDS = 60
BURST = 12
FAILING = 40  # every so many steps
SETTINGS = Settings(
    queue=QueueSettings(capacity=10, timeout_s=0.04),
    server=ServerSettings(reader_backlog=4, reader_timeout_s=0.06),
)


class Faulty:
    """Lets steps take some time, and one in `FAILING` fail."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0

    def __call__(self, batch: Batch) -> None:
        time.sleep(0.0002)
        with self._lock:
            self._steps += 1
            fails = self._steps % FAILING == 0
        if fails:
            raise RuntimeError("a fault")


class Client:
    """One of several threads that ask, cancel, read, do not read, and flush, as their dice say."""

    def __init__(self, harness: Harness, name: str, seed: int) -> None:
        self.asked: list[Request] = []
        self._harness = harness
        self._name = name
        self._dice = random.Random(f"{seed}/{name}")

    def run(self) -> None:
        for round in range(ROUNDS):
            for _ in range(BURST if self._dice.random() < 0.1 else 1):
                self._one()
            if round % 8 == 7:
                self._harness.engine.flush(self._dice.choice([None, "a", "b"])).result(PATIENCE)

    def _one(self) -> None:
        dice, engine = self._dice, self._harness.engine
        prompt = [dice.choice(b"xy") for _ in range(dice.randint(1, 20))]
        asked = request(
            f"{self._name}-{len(self.asked)}", prompt, dice.randint(1, 25), model=dice.choice("ab")
        )
        self.asked.append(asked)
        engine.submit(asked)
        match dice.choice(["cancel", "read", "read", "read", "ignore"]):
            case "cancel":
                time.sleep(dice.choice([0, 0.001, 0.01]))
                for _ in range(dice.randint(1, 2)):
                    engine.cancel(asked.id)
            case "read":
                for _ in range(7):
                    time.sleep(0.002)
                    engine.taken(asked.id, 4)


def outcome(event: TerminalEvent) -> FinishReason | type[Exception]:
    return event.reason if isinstance(event, FinishedEvent) else type(event.error)


@pytest.mark.parametrize(("seed", "depth"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)])
def test_every_request_ends_once_and_leaves_nothing_behind(seed: int, depth: int) -> None:
    with running(
        model("a", streams=3),
        model("b", streams=2, weight=3),
        settings=SETTINGS,
        pages=20,
        chunk_rows=5,
        depth=depth,
        before_step=Faulty(),
    ) as harness:
        clients = [Client(harness, f"c{i}", seed) for i in range(CLIENTS)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The end comes while some still run, some wait, and some are yet to come.
        last = Client(harness, "last", seed)
        for _ in range(BURST):
            last._one()
        drained = harness.engine.drain()
        late = Client(harness, "late", seed)
        for _ in range(3):
            late._one()
        drained.result(PATIENCE)
        asked = {one.id: one for client in (*clients, last, late) for one in client.asked}
        harness.mail.wait(lambda: len(harness.mail.terminals()) >= len(asked))
        harness.snapshot_when(lambda _: harness.rests())
        harness.engine.flush().result(PATIENCE)
        harness.snapshot_when(
            lambda snapshot: all(m.pages_free == m.pages_total for m in snapshot.models.values())
        )
        for slot in harness.slots.values():
            assert not slot.waiting
            assert not slot.running
    check_events(harness, asked)


def check_events(harness: Harness, asked: dict[str, Request]) -> None:
    events: dict[str, list[Event]] = defaultdict(list)
    for name, event in (pair for call in harness.mail.calls for pair in call):
        events[name].append(event)
    assert events.keys() == asked.keys()
    ends: Counter[FinishReason | type[Exception]] = Counter()
    texts: dict[tuple[tuple[int, ...], int], set[str]] = defaultdict(set)
    for name, told in events.items():
        *before, end = told
        assert isinstance(end, TerminalEvent)
        assert not any(isinstance(event, TerminalEvent) for event in before)
        assert not any(isinstance(event, StartedEvent) for event in before[1:])
        if isinstance(end, FailedEvent) and isinstance(end.error, QueueFullError | QueueTimeoutError):
            assert before == []
        ends[outcome(end)] += 1
        if outcome(end) is FinishReason.LENGTH:
            text = "".join(event.text for event in before if isinstance(event, TextEvent))
            texts[asked[name].prompt, asked[name].max_tokens].add(text)
    assert all(len(same) == 1 for same in texts.values())
    assert ends.keys() == {
        FinishReason.LENGTH, FinishReason.CANCELLED, ExecutorError, QueueFullError, QueueTimeoutError,
        SlowReaderError, UnavailableError,
    }  # fmt: skip
    counted = sum(
        sample.value
        for metric in harness.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "tierd_requests_total"
    )
    assert counted == len(asked) == sum(ends.values())


WISHES: dict[str, tuple[type, str, Callable[[Engine], Future[Any]]]] = {
    "load": (Models, "load", lambda engine: engine.load(model("other"))),
    "unload": (Models, "unload", lambda engine: engine.unload("null")),
    "activate": (Models, "activate", lambda engine: engine.activate("null")),
    "flush": (Models, "flush", lambda engine: engine.flush()),
    "drain": (Models, "close", lambda engine: engine.drain()),
    "resume": (Models, "reopen", lambda engine: engine.resume()),
    "configure": (Streams, "configure", lambda engine: engine.configure(Settings())),
}


def fault(*_: object, **__: object) -> None:
    raise RuntimeError("a fault of the engine")


@pytest.mark.parametrize("name", WISHES)
def test_who_meets_a_fault_of_the_engine_is_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, part, wish = WISHES[name]
    with running(model("null", default=True)) as house:
        monkeypatch.setattr(owner, part, fault)
        assert isinstance(wish(house.engine).exception(PATIENCE), UnavailableError)


def test_so_are_those_whose_request_meets_it_and_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with running(model("null", default=True), before_step=gate) as house:
        house.engine.submit(request("a", b"a", 9))
        gate.wait()
        monkeypatch.setattr(Streams, "begin", fault)
        house.engine.submit(request("b", b"b", 9))
        house.engine.submit(request("c", b"c", 9))
        gate.let(99)
        for id in "abc":
            end = house.mail.terminal(id)
            assert isinstance(end, FailedEvent)
            assert isinstance(end.error, UnavailableError)
