"""Scheduler, page pool and prefix cache under whatever may happen in any order, 10,000 steps of it.

The null device reads every stream's history back through its page table, and a failed step leaves junk
in its rows: so a page that is lost, shared or reused wrongly gives wrong tokens.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from itertools import accumulate

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import drive
from engine.drive import Faults, enqueue
from engine.harness import model
from engine.null_slot import PAGE_POSITIONS, ByteTokenizer, null_slot, request
from tierd.backends.null import NullExecutor
from tierd.backends.picking import pick
from tierd.chat.stops import text_stream
from tierd.core import (
    Batch,
    Chunk,
    FailedEvent,
    FinishedEvent,
    Request,
    SamplingParams,
    Sequence,
    TextEvent,
)
from tierd.engine.sampler import draw
from tierd.engine.scheduler import leave
from tierd.kv.prefix import _Entry, root_key

STEPS = 10_000
STEPS_EACH = 50
# Few different tokens, so that prompts often begin alike.
PROMPTS = st.integers(1, 14).flatmap(lambda n: st.lists(st.integers(0, 2), min_size=n, max_size=n))


# Prompts are mostly one owner's, so that they find something.
OWNERS = st.sampled_from(["", "", "", "alice"])
GREEDY = SamplingParams(temperature=0)
RANDOM = SamplingParams(temperature=1.0, seed=4)
STOPS = tuple(map(chr, range(64)))  # one token in four ends the stream


@functools.cache
def alone(asked: Request) -> list[int]:
    """Return the tokens of a request that is served alone: without scheduler, pages or cache."""
    executor = NullExecutor(pages=1, page_positions=64, max_rows=64)
    tokens = list(asked.prompt)
    while len(tokens) < len(asked.prompt) + asked.max_tokens:
        row = executor.run(Batch((Chunk(tuple(tokens), 0, (0,), (len(tokens) - 1,)),)))[0]
        sequence = Sequence(asked, text_stream(ByteTokenizer()), tokens)
        tokens.append(pick(row, draw(sequence, len(tokens), row.size)))
        if asked.stop and tokens[-1] < len(STOPS):
            break
    return tokens


class PrefixMachine(RuleBasedStateMachine):
    """Requests come, leave, fail and are served. There may be too few pages for all that was fed."""

    PAGES = 11
    STREAMS = 3
    DEPTH = 1
    steps = 0
    preemptions = 0

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()
        self.slot = null_slot(
            model("null", streams=self.STREAMS),
            pages=self.PAGES,
            chunk_rows=5,
            depth=self.DEPTH,
            before_step=self.faults,
        )
        self.there: list[Sequence] = []  # in order of arrival
        self.left: list[Sequence] = []  # and hold pages of steps in flight
        self.fed: list[
            tuple[str, list[int]]
        ] = []  # what was given back since the last flush, and whose it is
        self.known: list[Sequence] = []  # of those who have left, whose rows are given back
        self.ends: Counter[str] = Counter()
        self.count = 0

    # ---- What may happen

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 18),
        sampling=st.sampled_from([GREEDY, GREEDY, RANDOM]),
        stop=st.sampled_from([(), STOPS]),
        owner=OWNERS,
    )
    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        stop: tuple[str, ...] = (),
        owner: str = "",
    ) -> None:
        self.count += 1
        asked = request(f"r{self.count}", prompt, max_tokens, stop=stop)
        self.there += enqueue(self.slot, replace(asked, sampling=sampling, owner=owner))

    @precondition(lambda self: self.fed)
    @rule(
        data=st.data(),
        tail=st.lists(st.integers(0, 2), max_size=4),
        max_tokens=st.integers(1, 18),
        owner=OWNERS,
    )
    def take_up_again(self, data: st.DataObject, tail: list[int], max_tokens: int, owner: str) -> None:
        """Submit a prompt that goes on from, or branches off near, the end of what was fed before."""
        history = data.draw(st.sampled_from(self.fed[-8:]))[1][:20]
        cut = data.draw(st.integers(0, min(len(history), 5)))
        self.submit([*history[: len(history) - cut], *tail] or [0], max_tokens, owner=owner)

    @precondition(lambda self: self.slot.has_room)
    @rule()
    def begin(self) -> None:
        slot = self.slot
        running, returning, rest = list(slot.running), list(slot.returning), not slot.steps
        step = drive.begin(slot)
        if step is None and rest:
            assert all(sequence.paused for sequence in slot.running)
            assert slot.running or not self.there
        for sequence in slot.returning:
            if sequence not in returning:
                self.fed.append((sequence.owner, list(sequence.tokens)))
                PrefixMachine.preemptions += 1
        for sequence in slot.running:
            if sequence not in running and not sequence.preemptions:
                self.check_cached(sequence.cached, self.formula(sequence))

    @precondition(lambda self: self.slot.steps)
    @rule()
    def complete(self) -> None:
        for sequence, event in drive.complete(self.slot):
            assert sequence in self.there
            if isinstance(event, FinishedEvent):
                assert sequence.tokens == alone(replace(sequence.request, id="", owner=""))
                assert sequence.fed == len(sequence.tokens) - 1
                self.end(sequence)
            else:
                assert isinstance(event, TextEvent)
        self.note_what_was_given_back()

    @precondition(lambda self: self.there)
    @rule(steps=st.integers(2, 9))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.slot.has_room:
                self.begin()
            if self.slot.steps:
                self.complete()

    @precondition(lambda self: self.slot.steps)
    @rule()
    def fail(self) -> None:
        """The step fails, after it has spoilt its rows; everybody ends whose rows count."""
        self.faults.next = True
        for sequence, event in drive.complete(self.slot):
            assert isinstance(event, FailedEvent)
            self.end(sequence)
        self.note_what_was_given_back()

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.there))
        leave(self.slot, sequence)
        self.end(sequence)
        self.note_what_was_given_back()

    @precondition(lambda self: self.slot.running)
    @rule(data=st.data())
    def pause_or_go_on(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.slot.running))
        sequence.paused = not sequence.paused

    @precondition(lambda self: len(self.fed) > 5)  # not so often that nothing is ever found
    @rule()
    def flush(self) -> None:
        cached = self.slot.home.pool.cached
        assert self.slot.home.prefixes.flush() == cached
        assert len(self.slot.home.prefixes) == self.slot.home.pool.cached == 0
        self.fed.clear()

    # ---- What must be

    def check_cached(self, cached: int, formula: int) -> None:
        assert cached <= formula

    def formula(self, sequence: Sequence) -> int:
        """The longest common token prefix with what its owner fed, but one token at least is left to feed."""
        prompt = sequence.request.prompt
        common = (
            sum(accumulate((a == b for a, b in zip(prompt, fed, strict=False)), min))
            for owner, fed in self.fed
            if owner == sequence.owner
        )
        return min(max(common, default=0), len(prompt) - 1)

    def end(self, sequence: Sequence) -> None:
        self.there.remove(sequence)
        self.ends[sequence.request.id] += 1
        self.left.append(sequence)

    def note_what_was_given_back(self) -> None:
        """Those who have left hold pages as long as a step is at work on them, and no longer.

        What they were fed is there for others as soon as no row in flight adds to it.
        """
        for sequence in list(self.left):
            in_flight = [
                chunk
                for step in self.slot.steps
                for other, chunk in zip(step.sequences, step.batch.chunks, strict=True)
                if other is sequence
            ]
            adds = any(chunk.tokens[0] >= 0 for chunk in in_flight)
            assert bool(sequence.pages) == adds
            assert bool(sequence.held) == (bool(in_flight) and not adds)
            if not adds and sequence not in self.known:
                self.known.append(sequence)
                if sequence.fed:
                    self.fed.append((sequence.owner, sequence.tokens[: sequence.fed]))
            if not in_flight:
                self.left.remove(sequence)
                self.known.remove(sequence)

    @invariant()
    def a_step_is_counted(self) -> None:
        PrefixMachine.steps += 1

    @invariant()
    def first_come_first_served(self) -> None:
        assert [*self.slot.running, *self.slot.returning, *self.slot.waiting] == self.there

    @invariant()
    def one_end_each(self) -> None:
        assert set(self.ends.values()) <= {1}
        assert len(self.ends) + len(self.there) == self.count

    @invariant()
    def no_page_is_lost_or_owned_by_another(self) -> None:
        slot, pool = self.slot, self.slot.home.pool
        holders = [*slot.running, *self.left]
        assert not any(sequence.pages for sequence in [*slot.waiting, *slot.returning])
        owners = Counter(page for sequence in holders for page in (*sequence.pages, *sequence.held))
        assert [pool.references(page) for page in range(pool.total)] == [
            owners[page] for page in range(pool.total)
        ]
        assert all(len(set(sequence.pages)) == len(sequence.pages) for sequence in holders)
        assert pool.used == len(owners)
        assert pool.free + pool.cached + pool.used == pool.total
        promised = [sequence for sequence in holders if not sequence.held]
        assert pool.reserved == sum(slot.home.granted(s) - len(s.pages) for s in promised)
        assert pool.reserved <= pool.free + pool.cached
        for sequence in holders:
            for page in sequence.pages[sequence.fed // PAGE_POSITIONS :]:
                assert owners[page] == 1, "a page to be written has two owners"
                assert page not in slot.home.prefixes._entries, "a page to be written is cached"
        for step in slot.steps:
            for sequence, chunk in zip(step.sequences, step.batch.chunks, strict=True):
                assert list(chunk.pages) == (sequence.pages or sequence.held)[: len(chunk.pages)]

    @invariant()
    def the_index_is_no_larger_than_what_it_points_to(self) -> None:
        pool, cache = self.slot.home.pool, self.slot.home.prefixes
        assert pool.cached <= len(cache) <= pool.cached + pool.used <= pool.total
        assert sum(len(siblings) for siblings in cache._after.values()) == len(cache)
        assert all(cache._after.values())
        assert len(cache._whole) <= len(cache)

    @invariant()
    def every_cached_page_holds_what_its_key_says(self) -> None:
        found = 0
        followers: list[tuple[bytes, _Entry]] = [
            (root_key(owner), entry)
            for owner in ("", "alice")
            for entry in self.slot.home.prefixes._after.get(root_key(owner), ())
        ]
        while followers:
            before, entry = followers.pop()
            assert entry.before == before
            rows = self.slot.executor._tokens[entry.page]  # type: ignore[attr-defined]
            tokens = np.frombuffer(entry.tokens, "<u4")
            assert (rows[: len(tokens)] == tokens).all()
            found += 1
            if entry.key is not None:
                assert len(tokens) == PAGE_POSITIONS
                followers += [(entry.key, e) for e in self.slot.home.prefixes._after.get(entry.key, ())]
        assert found == len(self.slot.home.prefixes)

    def teardown(self) -> None:
        """Serve all who are left, then look at the books at rest, and after a flush."""
        for sequence in self.slot.running:
            sequence.paused = False
        while self.there or self.slot.steps:
            if self.slot.has_room:
                self.begin()
            if self.slot.steps:
                self.complete()
        self.no_page_is_lost_or_owned_by_another()
        pool = self.slot.home.pool
        assert pool.free + pool.cached == pool.total
        assert len(self.slot.home.prefixes) == pool.cached
        self.slot.home.prefixes.flush()
        assert pool.free == pool.total
        assert not self.slot.home.prefixes._after
        assert not self.slot.home.prefixes._whole
        assert self.ends == Counter(f"r{number + 1}" for number in range(self.count))


class RoomyMachine(PrefixMachine):
    """There are pages for all that is ever fed, so what is cached is just what the formula says."""

    PAGES = 500

    def check_cached(self, cached: int, formula: int) -> None:
        assert cached == formula


class AheadMachine(PrefixMachine):
    """Two steps are in flight."""

    DEPTH = 2


class RoomyAheadMachine(RoomyMachine):
    """Two steps are in flight, and there are pages for all."""

    DEPTH = 2


class CrowdedMachine(AheadMachine):
    """More streams run than there are pages for, so that some have to wait in the middle."""

    STREAMS = 6

    @initialize()
    def crowd(self) -> None:
        for first in (0, 1, 2, 0, 1, 2):
            self.submit([first], 18)
        self.go_on(9)


class FarAheadMachine(PrefixMachine):
    """Three steps are in flight."""

    DEPTH = 3


def test_ten_thousand_steps() -> None:
    for machine, examples in (
        (PrefixMachine, 110),
        (RoomyMachine, 40),
        (AheadMachine, 70),
        (CrowdedMachine, 40),
        (RoomyAheadMachine, 40),
        (FarAheadMachine, 40),
    ):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples, stateful_step_count=STEPS_EACH, deadline=None, derandomize=True
            ),
        )
    assert PrefixMachine.steps >= STEPS, PrefixMachine.steps
    assert PrefixMachine.preemptions > 50, PrefixMachine.preemptions
