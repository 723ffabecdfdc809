"""Models share a device by weight, in time; one steps while the tokens of another are picked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping

import pytest

from engine.harness import PATIENCE, Gate, model, running
from engine.null_slot import null_slot, request
from tierd.core import Batch, FinishedEvent
from tierd.engine.turns import DEPTH, Turns
from tierd.settings import ModelSettings
from tierd.slot import Slot


def simulate(
    weights: Mapping[str, int],
    seconds: Mapping[str, float],
    total: float,
    *,
    turns: Turns | None = None,
    ahead: str = "",
) -> tuple[Counter[str], list[str]]:
    """Let models that always have work share a device; return their device seconds and the order of turns.

    ahead: names of models that take two turns at a time.
    """
    if turns is None:
        turns = Turns()
        for name, weight in weights.items():
            turns.enter(name, weight)
    spent: Counter[str] = Counter()
    order: list[str] = []
    given: list[str] = []
    while sum(spent.values()) < total:
        while choice := turns.order([name for name in weights if given.count(name) <= (name in ahead)]):
            turns.begin(choice[0])
            given.append(choice[0])
        assert 1 <= len(given) <= DEPTH
        done = given.pop(0)
        order.append(done)
        spent[done] += seconds[done]
        turns.end(done, seconds[done])
    return spent, order


@pytest.mark.parametrize("ahead", ["", "a", "ab", "abc"])
@pytest.mark.parametrize(
    ("weights", "seconds"),
    [
        ({"a": 1, "b": 1}, {"a": 1, "b": 1}),
        ({"a": 1, "b": 1}, {"a": 10, "b": 1}),
        ({"a": 3, "b": 1}, {"a": 1, "b": 1}),
        ({"a": 3, "b": 1}, {"a": 1, "b": 7}),
        ({"a": 5, "b": 2, "c": 1}, {"a": 2, "b": 3, "c": 1}),
        ({"a": 1000, "b": 1}, {"a": 1, "b": 1}),
    ],
)
def test_device_seconds_go_by_weight(weights: dict[str, int], seconds: dict[str, float], ahead: str) -> None:
    total = 5000.0
    spent, _ = simulate(weights, seconds, total, ahead=ahead)
    for name, weight in weights.items():
        share = total * weight / sum(weights.values())
        # The bound of start-time fair queueing: off by no more than a longest step of each.
        assert abs(spent[name] - share) <= sum(seconds.values())


def test_equal_models_alternate_and_overlap() -> None:
    turns = Turns()
    for name in "ab":
        turns.enter(name, 1)
    turns.begin("a")
    assert turns.order(["b"]) == ["b"]  # while a runs
    turns.begin("b")
    assert turns.order(["c"]) == []
    turns.end("a", 1.0)
    assert turns.order(["a"]) == ["a"]  # while b runs
    assert simulate({"a": 1, "b": 1}, {"a": 1, "b": 1}, 20)[1] == ["a", "b"] * 10


def test_a_model_takes_two_turns_at_a_time_only_while_no_other_has_work() -> None:
    turns = Turns()
    for name in "ab":
        turns.enter(name, 1)
    for _ in range(DEPTH):
        assert turns.order(["a"]) == ["a"]
        turns.begin("a")
    assert turns.order(["a", "b"]) == []
    turns.end("a", 1.0)
    assert turns.order(["a", "b"]) == ["b", "a"]
    turns.begin("b")
    turns.end("a", 1.0)
    assert turns.order(["a", "b"]) == ["a", "b"]


def test_who_had_its_share_waits_for_the_one_that_runs() -> None:
    turns = Turns()
    turns.enter("a", 3)
    turns.enter("b", 1)
    for name in "ab":
        turns.begin(name)
        turns.end(name, 1.0)
    turns.begin("a")
    assert turns.order(["b"]) == []
    turns.end("a", 1.0)
    assert turns.order(["a", "b"]) == ["a", "b"]
    assert turns.order(["b"]) == ["b"]  # a has no more work


def test_no_model_saves_up_time_while_it_is_idle() -> None:
    turns = Turns()
    for name in "ab":
        turns.enter(name, 1)
    simulate({"a": 1}, {"a": 1}, 1000, turns=turns)
    spent, _ = simulate({"a": 1, "b": 1}, {"a": 1, "b": 1}, 100, turns=turns)
    assert abs(spent["a"] - spent["b"]) <= 2


def test_choosing_changes_nothing() -> None:
    turns = Turns()
    for name in "abc":
        turns.enter(name, 1)
    turns.begin("b")
    turns.end("b", 2.0)
    assert turns.order("abc") == turns.order("abc") == ["a", "c", "b"]


def test_two_models_on_one_device_share_its_time() -> None:
    order: list[str] = []
    done = threading.Event()

    def open_slot(settings: ModelSettings) -> Slot:
        def step(batch: Batch) -> None:
            time.sleep(0.002)
            if not done.is_set():
                order.append(settings.id)

        return null_slot(settings, before_step=step)

    with running(model("a", weight=3), model("b"), open_slot=open_slot) as harness:
        harness.engine.submit(request("rb", max_tokens=200, model="b"))
        harness.engine.submit(request("ra", max_tokens=90, model="a"))
        harness.mail.terminal("ra")
        done.set()
        harness.engine.cancel("rb")
        harness.mail.terminal("rb")
    count = Counter(order)
    assert count["a"] == 90
    assert 20 <= count["b"] <= 45


def test_one_models_tokens_are_picked_while_the_other_steps() -> None:
    """A step of b stands at the gate, and the text of a's step before it arrives all the same."""
    gate = Gate()

    def open_slot(settings: ModelSettings) -> Slot:
        return null_slot(settings, before_step=gate)

    with running(model("a"), model("b"), open_slot=open_slot) as harness:
        harness.engine.submit(request("ra", b"one", max_tokens=1, model="a"))
        gate.wait()
        harness.engine.submit(request("rb", b"two", max_tokens=1, model="b"))
        harness.snapshot_when(lambda s: s.models["b"].running == 1)  # its step lies ready
        gate.let()
        gate.wait()
        assert isinstance(harness.mail.terminal("ra"), FinishedEvent)
        assert not harness.mail.terminals().get("rb")
        gate.let()
        harness.mail.terminal("rb")


def test_steps_on_two_devices_overlap() -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def open_slot(settings: ModelSettings) -> Slot:
        return null_slot(settings, device=settings.id, before_step=lambda batch: both.wait() and None)

    with running(model("a"), model("b"), open_slot=open_slot) as harness:
        harness.engine.submit(request("ra", model="a", max_tokens=5))
        harness.engine.submit(request("rb", model="b", max_tokens=5))
        assert isinstance(harness.mail.terminal("ra"), FinishedEvent)
        assert isinstance(harness.mail.terminal("rb"), FinishedEvent)
