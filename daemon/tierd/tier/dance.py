"""Whose turn on the device it is, where its memory does not hold all models that want to be there. Pure.

Who asked first comes first, and nobody overtakes it. Where it fits beside those that are there, it comes at
once. Else models without work leave for it at once, least recently used first, and no more of them than it
takes. Where these do not suffice, as few as possible of those with work leave too, each after its hold, and
none before the asker has waited for the longest wait. Until then others come before it where nobody has to
leave for them; not later, so that it comes at the latest after the longest wait and a switch, and then a hold
and a switch for each that asked before it and for itself.

Times are monotonic seconds; nothing here reads a clock. Equal times: in the order of the standings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one model stands with the device.

    bytes: what it takes there. on: whether it is there. pinned: once there it never leaves.
    Of one that is there: arrived: since when. busy: whether streams run or wait. used: when it had one last.
    Of one that is away: asked: since when streams wait for it. wished: since when streams run elsewhere that
    would rather be there; None: there are none. barred: it does not come before.
    """

    model: str
    bytes: int
    on: bool
    pinned: bool = False
    arrived: float = 0.0
    busy: bool = False
    used: float = 0.0
    asked: float | None = None
    wished: float | None = None
    barred: float = 0.0

    @property
    def rests(self) -> float:
        """Since when it is there without work."""
        return max(self.arrived, self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How patient models are.

    hold_s: how long one with work stays at least. max_wait_s: how long one that asks lets others work.
    idle_s: after how long without work one leaves though nobody asks; 0: never.
    """

    hold_s: float
    max_wait_s: float
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Switch:
    """Who comes, None for nobody, and who leaves for it, in this order."""

    incoming: str | None
    outgoing: tuple[str, ...] = ()


def next_switch(standings: Collection[Standing], budget: int, rules: Rules, now: float) -> Switch | None:
    """Return what is to be done now, None for nothing. budget: bytes that all models may take."""
    there = [one for one in standings if one.on]
    room = budget - sum(one.bytes for one in there)
    if asking := _queue(standings, budget, now, lambda one: one.asked):
        first = asking[0]
        free = [one for one in there if _leaves(one, first, rules) <= now]
        if (outgoing := _least(free, first.bytes - room)) is not None:
            return Switch(first.model, outgoing)
        if now < _waits(first, rules):
            for other in asking[1:]:
                if other.bytes <= room:
                    return Switch(other.model)
    else:
        free = [one for one in there if not one.busy and not one.pinned]
        for wishing in _queue(standings, budget, now, lambda one: one.wished):
            if (outgoing := _least(free, wishing.bytes - room)) is not None:
                return Switch(wishing.model, outgoing)
    tired = [one for one in there if _tires(one, rules) <= now]
    return Switch(None, (min(tired, key=lambda one: one.rests).model,)) if tired else None


def next_look(standings: Collection[Standing], budget: int, rules: Rules, now: float) -> float | None:
    """Return until when `next_switch` answers as it does now, if nothing but time passes; None: always.

    It is later than now. What it answers from then on may be the same.
    """
    times = [one.barred for one in standings if not one.on and (one.asked, one.wished) != (None, None)]
    times += [_tires(one, rules) for one in standings if one.on]
    if asking := _queue(standings, budget, now, lambda one: one.asked):
        times.append(_waits(asking[0], rules))
        times += [_leaves(one, asking[0], rules) for one in standings if one.on]
    return min((time for time in times if now < time < math.inf), default=None)


def make_room(standings: Collection[Standing], budget: int, model: str) -> tuple[str, ...] | None:
    """Return who leaves where a model must come at once, whatever work others have.

    () where nobody has to, or it is there. None where it does not fit beside those that are pinned there.
    Streams of those that leave ask again from then on: who wants the model to stay, though it may have no
    work yet, bars the others for a while.
    """
    (incoming,) = (one for one in standings if one.model == model)
    if incoming.on:
        return ()
    there = [one for one in standings if one.on]
    room = budget - sum(one.bytes for one in there)
    return _least([one for one in there if not one.pinned], incoming.bytes - room)


def _queue(
    standings: Collection[Standing], budget: int, now: float, since: Callable[[Standing], float | None]
) -> list[Standing]:
    """Those that wait and may come at some time, the longest waiting first."""
    room = budget - sum(one.bytes for one in standings if one.on and one.pinned)
    waiting = [
        (time, one)
        for one in standings
        if not one.on and one.barred <= now and one.bytes <= room and (time := since(one)) is not None
    ]
    return [one for _, one in sorted(waiting, key=lambda entry: entry[0])]


def _waits(first: Standing, rules: Rules) -> float:
    """Until when the first that asks lets others work, whatever their hold."""
    assert first.asked is not None
    return first.asked + rules.max_wait_s


def _leaves(one: Standing, first: Standing, rules: Rules) -> float:
    """From when on a model that is there leaves if the first that asks needs its bytes."""
    if one.pinned:
        return math.inf
    return max(one.arrived + rules.hold_s, _waits(first, rules)) if one.busy else -math.inf


def _tires(one: Standing, rules: Rules) -> float:
    """When a model that is there leaves though nobody asks."""
    return math.inf if one.busy or one.pinned or not rules.idle_s else one.rests + rules.idle_s


def _least(free: Collection[Standing], need: int) -> tuple[str, ...] | None:
    """Which of these leave for so many bytes; None: all are too few.

    First those without work, least recently used first, then as few as possible with work; nobody in vain.
    """
    idle = sorted((one for one in free if not one.busy), key=lambda one: one.rests)
    busy = sorted((one for one in free if one.busy), key=lambda one: one.arrived)
    short = need - sum(one.bytes for one in idle)
    working: list[Standing] = []
    while short > 0:
        if not busy:
            return None
        # The longest there that suffices; while none does, the largest: no other choice takes fewer in all.
        largest = max(busy, key=lambda one: one.bytes)
        chosen = next((one for one in busy if one.bytes >= short), largest)
        busy.remove(chosen)
        working.append(chosen)
        short -= chosen.bytes
    resting: list[Standing] = []
    for one in reversed(idle):
        if short + one.bytes <= 0:
            short += one.bytes
        else:
            resting.insert(0, one)
    return tuple(one.model for one in (*resting, *sorted(working, key=lambda one: one.arrived)))
