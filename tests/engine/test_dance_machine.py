"""Models that take turns on a device that does not hold all of them, whatever happens in any order.

What holds for every engine holds here too, and the device's memory is whose it is said to be.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from engine.harness import model
from engine.manual import Board
from engine.null_stage import NullMarks, NullStage, seated_slot
from engine.serving_machine import (
    CALLS,
    CHUNK_ROWS,
    CONTEXT,
    MANY,
    OFTEN,
    POSITIONS,
    RARELY,
    TALKS,
    Calls,
    ServingMachine,
    fallback_of,
    home_of,
    play,
)
from tierd.core import FailedEvent, PassReason, TerminalEvent
from tierd.engine.messages import Activate, Drain, Load, Resume, Unload
from tierd.errors import (
    DeviceLostError,
    DeviceMemoryError,
    ModelError,
    ModelNotFoundError,
    OrderError,
    QueueTimeoutError,
    TierdError,
    UnavailableError,
)
from tierd.settings import ModelSettings, QueueSettings, ServerSettings, Settings, SwitchSettings
from tierd.slot import Placed, Slot
from tierd.tier.reservations import Reservations
from tierd.tier.status import TierStatus

BUDGET = 12
NAMES = "abcd"
REFUSALS = {"no room": DeviceMemoryError, "lost": DeviceLostError}
THERE = ("on", "leaving", "armed")


@dataclass(frozen=True)
class Given:
    """What an example begins with. sizes: bytes of the models on a device of `BUDGET`. pinned: models.

    delay_s: between tries of a lost device. bank: positions. cpu: whether it may have streams.
    stops: it ends by a Stop. calm: nothing goes wrong, and nobody needs the CPU. talks: that it begins with.
    """

    sizes: tuple[int, ...]
    pinned: str
    preloaded: str
    switch: SwitchSettings
    timeout_s: float
    regions: int
    streams: int
    bank: int
    spills: bool
    keeps: bool
    scratch: bool
    pages: int
    tries: int
    delay_s: float
    cpu: bool
    stops: bool
    calm: bool
    talks: list[tuple[int, bytes, int]]


GIVEN = st.builds(
    Given,
    sizes=st.tuples(*len(NAMES) * [st.integers(4, BUDGET)]),
    pinned=st.sampled_from(("", "", "", "a", "bd")),
    preloaded=st.sampled_from(("abcd", "abcd", "b", "")),
    switch=st.builds(
        SwitchSettings,
        min_hold_s=st.sampled_from((0.0, 1.0, 10.0)),
        max_wait_s=st.sampled_from((0.0, 0.5, 10.0)),
        resume=st.sampled_from(("device", "device", "cpu")),
        idle_s=st.sampled_from((0.0, 0.0, 5.0)),
    ),
    timeout_s=st.sampled_from((0.0, 0.0, 20.0)),
    regions=st.integers(1, 3),
    streams=st.integers(1, 3),
    bank=st.sampled_from((0, 40, 100, 1000)),
    spills=st.booleans(),
    keeps=st.sampled_from(OFTEN),
    scratch=st.booleans(),
    pages=st.sampled_from((24, 30, 256)),
    tries=st.sampled_from((0, 2, 9, 9)),
    delay_s=st.sampled_from((0.0, 3.0)),
    cpu=st.sampled_from(OFTEN),
    stops=st.sampled_from(RARELY),
    calm=st.sampled_from((False, False, True)),
    talks=TALKS,
)


class DanceMachine(ServingMachine):
    """Three models, or four, with seats on one stage that holds some of them."""

    seen: ClassVar[Counter[str]] = Counter()
    models = "abcabd"

    @initialize(given=GIVEN)
    def begin(self, given: Given) -> None:
        self.given, self.calm = given, given.calm
        self.stage, switch = BoardStage(self), given.switch
        if given.calm:
            switch = SwitchSettings(
                min_hold_s=switch.min_hold_s, max_wait_s=switch.max_wait_s, idle_s=switch.idle_s
            )
        self.open(
            Settings(
                queue=QueueSettings(capacity=MANY, timeout_s=0 if given.calm else given.timeout_s),
                server=ServerSettings(reader_backlog=4, reader_timeout_s=10**6),
                switch=switch,
            ),
            bank=given.bank,
            spills=given.spills,
            stops=given.stops,
            open_slot=self.open_slot,
            tier=self.stage.status,
            release=self.release,
        )
        self.homeless = not (given.cpu or given.calm)
        self.unreadable = False
        self.draining = False
        self.excused: set[str] = set()  # requests that were ended on purpose, or came in vain
        self.promises: list[Future[Any]] = []
        for name in NAMES[:3]:
            self.loop.put(self.open_slot(self.settings_of(name)))
        self.ask_first(given.talks)

    def settings_of(self, name: str) -> ModelSettings:
        there = model(name, streams=self.given.streams)
        return ModelSettings(
            id=name,
            path=there.path,
            streams=there.streams,
            pin=name in self.given.pinned and not self.calm,
            preload=name in self.given.preloaded,
        )

    def open_slot(self, settings: ModelSettings) -> Slot:
        if self.unreadable:
            raise ModelError("it cannot be read")
        given, size = self.given, self.given.sizes[NAMES.index(settings.id)]
        slot = seated_slot(
            settings,
            self.stage,
            size=size,
            on=settings.preload,
            regions=given.streams if self.calm else given.regions,
            positions=CONTEXT if self.calm else POSITIONS,
            context=CONTEXT,
            bank=self.bank,
            gone=self.gone,
            keeps=given.keeps,
            scratch=given.scratch,
            chunk_rows=CHUNK_ROWS,
            executor=self.executor,
            cpu_step=self.cpu_step,
        )
        fallback = fallback_of(slot)
        fallback.tries, fallback.delay_s, fallback.pages = given.tries, given.delay_s, given.pages
        fallback.refusal = "" if given.cpu else "not there"
        fallback.probe = self.probe
        self.slots.append(slot)
        return slot

    def release(self, name: str) -> None:
        """Forget a model that was freed."""
        for slot in [slot for slot in self.slots if slot.id == name]:
            assert slot.seat is not None
            slot.seat.release()
            self.slots.remove(slot)

    def probe(self) -> None:
        """Find a device that works."""
        if self.board.abandoned:
            self.board = Board()

    # ---- What happens

    @rule(
        what=st.sampled_from(("activate", "activate", "load", "load", "drain")),
        index=st.integers(0, 11),
        activate=st.booleans(),
        limit_s=st.sampled_from((None, 0.0, 4.0)),
        calls=CALLS,
    )
    def administrate(
        self, what: str, index: int, activate: bool, limit_s: float | None, calls: Calls
    ) -> None:
        """Bring a model to the device, load it or, where it is there, unload it; drain, or resume."""
        name = self.name(index)
        match what:
            case "activate":
                self.loop.inbox.put(Activate(name, self.promise()))
            case "load" if name in self.loop.models.catalogue.entries:
                self.unload(name, limit_s)
            case "load":
                self.loop.inbox.put(Load(self.settings_of(name), self.promise(), activate=activate))
            case "drain":
                self.drain_or_resume()
        self.turn()
        self.do(*calls)

    # ---- How

    def promise(self) -> Future[Any]:
        future: Future[Any] = Future()
        self.promises.append(future)
        return future

    def unload(self, name: str, limit_s: float | None) -> None:
        until = None if limit_s is None else self.clock.now + limit_s
        if until is not None:
            self.excused |= {id for id in self.loop.live if self.asked[id].model == name}
        self.loop.inbox.put(Unload(name, until, self.promise()))

    def drain_or_resume(self) -> None:
        self.draining = not self.draining
        if self.draining:
            self.excused |= {sequence.request.id for slot in self.slots for sequence in slot.waiting}
            self.loop.inbox.put(Drain(self.promise()))
        else:
            self.loop.inbox.put(Resume(self.promise()))

    def submit(self, model: str, prompt: bytes, tokens: int, **options: bool | int) -> None:
        if self.draining or model not in self.loop.models.catalogue.entries:
            self.excused.add(f"r{len(self.asked)}")
        super().submit(model, prompt, tokens, **options)

    def prepare_workers(self, fate: str, tries: int = 1) -> None:
        super().prepare_workers(fate, tries)
        self.unreadable = fate == "no room" and tries == 3
        self.stage.broken = [REFUSALS[fate]("it cannot be") for _ in range(tries) if fate in REFUSALS]

    def turn(self) -> None:
        super().turn()
        switch = self.loop.dance.switch
        if switch is not None:
            self.seen[switch.phase] += 1
            self.seen["forced"] += switch.reason == "admin"
            self.seen["nobody comes"] += switch.incoming is None
            self.seen["unload in a switch"] += any(slot.id in self.loop.unloads for slot in switch.outgoing)
        for slot in self.slots:
            self.seen["barred"] += slot.barred is not None
            self.seen["waited for"] += bool(slot.returning) and not slot.serves

    # ---- What is true at any time

    @invariant()
    def reservations_are_those_of_the_models_that_are_there(self) -> None:
        seats = {slot.id: slot.seat for slot in self.slots if slot.seat is not None}
        there = {name: seat.bytes for name, seat in seats.items() if seat.state in THERE}
        assert self.stage.reservations.held == there
        assert sum(there.values()) <= BUDGET

    @invariant()
    def models_move_in_the_one_switch_alone(self) -> None:
        switch = self.loop.dance.switch
        for slot in self.slots:
            assert slot.seat is not None
            if slot.seat.state not in ("on", "away", "lost"):
                assert switch is not None
                assert switch.involves(slot)

    @invariant()
    def a_model_that_is_away_has_nothing_on_the_device(self) -> None:
        for slot in self.slots:
            assert slot.seat is not None
            if slot.seat.state in ("dropped", "away", "restored"):
                assert not any((slot.running, slot.steps, slot.move, slot.home.moves, slot.guests))
                assert home_of(slot).regions.free == home_of(slot).regions.count

    # ---- And at the end

    def rest(self) -> None:
        if self.stops:
            self.excused |= self.loop.live
        super().rest()

    @property
    def rests(self) -> bool:
        return super().rests and all(promise.done() for promise in self.promises)

    def check_ends(self) -> None:
        super().check_ends()
        for promise in self.promises:
            error = promise.exception()
            assert error is None or (isinstance(error, TierdError) and not isinstance(error, OrderError))
        if self.calm:
            assert not self.counted(self.loop.metrics.passes, "reason")
        self.seen["calm"] += self.calm
        self.seen.update(self.counted(self.loop.metrics.switches, "outcome"))

    def check_that_nothing_is_held(self) -> None:
        assert self.loop.dance.switch is None
        assert {slot.seat.state for slot in self.slots if slot.seat is not None} <= {"on", "away", "lost"}
        super().check_that_nothing_is_held()

    def may_end(self, id: str, end: TerminalEvent) -> bool:
        match end:
            case FailedEvent(UnavailableError() | ModelNotFoundError()) if id in self.excused:
                return True
            case FailedEvent(QueueTimeoutError()):
                return self.given.timeout_s > 0 and not self.calm
        return super().may_end(id, end)


class BoardStage(NullStage):
    """Of a machine's board: nobody comes to one that was given up."""

    def __init__(self, machine: DanceMachine) -> None:
        super().__init__(BUDGET)
        self.reservations = Reservations(lambda: self.status().budget)
        self._machine = machine

    def renew(self, marks: NullMarks) -> NullMarks:
        if self._machine.board.abandoned:
            raise DeviceLostError("it was given up")
        return super().renew(marks)

    def arm(self, marks: NullMarks) -> tuple[Placed, NullMarks]:
        self._machine.clock.now += 0.5  # whose hold depends on it
        try:
            return super().arm(marks)
        except DeviceLostError:
            self._machine.board.abandoned = True
            raise

    def status(self) -> TierStatus:
        return TierStatus() if self._machine.board.abandoned else super().status()


USUAL = {
    *("whole", "lost", "stranded", "followed", "paused", "banked", "spilled", "calm"),
    *("pause", "hydrate", "rehome", "forced", "nobody comes", "barred", "waited for", "done", "failed"),
    *(PassReason.DEVICE_LOST, PassReason.AWAY, PassReason.CAP),
}
SELDOM = {
    *("returned", "fetched", "unload in a switch"),
    *(PassReason.NO_ROOM, PassReason.PAGED, PassReason.PINNED_OFF, PassReason.UNHOMED, PassReason.GAP),
}


@pytest.mark.parametrize(
    ("rounds", "wanted"),
    [(5, USUAL), pytest.param(300, USUAL | SELDOM, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_models_take_turns_and_no_stream_ends_by_it(rounds: int, wanted: set[str]) -> None:
    play(DanceMachine, rounds)
    assert set(+DanceMachine.seen) >= wanted, DanceMachine.seen
