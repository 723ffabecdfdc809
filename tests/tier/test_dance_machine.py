"""Whole days of models that take turns, in a world without a device: requests come, work ends, switches last.

The world acts only when something happens or at the time of the next look, as the engine does, and holds
every answer to the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tierd.tier.dance import Rules, Standing, Switch, next_look, next_switch

BUDGET = 10
ENDLESS = math.inf
ELSEWHERE = 0.25  # how fast work goes on there
BARRED_S = 5.0  # how long one whose try failed does not come


@dataclass
class Model:
    """work: seconds that each of its streams still takes on the device. gone: those that go on elsewhere."""

    bytes: int
    pinned: bool = False
    on: bool = False
    arrived: float = 0.0
    used: float = 0.0
    asked: float | None = None
    wished: float | None = None
    barred: float = 0.0
    work: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    ahead: int = 0
    stayed: float = 0.0


@dataclass(frozen=True)
class Request:
    time: float
    model: str
    work: float


@dataclass(frozen=True)
class World:
    """switches: seconds that they take, one after the other, around and around; failing: those that fail."""

    models: dict[str, Model]
    requests: tuple[Request, ...]
    min_hold_s: float = 2.0
    max_wait_s: float = 10.0
    idle_s: float = 0.0
    resume: str = "device"
    switches: tuple[float, ...] = (1.0,)
    failing: frozenset[int] = frozenset()


class Day:
    """One run of a world, until `end` or until no work is left.

    waits: of each model that came because it was asked for. switching: seconds that switches took.
    """

    def __init__(self, world: World, end: float = math.inf) -> None:
        self.world, self.models = world, world.models
        self.now = 0.0
        self.waits: list[tuple[str, float]] = []
        self.switching = 0.0
        self.displacing = 0
        self._coming = sorted(world.requests, key=lambda one: one.time, reverse=True)
        self._switch: tuple[Switch, float] | None = None
        self._switches = 0
        self._last = 0.0
        self._look: float | None = None
        events = 0
        while self._next(end):
            events += 1
            assert events < 20_000, "models only displace each other"

    @property
    def rules(self) -> Rules:
        hold = max(self.world.min_hold_s, 4 * self._last)
        return Rules(hold_s=hold, max_wait_s=self.world.max_wait_s, idle_s=self.world.idle_s)

    def _next(self, end: float) -> bool:
        """Go on to what happens next; return whether anything did."""
        times = [self.now + left / speed for left, speed in self._running()]
        times += [self._coming[-1].time] if self._coming else []
        times += [self._switch[1]] if self._switch is not None else []
        times += [self._look] if self._look is not None else []
        then = min(times, default=math.inf)
        if then > end or then == math.inf:
            self._work(end - self.now if end < math.inf else 0.0)
            return False
        self._work(then - self.now)
        self.now = then
        while self._coming and self._coming[-1].time <= self.now:
            self._arrive(self._coming.pop())
        if self._switch is not None and self._switch[1] <= self.now:
            self._finish(self._switch[0])
            self._switch = None
        self._look = None
        if self._switch is None:
            self._decide()
        return True

    def _running(self) -> Iterator[tuple[float, float]]:
        for model in self.models.values():
            if model.on:
                yield from ((left, 1.0) for left in model.work)
            yield from ((left, ELSEWHERE) for left in model.gone)

    def _work(self, seconds: float) -> None:
        for model in self.models.values():
            model.gone = [left - seconds * ELSEWHERE for left in model.gone]
            model.gone = [left for left in model.gone if left > 1e-9]
            if not model.gone:
                model.wished = None
            if model.on:
                model.stayed += seconds
                if model.work:
                    model.used = self.now + seconds
                model.work = [left - seconds for left in model.work if left - seconds > 1e-9]

    def _arrive(self, request: Request) -> None:
        model = self.models[request.model]
        model.work.append(request.work)
        if not model.on and model.asked is None:
            self._ask(model)

    def _ask(self, model: Model) -> None:
        model.asked = self.now
        model.ahead = sum(one.asked is not None for one in self.models.values() if one is not model)

    def _standings(self) -> list[Standing]:
        return [
            Standing(
                model=name,
                bytes=one.bytes,
                on=one.on,
                pinned=one.pinned,
                arrived=one.arrived,
                busy=one.on and bool(one.work),
                used=self.now if one.on and one.work else one.used,
                asked=one.asked,
                wished=one.wished,
                barred=one.barred,
            )
            for name, one in self.models.items()
        ]

    def _decide(self) -> None:
        standings = self._standings()
        answer = next_switch(standings, BUDGET, self.rules, self.now)
        if answer is None:
            self._look = next_look(standings, BUDGET, self.rules, self.now)
            assert self._look is None or self._look > self.now
            last = 1e12 if self._look is None else math.nextafter(self._look, self.now)
            for later in (math.nextafter(self.now, last), (self.now + last) / 2, last):
                assert next_switch(standings, BUDGET, self.rules, later) is None
            return
        seconds = self.world.switches[self._switches % len(self.world.switches)]
        self._check(answer)
        self._switch = answer, self.now + seconds
        self.switching += seconds
        for name in answer.outgoing:
            model = self.models[name]
            model.on = False
            if model.work and self.world.resume == "cpu":
                model.gone, model.work, model.wished = model.gone + model.work, [], self.now
            elif model.work:
                self._ask(model)

    def _check(self, answer: Switch) -> None:
        leaving = [self.models[name] for name in answer.outgoing]
        working = [one for one in leaving if one.work]
        self.displacing += bool(working)
        assert all(one.on and not one.pinned for one in leaving)
        if answer.incoming is None:
            assert not working
            return
        incoming = self.models[answer.incoming]
        there = sum(one.bytes for one in self.models.values() if one.on and one not in leaving)
        assert not incoming.on
        assert there + incoming.bytes <= BUDGET
        assert incoming.barred <= self.now
        for one in working:
            assert incoming.asked is not None
            assert one.arrived + self.rules.hold_s <= self.now
            assert incoming.asked + self.rules.max_wait_s <= self.now

    def _finish(self, switch: Switch) -> None:
        seconds = self.world.switches[self._switches % len(self.world.switches)]
        failed = self._switches in self.world.failing
        self._switches += 1
        self._last = seconds
        if switch.incoming is None:
            return
        incoming = self.models[switch.incoming]
        if failed:
            incoming.barred = self.now + BARRED_S
            for name in switch.outgoing:
                self._come(self.models[name])
            return
        if incoming.asked is not None:
            self.waits.append((switch.incoming, self.now - incoming.asked))
            if not self.world.failing:
                assert self.now - incoming.asked <= self.longest(incoming)
        self._come(incoming)

    def _come(self, model: Model) -> None:
        model.on, model.arrived, model.asked, model.wished = True, self.now, None, None
        model.work, model.gone = model.work + model.gone, []

    def longest(self, model: Model) -> float:
        """What the policy promises to one that asks, and a switch for each model that leaves unasked."""
        switch = max(self.world.switches)
        hold = max(self.world.min_hold_s, 4 * switch)
        unasked = switch * len(self.models) if self.world.idle_s else 0.0
        return self.world.max_wait_s + switch + (model.ahead + 1) * (hold + switch) + unasked + 1e-6


def busy_forever(*sizes: int, **world: object) -> World:
    """A world in which every model has work without end from the start."""
    models = {f"m{number}": Model(size) for number, size in enumerate(sizes)}
    requests = tuple(Request(0.1 * number, name, ENDLESS) for number, name in enumerate(models))
    return World(models, requests, **world)  # type: ignore[arg-type]


SECONDS = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 2.0, 2.2, 7.0, 30.0])


@st.composite
def worlds(draw: st.DrawFn, *, failures: bool = False) -> World:
    """Worlds in which every model but one that is too large has its time, with work that ends."""
    sizes = draw(st.lists(st.integers(1, BUDGET), min_size=2, max_size=5))
    pinned = draw(st.integers(0, BUDGET // 2))
    models = {f"m{number}": Model(min(size, BUDGET - pinned)) for number, size in enumerate(sizes)}
    if pinned:
        models["pinned"] = Model(pinned, pinned=True, on=draw(st.booleans()))
    calls = st.tuples(SECONDS, st.sampled_from(sorted(models)), SECONDS.filter(bool))
    now, requests = 0.0, []
    for gap, name, work in draw(st.lists(calls, min_size=2, max_size=25)):
        now += gap
        requests.append(Request(now, name, work))
    if draw(st.booleans()):
        models["vast"] = Model(BUDGET + 1)
        requests.append(Request(draw(SECONDS), "vast", 1.0))
    return World(
        models,
        tuple(requests),
        min_hold_s=draw(SECONDS),
        max_wait_s=draw(SECONDS),
        idle_s=draw(SECONDS),
        resume=draw(st.sampled_from(["device", "cpu"])),
        switches=tuple(draw(st.lists(SECONDS.filter(bool), min_size=1, max_size=3))),
        failing=frozenset(draw(st.sets(st.integers(0, 5)))) if failures else frozenset(),
    )


@given(worlds())
def test_all_work_ends_and_whoever_asks_comes_within_what_is_promised(world: World) -> None:
    day = Day(world)
    left = {name for name, one in day.models.items() if one.work or one.gone or one.asked is not None}
    assert left <= {"vast"}
    assert not day.models["vast"].on if "vast" in day.models else True


@given(worlds(failures=True))
def test_all_work_ends_though_switches_fail(world: World) -> None:
    day = Day(world)
    assert not any(one.work or one.gone for name, one in day.models.items() if name != "vast")


@given(st.lists(st.integers(1, BUDGET), min_size=2, max_size=6), SECONDS, SECONDS, SECONDS.filter(bool))
@example([10, 5, 5], 2.0, 10.0, 1.0)
@example([5, 5, 4, 3, 3], 0.0, 0.0, 7.0)
@example([9, 1, 1, 1], 2.0, 10.0, 1.0)
def test_where_all_have_work_for_ever_all_have_their_turns_and_switches_take_their_share(
    sizes: list[int], min_hold_s: float, max_wait_s: float, seconds: float
) -> None:
    world = busy_forever(*sizes, min_hold_s=min_hold_s, max_wait_s=max_wait_s, switches=(seconds,))
    hold = max(min_hold_s, 4 * seconds)
    end = 20 * len(sizes) * (hold + seconds + max_wait_s)
    day = Day(world, end)
    assert all(one.stayed >= hold for one in day.models.values())
    assert all(one.asked is None or day.now - one.asked <= day.longest(one) for one in day.models.values())
    assert 4 * seconds * day.displacing <= sum(one.stayed for one in day.models.values()) + 1e-6


@pytest.mark.parametrize("max_wait_s", [0.0, 10.0])
def test_models_that_exclude_each_other_have_the_same_share(max_wait_s: float) -> None:
    day = Day(busy_forever(6, 7, 8, max_wait_s=max_wait_s), 1500.0)
    stays = [one.stayed for one in day.models.values()]
    assert max(stays) - min(stays) <= 4.0 + max_wait_s
    assert day.switching <= 1500.0 / 5 + 1


def test_models_that_come_and_go_beside_do_not_keep_a_large_one_away() -> None:
    models = {"large": Model(10), "odd": Model(1), "even": Model(1)}
    beside = [Request(2.0 * turn, ("even", "odd")[turn % 2], 3.0) for turn in range(100)]
    world = World(models, (*beside, Request(1.0, "large", 1.0)), min_hold_s=5.0, idle_s=0.1, switches=(0.1,))
    (wait,) = [wait for name, wait in Day(world).waits if name == "large"]
    assert wait <= 10.0 + 0.1 + 5.0 + 3 * 0.1
