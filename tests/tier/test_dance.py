"""Who comes and who leaves, case by case and against all choices; in test_dance_machine time runs."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tierd.tier.dance import Rules, Standing, Switch, make_room, next_look, next_switch

RULES = Rules(hold_s=8.0, max_wait_s=10.0)
NOW = 1000.0


def idle(model: str, size: int, used: float = 0.0, *, pinned: bool = False, arrived: float = 0.0) -> Standing:
    return Standing(model=model, bytes=size, on=True, used=used, pinned=pinned, arrived=arrived)


def busy(model: str, size: int, arrived: float = 0.0, *, pinned: bool = False) -> Standing:
    return Standing(model=model, bytes=size, on=True, busy=True, arrived=arrived, used=NOW, pinned=pinned)


def asks(model: str, size: int, since: float, *, barred: float = 0.0) -> Standing:
    return Standing(model=model, bytes=size, on=False, asked=since, barred=barred)


def wishes(model: str, size: int, since: float, *, barred: float = 0.0) -> Standing:
    return Standing(model=model, bytes=size, on=False, wished=since, barred=barred)


def away(model: str, size: int) -> Standing:
    return Standing(model=model, bytes=size, on=False)


def answers(*standings: Standing, now: float = NOW, rules: Rules = RULES) -> Switch | None:
    return next_switch(standings, 10, rules, now)


def looks(*standings: Standing, now: float = NOW, rules: Rules = RULES) -> float | None:
    return next_look(standings, 10, rules, now)


def leaving(*standings: Standing, model: str = "new") -> tuple[str, ...] | None:
    return make_room(standings, 10, model)


def test_nothing_happens_while_nobody_asks() -> None:
    assert answers() is None
    assert answers(idle("a", 6), busy("b", 4), away("c", 6)) is None
    assert looks(idle("a", 6), busy("b", 4), away("c", 6)) is None


def test_one_that_fits_beside_those_there_comes_at_once_and_nobody_leaves() -> None:
    assert answers(idle("a", 3), busy("b", 3, NOW), asks("c", 4, NOW)) == Switch("c", ())


def test_who_asked_first_comes_first() -> None:
    assert answers(asks("a", 6, 999.0), asks("b", 6, 998.0), asks("c", 6, 999.5)) == Switch("b", ())
    assert answers(asks("a", 6, 998.0), asks("b", 6, 998.0)) == Switch("a", ())


def test_nobody_overtakes_where_somebody_had_to_leave_for_it() -> None:
    there = (idle("idle", 4), busy("busy", 6, 999.0))
    assert answers(*there, asks("first", 8, 999.0), asks("second", 4, 999.5)) is None
    assert answers(*there, asks("second", 4, 999.5)) == Switch("second", ("idle",))


def test_others_come_beside_until_the_first_has_waited_for_the_longest_wait() -> None:
    standings = (
        busy("a", 6, 995.0),
        asks("first", 8, 990.5),
        asks("large", 5, 991.0),
        asks("small", 4, 992.0),
    )
    assert answers(*standings) == Switch("small", ())
    assert answers(*standings, now=math.nextafter(1000.5, 0)) == Switch("small", ())
    assert answers(*standings, now=1000.5) is None
    assert looks(*standings) == 1000.5
    assert looks(*standings, now=1000.5) == 1003.0
    assert answers(*standings, now=1003.0) == Switch("first", ("a",))


def test_models_without_work_leave_at_once_whatever_their_hold() -> None:
    assert answers(idle("a", 6, NOW, arrived=NOW), asks("b", 6, NOW)) == Switch("b", ("a",))


def test_models_without_work_leave_least_recently_used_first() -> None:
    there = (idle("a", 3, 30.0), idle("b", 3, 10.0), idle("c", 3, 20.0))
    assert answers(*there, asks("new", 3, NOW)) == Switch("new", ("b",))
    assert answers(*there, asks("new", 5, NOW)) == Switch("new", ("b", "c"))
    assert answers(*there, asks("new", 10, NOW)) == Switch("new", ("b", "c", "a"))


def test_one_that_came_and_was_not_used_yet_counts_as_used_then() -> None:
    there = (idle("a", 5, 10.0, arrived=900.0), idle("b", 5, 500.0, arrived=1.0))
    assert answers(*there, asks("new", 5, NOW)) == Switch("new", ("b",))


def test_nobody_leaves_in_vain() -> None:
    there = (idle("small", 1, 10.0), idle("large", 6, 20.0), idle("last", 3, 30.0))
    assert answers(*there, asks("new", 6, NOW)) == Switch("new", ("large",))
    assert answers(*there, asks("new", 7, NOW)) == Switch("new", ("small", "large"))
    assert leaving(idle("idle", 1), busy("a", 5, 1.0), busy("b", 4, 2.0), away("new", 5)) == ("a",)


def test_one_with_work_stays_until_its_hold_is_over_and_the_longest_wait_too() -> None:
    standings = (busy("a", 6, 995.0), asks("b", 6, 991.0))
    assert answers(*standings) is None
    assert looks(*standings) == 1001.0
    assert answers(*standings, now=1001.0) is None
    assert looks(*standings, now=1001.0) == 1003.0
    assert answers(*standings, now=math.nextafter(1003.0, 0)) is None
    assert answers(*standings, now=1003.0) == Switch("b", ("a",))
    waited = (busy("a", 6, 900.0), asks("b", 6, 991.0))
    assert answers(*waited, now=math.nextafter(1001.0, 0)) is None
    assert looks(*waited) == 1001.0
    assert answers(*waited, now=1001.0) == Switch("b", ("a",))


def test_models_without_work_leave_before_those_with_it() -> None:
    there = (busy("a", 5, 1.0), idle("b", 5, 999.0))
    assert answers(*there, asks("new", 5, 900.0)) == Switch("new", ("b",))
    assert answers(*there, asks("new", 6, 900.0)) == Switch("new", ("b", "a"))


def test_as_few_as_possible_leave_their_work() -> None:
    there = (busy("a", 2, 1.0), busy("b", 3, 2.0), busy("c", 5, 3.0))
    assert leaving(*there, away("new", 5)) == ("c",)
    assert leaving(*there, away("new", 3)) == ("b",)
    assert leaving(*there, away("new", 7)) == ("a", "c")
    assert leaving(*there, away("new", 8)) == ("b", "c")
    assert leaving(*there, away("new", 9)) == ("a", "b", "c")


def test_one_whose_hold_is_over_leaves_in_place_of_a_larger_one_that_keeps_it() -> None:
    there = (busy("a", 2, 1.0), busy("b", 3, 2.0), busy("c", 5, 999.0))
    assert answers(*there, asks("new", 5, 900.0)) == Switch("new", ("a", "b"))
    assert answers(*there, asks("new", 5, 900.0), now=1007.0) == Switch("new", ("c",))


def test_pinned_ones_never_leave() -> None:
    assert answers(idle("a", 6, pinned=True), asks("b", 5, 1.0)) is None
    assert answers(busy("a", 6, pinned=True), asks("b", 5, 1.0)) is None
    assert looks(busy("a", 6, pinned=True), asks("b", 5, 1.0)) is None
    assert answers(idle("a", 6, pinned=True), rules=Rules(hold_s=0, max_wait_s=0, idle_s=1.0)) is None
    assert leaving(idle("a", 6, pinned=True), idle("b", 4), away("new", 5)) is None
    assert leaving(idle("a", 6, pinned=True), busy("b", 4), away("new", 4)) == ("b",)


def test_one_that_is_pinned_but_away_comes_as_others_do() -> None:
    pinned = Standing(model="p", bytes=6, on=False, pinned=True, asked=999.0)
    assert answers(idle("a", 6), pinned) == Switch("p", ("a",))
    assert answers(busy("a", 6, 999.0), pinned) is None


def test_one_that_never_fits_is_never_chosen_and_keeps_nobody_waiting() -> None:
    assert answers(idle("a", 6), asks("vast", 11, 1.0), asks("b", 6, NOW)) == Switch("b", ("a",))
    assert answers(idle("a", 6), wishes("vast", 11, 1.0)) is None
    assert leaving(idle("a", 6), away("new", 11)) is None


def test_one_whose_try_failed_keeps_nobody_waiting_and_is_first_again_later() -> None:
    standings = (idle("a", 6), asks("failed", 6, 1.0, barred=1005.0), asks("b", 6, 999.0))
    assert answers(*standings) == Switch("b", ("a",))
    assert answers(*standings, now=1005.0) == Switch("failed", ("a",))
    alone = (idle("a", 6), wishes("failed", 6, 1.0, barred=1005.0))
    assert (answers(*alone), looks(*alone)) == (None, 1005.0)
    assert answers(*alone, now=1005.0) == Switch("failed", ("a",))


def test_streams_elsewhere_bring_their_model_back_where_nobody_has_to_wait_for_that() -> None:
    assert answers(busy("a", 6, 1.0), wishes("b", 4, NOW)) == Switch("b", ())
    assert answers(idle("a", 6), wishes("b", 5, NOW)) == Switch("b", ("a",))
    assert answers(busy("a", 6, 1.0), wishes("b", 5, 1.0)) is None
    assert looks(busy("a", 6, 1.0), wishes("b", 5, 1.0)) is None
    assert answers(busy("a", 6, 1.0), wishes("b", 5, 1.0), wishes("c", 4, 2.0)) == Switch("c", ())
    assert answers(wishes("b", 5, 2.0), wishes("c", 4, 1.0)) == Switch("c", ())


def test_streams_elsewhere_wait_where_another_is_asked_for() -> None:
    there = (busy("a", 6, 995.0), asks("first", 6, 990.0))
    assert answers(*there, wishes("b", 4, 1.0)) is None
    assert answers(idle("a", 6), asks("first", 6, NOW), wishes("b", 6, 1.0)) == Switch("first", ("a",))


def test_one_that_is_asked_for_and_wished_for_is_asked_for() -> None:
    both = Standing(model="b", bytes=6, on=False, asked=990.0, wished=1.0)
    assert answers(busy("a", 6, 1.0), both) == Switch("b", ("a",))
    assert answers(asks("a", 6, 989.0), both) == Switch("a", ())


def test_a_model_leaves_when_it_was_without_work_for_long() -> None:
    rules = Rules(hold_s=8.0, max_wait_s=10.0, idle_s=60.0)
    standings = (idle("a", 3, 950.0), idle("b", 3, 940.0, arrived=945.0), busy("c", 3, 1.0))
    assert (answers(*standings, rules=rules), looks(*standings, rules=rules)) == (None, 1005.0)
    assert answers(*standings, rules=rules, now=1005.0) == Switch(None, ("b",))
    assert looks(*standings, rules=rules, now=1005.0) == 1010.0
    assert answers(*standings, rules=rules, now=1010.0) == Switch(None, ("b",))
    assert answers(standings[0], standings[2], rules=rules, now=1010.0) == Switch(None, ("a",))
    assert answers(idle("a", 3, 1.0), idle("b", 3, 2.0)) is None


def test_one_that_asks_comes_before_others_leave_unasked() -> None:
    rules = Rules(hold_s=8.0, max_wait_s=10.0, idle_s=60.0)
    assert answers(idle("a", 3, 1.0), asks("b", 6, NOW), rules=rules) == Switch("b", ())
    assert answers(idle("a", 3, 1.0), busy("b", 6), asks("c", 8, NOW), rules=rules) == Switch(None, ("a",))


def test_more_bytes_than_the_budget_make_way_only_for_somebody() -> None:
    there = (idle("a", 6, 1.0), idle("b", 6, 2.0))
    assert answers(*there) is None
    assert answers(*there, asks("c", 1, NOW)) == Switch("c", ("a",))
    assert answers(*there, asks("c", 10, NOW)) == Switch("c", ("a", "b"))


def test_room_is_made_whatever_runs() -> None:
    assert leaving(busy("a", 6, NOW), idle("b", 4), asks("new", 8, NOW, barred=NOW + 9)) == ("b", "a")
    assert leaving(busy("a", 6, NOW), idle("new", 4)) == ()
    assert leaving(busy("a", 6, NOW), away("new", 4)) == ()


def test_ten_models_take_microseconds() -> None:
    there = [busy(f"busy-{one}", 1, 990.0 + one) for one in range(3)]
    there += [idle(f"idle-{one}", 1, float(one)) for one in range(3)]
    standings = (*there, *(asks(f"asks-{one}", 10, 999.0 - one) for one in range(4)))
    assert answers(*standings) is None

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(20):
            answers(*standings)
            looks(*standings)
        return (time.perf_counter() - start) / 20

    assert min(seconds() for _ in range(10)) < 200e-6


TIMES = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.30000000000000004, 0.7, 1.1, 2.0, 2.2, 3.3])
STANDINGS = st.lists(
    st.builds(
        Standing,
        model=st.just(""),
        bytes=st.integers(1, 6),
        on=st.booleans(),
        pinned=st.sampled_from([False, False, False, True]),
        arrived=TIMES,
        busy=st.booleans(),
        used=TIMES,
        asked=st.none() | TIMES,
        wished=st.none() | TIMES,
        barred=TIMES,
    ),
    min_size=1,
    max_size=7,
).map(lambda found: [replace(one, model=f"m{number}") for number, one in enumerate(found)])
PATIENCE = st.builds(Rules, hold_s=TIMES, max_wait_s=TIMES, idle_s=TIMES)


def _sets(found: list[Standing]) -> list[tuple[Standing, ...]]:
    return [some for size in range(len(found) + 1) for some in itertools.combinations(found, size)]


@given(STANDINGS, st.integers(0, 14))
def test_no_other_choice_leaves_less_work(standings: list[Standing], budget: int) -> None:
    incoming = Standing(model="new", bytes=5, on=False)
    there = [one for one in standings if one.on]
    need = incoming.bytes - (budget - sum(one.bytes for one in there))
    enough = [
        {one.model for one in some}
        for some in _sets([one for one in there if not one.pinned])
        if sum(one.bytes for one in some) >= need
    ]
    found = make_room([*standings, incoming], budget, "new")
    if found is None:
        assert not enough
        return
    assert len(found) == len(set(found))
    assert set(found) in enough
    assert not any(other < set(found) for other in enough)
    working = {one.model for one in there if one.busy}
    assert len(set(found) & working) == min(len(other & working) for other in enough)


@given(STANDINGS, st.integers(0, 14), PATIENCE, TIMES)
@example([asks("m0", 5, 0.0), busy("m1", 6, 1.1)], 6, Rules(hold_s=2.2, max_wait_s=0.0), 3.3)
def test_before_the_next_look_the_answer_stays(
    standings: list[Standing], budget: int, rules: Rules, now: float
) -> None:
    answer = next_switch(standings, budget, rules, now)
    look = next_look(standings, budget, rules, now)
    assert look is None or look > now
    last = 1e9 if look is None else math.nextafter(look, now)
    for later in (now + (last - now) / 3, now + (last - now) / 2, last):
        assert next_switch(standings, budget, rules, later) == answer


@given(STANDINGS, st.integers(0, 14), PATIENCE, TIMES)
def test_what_is_answered_keeps_the_rules(
    standings: list[Standing], budget: int, rules: Rules, now: float
) -> None:
    answer = next_switch(standings, budget, rules, now)
    if answer is None:
        return
    by_name = {one.model: one for one in standings}
    leaving = [by_name[model] for model in answer.outgoing]
    assert all(one.on and not one.pinned for one in leaving)
    if answer.incoming is None:
        (one,) = leaving
        assert not one.busy
        assert one.used + rules.idle_s <= now
        return
    incoming = by_name[answer.incoming]
    assert not incoming.on
    assert incoming.barred <= now
    there = sum(one.bytes for one in standings if one.on) - sum(one.bytes for one in leaving)
    assert not leaving or there + min(one.bytes for one in leaving) + incoming.bytes > budget
    assert there + incoming.bytes <= budget
    for one in leaving:
        if one.busy:
            assert incoming.asked is not None
            assert one.arrived + rules.hold_s <= now
            assert incoming.asked + rules.max_wait_s <= now


@pytest.mark.parametrize("hold", [0.1, 0.7, 2.0, 1 / 3])
@pytest.mark.parametrize("arrived", [0.1, 0.2, 123456.7, 1e9 / 3])
def test_the_next_look_is_late_enough_for_what_it_looks_for(hold: float, arrived: float) -> None:
    rules = Rules(hold_s=hold, max_wait_s=hold / 3)
    standings = (busy("a", 6, arrived), asks("b", 6, arrived))
    now, looked = arrived, 0
    while (answer := answers(*standings, rules=rules, now=now)) is None:
        now = looks(*standings, rules=rules, now=now) or math.inf
        looked += 1
    assert answer == Switch("b", ("a",))
    assert now == arrived + hold
    assert looked <= 2
