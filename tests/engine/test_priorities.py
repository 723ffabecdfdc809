"""Who is served first when requests have priorities, and that nobody starves."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.device_slot import device_slot
from engine.drive import begin, carry, complete, ended, greedy, rows, run, serve
from engine.harness import Gate, model, running
from engine.null_slot import null_slot, request
from tierd.chat.stops import text_stream
from tierd.core import FailedEvent, FinishedEvent, Request, Sequence
from tierd.engine import queue
from tierd.engine.scheduler import admit_all, leave
from tierd.errors import QueueFullError
from tierd.kv.bank import Bank
from tierd.settings import QueueSettings, Settings
from tierd.slot import Slot, exile

AGEING_S = 5.0
SETTINGS = QueueSettings(capacity=3, ageing_s=AGEING_S)


def asked(id: str, priority: int = 0, prompt: bytes = b"ab", tokens: int = 2) -> Request:
    plain: dict[str, Any] = {name: getattr(request(id, prompt, tokens), name) for name in Request.__slots__}
    return Request(**plain | {"priority": priority})


def come(slot: Slot, r: Request, now: float, settings: QueueSettings = SETTINGS) -> Sequence | None:
    """Let a request come; return who is turned away."""
    rank = queue.rank(r, now, settings)
    sequence = Sequence(r, text_stream(slot.tokenizer, r.stop), list(r.prompt), submitted=now, rank=rank)
    away = queue.join(slot, sequence, settings, 1.0)
    if away is None:
        return None
    assert isinstance(away[1], QueueFullError)
    leave(slot, away[0])
    return away[0]


def names(streams: Any) -> list[str]:
    return [sequence.request.id for sequence in streams]


def test_lower_priorities_go_first_and_equal_ones_in_order_of_arrival() -> None:
    slot = null_slot(model("null", streams=1))
    for i, priority in enumerate((0, 1, -1, 0, -1)):
        come(slot, asked(f"r{i}", priority), 10.0 + i, QueueSettings())
    assert names(slot.waiting) == ["r2", "r4", "r0", "r3", "r1"]
    served = []
    while step := begin(slot):
        served += [name for name in rows(step) if name not in served]
        complete(slot)
    assert served == ["r2", "r4", "r0", "r3", "r1"]


def test_who_has_waited_long_enough_is_not_overtaken() -> None:
    slot = null_slot(model("null", streams=1))
    come(slot, asked("low", 2), 10.0)
    come(slot, asked("soon", 0), 10.0 + 2 * AGEING_S - 0.1)
    come(slot, asked("late", 0), 10.0 + 2 * AGEING_S + 0.1)
    assert names(slot.waiting) == ["soon", "low", "late"]


def test_priorities_count_for_nothing_without_ageing() -> None:
    slot = null_slot(model("null", streams=1))
    for i in range(3):
        come(slot, asked(f"r{i}", -i), float(i), QueueSettings(ageing_s=0))
    assert names(slot.waiting) == ["r0", "r1", "r2"]


def test_the_last_in_the_order_is_turned_away_from_a_full_queue() -> None:
    slot = null_slot(model("null", streams=1))
    for i in range(4):
        assert come(slot, asked(f"r{i}", i % 2), float(i)) is None
    assert names(slot.waiting) == ["r0", "r2", "r1", "r3"]
    assert names([come(slot, asked("sooner", -1), 4.0)]) == ["r3"]
    assert names([come(slot, asked("later", 9), 5.0)]) == ["later"]
    assert names(slot.waiting) == ["sooner", "r0", "r2", "r1"]


def test_who_has_waited_too_long_is_told_wherever_it_stands() -> None:
    slot = null_slot(model("null", streams=1))
    limits = QueueSettings(timeout_s=7)
    come(slot, asked("low", 2), 10.0, limits)
    for i in range(3):
        come(slot, asked(f"r{i}"), 11.0 + i, limits)
    assert names(slot.waiting) == ["r0", "r1", "r2", "low"]
    assert queue.deadline(slot, limits) == 17.0
    assert queue.overdue(slot, limits, 16.9) is None
    assert names([queue.overdue(slot, limits, 17.0)]) == ["low"]


def test_prompts_of_a_lower_priority_are_read_first() -> None:
    slot = null_slot(model("null", streams=2), chunk_rows=4)
    come(slot, asked("long", 0, b"x" * 20), 1.0)
    assert rows(begin(slot)) == {"long": 4}
    complete(slot)
    come(slot, asked("urgent", -1, b"y" * 6), 2.0)
    assert rows(begin(slot)) == {"urgent": 4}
    complete(slot)
    assert rows(begin(slot)) == {"urgent": 2, "long": 2}


def test_streams_that_come_back_stand_before_those_that_wait_with_their_rank() -> None:
    slot = null_slot(model("null", streams=1), pages=32)
    come(slot, asked("runs", 0, tokens=9), 1.0)
    begin(slot)
    complete(slot)
    (runs,) = slot.running
    slot.home.let_go(runs, written=False)
    exile(slot, runs, None, slot.returning)
    come(slot, asked("waits"), 2.0)
    come(slot, asked("urgent", -1), 3.0)
    assert slot.first is not None
    assert slot.first.request.id == "urgent"
    admit_all(slot)
    assert names(slot.running) == ["urgent"]
    run(slot)
    assert runs.generated == 9


@pytest.mark.parametrize("streams", [1, 4], ids=["streams", "pages"])
def test_who_matters_less_gives_way_to_who_waits(streams: int) -> None:
    slot = null_slot(model("null", streams=streams), pages=32 if streams == 1 else 6)
    (low,) = [asked("low", 1, tokens=15)]
    come(slot, low, 1.0)
    begin(slot)
    complete(slot)
    come(slot, asked("same", 1, b"c" * 8, tokens=8), 2.0)
    begin(slot)
    complete(slot)
    assert names(slot.running)[0] == "low"
    come(slot, asked("high", 0, b"d" * 16, tokens=5), 3.0)
    assert rows(begin(slot)) == {"high": 16}
    assert names(slot.returning)[0] == "low"
    complete(slot)
    run(slot)
    assert not slot.returning
    assert slot.preemptions["dropped"] > 0


@pytest.mark.parametrize("bank", [0, 1 << 20], ids=["dropped", "banked"])
@pytest.mark.parametrize("regions", [1, 2])
def test_who_matters_less_gives_way_on_a_device(regions: int, bank: int) -> None:
    slot = device_slot(model("null", streams=1), regions=regions, bank=bank)
    come(slot, asked("low", 1, tokens=30), 1.0)
    events = serve(slot)
    while not slot.running or slot.running[0].generated < 9:
        next(events)
    (low,) = slot.running
    come(slot, asked("same", 1, b"c" * 8, tokens=3), 2.0)
    come(slot, asked("high", 0, b"d" * 16, tokens=5), 3.0)
    ends = [sequence.request.id for sequence in ended(events)]
    assert ends == ["high", "low", "same"]
    assert slot.preemptions == {"banked" if bank else "dropped": 1}
    assert low.tokens == greedy(b"ab", 30)
    assert slot.home.room.used == 0
    assert slot.home.bank is not None
    assert not any(entry.live or entry.pins for entry in slot.home.bank.entries)


def test_nobody_on_a_device_gives_way_to_who_is_for_the_cpu() -> None:
    slot = device_slot(model("null", streams=2), regions=1, context=128)
    come(slot, asked("low", 1, tokens=9), 1.0)
    come(slot, asked("high", 0, b"d" * 16, tokens=5), 2.0)
    slot.waiting.rotate()  # as where "low" came before
    events = serve(slot)
    next(events)
    assert names(slot.running) == ["low"]
    slot.settings = replace(slot.settings, streams=1)
    slot.waiting[0].tokens += b"d" * 64  # more than a region has
    assert names(ended(events)) == ["low"]
    assert not slot.preemptions


def test_nobody_gives_way_where_that_would_not_do() -> None:
    slot = null_slot(model("null", streams=4), pages=12)
    for i, early in enumerate((asked("same", 0, b"a" * 20, tokens=9), asked("low", 1, b"b" * 8, tokens=9))):
        come(slot, early, float(i))
    for _ in range(3):
        begin(slot)
        complete(slot)
    come(slot, asked("high", 0, b"c" * 28, tokens=5), 2.0)
    while names(slot.running) == ["same", "low"]:
        assert rows(begin(slot)) == {"same": 1, "low": 1}
        complete(slot)
    begin(slot)
    assert names(slot.running)[0] == "high"
    complete(slot)
    run(slot)
    assert slot.home.room.used == 0


@pytest.mark.parametrize("bank", [None, Bank(1 << 20)], ids=["dropped", "banked"])
@pytest.mark.parametrize(("streams", "pages"), [(1, 32), (4, 7)], ids=["streams", "pages"])
def test_nobody_starves_under_others_that_never_end(streams: int, pages: int, bank: Bank | None) -> None:
    """A step takes a second, in which one more comes that is sooner and needs three.

    It gives way to those that have come in time, and to none after them.
    """
    slot = null_slot(model("null", streams=streams), pages=pages, bank=bank)
    settings = QueueSettings(capacity=1000, ageing_s=AGEING_S)
    come(slot, asked("low", 2, tokens=9), 0.0, settings)
    (low,) = slot.waiting
    seconds, sooner = 0, 2 * int(AGEING_S)
    while low.generated < 9:
        assert begin(slot) is not None or slot.home.moves
        while carry(slot):
            pass
        if slot.steps:
            complete(slot)
        seconds += 1
        come(slot, asked(f"high{seconds}", 0, b"c" * 8, tokens=3), float(seconds), settings)
    assert low.preemptions == 1
    assert sooner < seconds <= 3 * sooner + 9 + 2
    assert slot.waiting
    assert low.tokens == greedy(b"ab", 9)


Arrivals = list[tuple[float, int, int]]  # seconds since the last, priority, how many end before


@given(
    st.lists(
        st.tuples(st.floats(0, 12, width=16), st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=30
    )
)
def test_nobody_is_overtaken_by_who_comes_too_late(arrivals: Arrivals) -> None:
    slot = null_slot(model("null", streams=1))
    now, came, turned, order = 0.0, {}, [], []

    def serve() -> None:
        admit_all(slot)
        for sequence in list(slot.running):
            order.append(sequence.request.id)
            leave(slot, sequence)

    for i, (pause, priority, ends) in enumerate(arrivals):
        for _ in range(ends):
            serve()
        now += pause
        id = f"r{i}"
        came[id] = (now, priority)
        before = names(slot.waiting)
        away = come(slot, asked(id, priority), now)
        assert [name for name in names(slot.waiting) if name != id] == [
            name for name in before if away is None or name != away.request.id
        ]
        if away is not None:
            turned.append(away.request.id)
            assert away.rank >= max(sequence.rank for sequence in slot.waiting)
            assert len(slot.waiting) - queue.ready(slot) == SETTINGS.capacity
    while slot.waiting:
        serve()
    assert sorted([*order, *turned]) == sorted(came)
    for first, second in combinations(order, 2):
        (sooner, high), (later, low) = came[first], came[second]
        if sooner > later:  # `first` has overtaken
            assert high < low
            assert sooner - later <= AGEING_S * (low - high)


@pytest.mark.parametrize("capacity", [1, 8])
def test_an_engine_serves_by_priority(capacity: int) -> None:
    gate = Gate()
    settings = Settings(queue=QueueSettings(capacity=capacity))
    with running(model("null", streams=1), settings=settings, before_step=gate) as harness:
        harness.engine.submit(asked("runs", -9))
        gate.wait()
        harness.engine.submit(asked("low", 3))
        harness.engine.submit(asked("high", -3))
        gate.let(100)
        ends = ["runs", "high"] if capacity == 1 else ["runs", "high", "low"]
        for id in ends:
            assert isinstance(harness.mail.terminal(id), FinishedEvent)
        if capacity == 1:
            event = harness.mail.terminal("low")
            assert isinstance(event, FailedEvent)
            assert isinstance(event.error, QueueFullError)
            assert not harness.mail.started("low")
        told = [id for call in harness.mail.calls for id, event in call if isinstance(event, FinishedEvent)]
        assert told == ends
        assert harness.rests()
