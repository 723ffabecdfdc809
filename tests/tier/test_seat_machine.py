"""Every order of the calls by which models leave a device and come back, over a device that counts its calls.

A wrong call raises before the device, or anything else, has changed. Homes, regions and the bank are real;
rows are those of null executors, whose logits depend on every row of a stream.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tierd.backends.absent import AbsentExecutor
from tierd.backends.null import NullExecutor
from tierd.core import Batch, Chunk, Request, SamplingParams, Sequence
from tierd.errors import DeviceLostError, DeviceMemoryError, OrderError, TierdError
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.kv.moves import Move
from tierd.kv.saved import evacuate
from tierd.slot import Placed
from tierd.tier.device_home import DeviceHome
from tierd.tier.reservations import Reservations
from tierd.tier.seat import DeviceSeat, SeatState

SIZES = {"large": 7, "middle": 4, "small": 3}
BUDGETS = (10, 7, 6)
REGIONS, POSITIONS = 2, 16
ROW_BYTES = 8
BANK_ROWS = 24
MODELS = st.sampled_from(sorted(SIZES))
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)

# What each call leads to, by the state in which it may be made.
WAYS = {
    "leave": {"on": "leaving"},
    "stay": {"leaving": "on"},
    "drop": {"leaving": "dropped"},
    "save": {"dropped": "away", "restored": "away", "lost": "away"},
    "restore": {"away": "restored"},
    "rearm": {"restored": "armed"},
    "settle": {"armed": "on"},
    "lose": {"on": "lost", "leaving": "lost", "armed": "lost"},
}
# By which calls a model goes to the device from wherever it is, and by which it leaves.
INWARD = {
    "away": "restore", "restored": "rearm", "armed": "settle", "leaving": "stay", "dropped": "save",
    "lost": "save",
}  # fmt: skip
OUTWARD = {
    "on": "leave", "leaving": "drop", "dropped": "save", "restored": "save", "armed": "settle",
    "lost": "save",
}  # fmt: skip
SELDOM = st.sampled_from([False, False, False, True])
# How a model comes to be in a state.
_ON = ("restore", "rearm", "settle")
PATHS = {
    "away": (), "restored": ("restore",), "armed": ("restore", "rearm"), "on": _ON,
    "leaving": (*_ON, "leave"), "dropped": (*_ON, "leave", "drop"), "lost": (*_ON, "lose"),
}  # fmt: skip
THERE = ("on", "leaving", "armed")


@dataclass(frozen=True)
class FakeMarks:
    model: str
    bytes: int


class FakeExecutor(NullExecutor):
    """Regions on the fake device."""

    def __init__(self, stage: FakeStage, model: str) -> None:
        super().__init__(name="fake", pages=REGIONS, page_positions=POSITIONS, vocabulary=8)
        self.stage = stage
        self.model = model

    def close(self) -> None:
        if not self.closed:
            self.stage.calls += 1
            del self.stage.there[self.model]
        super().close()


class FakeStage:
    """A device of `budget` bytes.

    calls: to arm, and to close what was armed. there: who has been armed and not been closed. broken: what
    the next try to arm meets. less: bytes by which the next model gets by with fewer. renewed: how often a
    model has asked what it gets. sizes: what each takes.
    """

    def __init__(self, bank: Bank) -> None:
        self.budget = max(BUDGETS)
        self.reservations = Reservations(lambda: self.budget)
        self.calls = self.renewed = self.less = 0
        self.there: dict[str, FakeExecutor] = {}
        self.broken: Exception | None = None
        self.sizes = dict(SIZES)
        self._bank = bank

    def bytes_of(self, model: str) -> int:
        return self.sizes[model]

    def renew(self, marks: FakeMarks) -> FakeMarks:
        self.renewed += 1
        return replace(marks, bytes=self.sizes[marks.model])

    def arm(self, marks: FakeMarks) -> tuple[Placed, FakeMarks]:
        self.calls += 1
        assert self.reservations.held[marks.model] == marks.bytes
        assert marks.model not in self.there
        assert sum(self.reservations.held.values()) <= self.budget
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        self.sizes[marks.model] -= self.less
        self.less = 0
        self.there[marks.model] = executor = FakeExecutor(self, marks.model)
        home = home_of(marks.model, executor, self._bank)
        placed = Placed(
            home=home, context=POSITIONS, outcome="", device="", codec="", prefill_window=executor.max_rows
        )
        return placed, replace(marks, bytes=self.sizes[marks.model])


def home_of(model: str, executor: Any, bank: Bank) -> DeviceHome:
    return DeviceHome(executor, model=model, origin="fake", bank=bank, gone=Gone(), regions=REGIONS)


def stream_of(model: str, tokens: list[int]) -> Sequence:
    request = Request(
        id="", model=model, prompt=tuple(tokens), max_tokens=POSITIONS, sampling=SamplingParams()
    )
    return Sequence(request=request, text=None, tokens=list(tokens))  # type: ignore[arg-type]


@dataclass
class Model:
    """streams: here, in regions. exiles: elsewhere, with what is saved of their rows."""

    seat: DeviceSeat[FakeMarks]
    home: DeviceHome
    marks: FakeMarks | None
    state: str = "away"
    streams: list[Sequence] = field(default_factory=list)
    exiles: list[Sequence] = field(default_factory=list)


class SeatMachine(RuleBasedStateMachine):
    """What may happen to models that share a device, and what must not."""

    steps: ClassVar[int] = 0
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.bank = Bank(BANK_ROWS * ROW_BYTES)
        self.stage = FakeStage(self.bank)
        self.models = {model: self.load(model) for model in SIZES}
        self.held: dict[str, int] = {}  # what reservations must be

    def load(self, model: str) -> Model:
        absent = AbsentExecutor.of(NullExecutor(pages=REGIONS, page_positions=POSITIONS, vocabulary=8))
        return Model(
            DeviceSeat(model, self.stage),
            home_of(model, absent, self.bank),
            FakeMarks(model, self.stage.sizes[model]),
        )

    # ---- Calls, in any order

    @rule(name=MODELS, call=st.sampled_from(sorted(WAYS)))
    def call_anything(self, name: str, call: str) -> None:
        self.attempt(name, call)

    @initialize(there=st.lists(st.tuples(MODELS, TOKENS), min_size=2, max_size=6))
    def begin_with(self, there: list[tuple[str, list[int]]]) -> None:
        """Some models are there and serve streams."""
        for name, tokens in there:
            self.go_on(name, inward=True, calls=3)
            self.begin_at(self.models[name], tokens)

    @rule(name=MODELS, inward=st.booleans(), calls=st.sampled_from([6, 6, 3, 2, 1]), lost=SELDOM)
    def go_on(self, name: str, inward: bool, calls: int, lost: bool = False) -> None:
        """The next calls of a model that comes or leaves; then the device may be lost to all."""
        for _ in range(calls):
            state = self.models[name].state
            if not inward and state == "leaving":
                self.hydrate(name, 3)
            call = (INWARD if inward else OUTWARD).get(state)
            if call is not None:
                self.attempt(name, call)
        for other, model in self.models.items():
            if lost and model.state in THERE:
                self.attempt(other, "lose")

    def attempt(self, name: str, call: str) -> None:
        """Make a call, and see to it that what comes of it is what should."""
        model = self.models[name]
        before, calls = self.facts(), self.stage.calls
        wrong = self.wrong(name, call)
        if wrong:
            self.seen[f"{call} while {model.state}, in vain"] += 1
            with pytest.raises(OrderError) as refused:
                self.make(model, call)
            assert str(refused.value).startswith(wrong)
            assert self.facts() == before
            return
        if call == "rearm" and not self.rearms(name, before):
            return
        result = self.make(model, call)
        self.seen[f"{call} from {model.state}"] += 1
        model.state = WAYS[call][model.state]
        if call == "save":
            assert isinstance(result, FakeMarks)
            model.marks = result
        elif call == "restore":
            model.marks = None
        elif call == "rearm":
            self.arrive(name, result)
        elif call in ("drop", "lose"):
            del self.held[name]
        if call == "drop":
            assert isinstance(model.home.executor, AbsentExecutor)
            assert self.stage.calls == calls + 1
        if call == "lose":
            self.lose(model)

    def make(self, model: Model, call: str) -> Any:
        if call == "drop":
            return model.seat.drop(model.home)
        if call == "restore":
            return model.seat.restore(model.marks or FakeMarks(model.seat.model, 1))
        return getattr(model.seat, call)()

    def wrong(self, name: str, call: str) -> str:
        """Say why a call is out of order, "" when it is not."""
        model = self.models[name]
        if model.state not in WAYS[call]:
            return f"{name} cannot {call} while it is {model.state}: it must be "
        if call == "drop" and (model.home.moves or model.home.room.free < REGIONS):
            return f"{name} cannot drop: rows of "
        if call == "rearm":
            leaving = sorted(other for other, each in self.models.items() if each.state == "leaving")
            if leaving:
                return f"{name} cannot come: {', '.join(leaving)} is to leave the device"
        return ""

    def rearms(self, name: str, before: dict[str, object]) -> bool:
        """Whether a rearm that is in order goes well; makes it where it does not."""
        model, size = self.models[name], self.stage.sizes[name]
        broken, calls, renewed = self.stage.broken, self.stage.calls, self.stage.renewed
        full = sum(self.held.values()) + size > self.stage.budget
        if not full and broken is None:
            return True
        self.seen["rearm: full" if full else "rearm: broken"] += 1
        with pytest.raises((DeviceMemoryError if full or broken is None else type(broken),)):
            model.seat.rearm()
        assert (self.stage.calls, self.stage.renewed) == (calls + (not full), renewed + 1 + full)
        assert {**self.facts(), "touched": 0} == {**before, "touched": 0}
        return False

    def arrive(self, name: str, placed: Placed) -> None:
        model = self.models[name]
        assert placed.seat is model.seat
        assert isinstance(placed.home, DeviceHome)
        model.home = placed.home
        self.held[name] = self.stage.sizes[name]

    def lose(self, model: Model) -> None:
        """All that it had on the device is gone, but for what the bank has."""
        model.home.lose()
        for stream in model.streams:
            stream.saved = model.home.rescue(stream)
            self.exile(model, stream)
        model.streams.clear()
        model.home.executor.close()

    @rule(name=MODELS, other=MODELS)
    def restore_anothers(self, name: str, other: str) -> None:
        model = self.models[name]
        if name != other and model.state == "away":
            before = self.facts()
            with pytest.raises(OrderError, match=f"{name} cannot restore: the marks are those of {other}"):
                model.seat.restore(FakeMarks(other, 1))
            assert self.facts() == before

    @rule(
        error=st.sampled_from([DeviceMemoryError("full"), DeviceLostError("lost"), ValueError("else")]),
        sure=SELDOM,
    )
    def let_the_next_fail(self, error: Exception, sure: bool) -> None:
        if sure:
            self.stage.broken = error

    @rule(less=st.integers(0, 1))
    def let_the_next_get_by_with_less(self, less: int) -> None:
        self.stage.less = less

    @precondition(lambda self: not self.stage.there)
    @rule(budget=st.sampled_from(BUDGETS), size=st.integers(2, 6), name=MODELS, sure=SELDOM)
    def find_a_fresh_device(self, budget: int, size: int, name: str, sure: bool) -> None:
        """Models get there what they have not had before."""
        if sure:
            self.stage.budget = budget
            self.stage.sizes[name] = size

    @rule(name=MODELS, sure=SELDOM)
    def end_the_model(self, name: str, sure: bool) -> None:
        """It is unloaded, in the midst of whatever it was at, and loaded again."""
        model = self.models[name]
        if not sure:
            return
        model.home.lose()
        for stream in [*model.streams, *model.exiles]:
            if stream.saved is not None:
                stream.saved.close()
        model.home.executor.close()
        model.seat.release()
        self.seen[f"released from {model.state}"] += 1
        assert model.seat.state == "away"
        self.held.pop(name, None)
        self.models[name] = self.load(name)

    # ---- Streams, and their rows

    def serving(self) -> list[Model]:
        return [model for model in self.models.values() if model.seat.serves]

    @precondition(lambda self: self.serving())
    @rule(data=st.data(), tokens=TOKENS)
    def begin(self, data: st.DataObject, tokens: list[int]) -> None:
        """A stream comes home with its rows, or a new one begins where nobody waits for that."""
        self.begin_at(data.draw(st.sampled_from(self.serving())), tokens)

    @precondition(lambda self: any(model.exiles for model in self.models.values()))
    @rule(data=st.data())
    def bring_home(self, data: st.DataObject) -> None:
        """A model comes for a stream that waits for it, if others let it."""
        waited_for = [name for name, model in self.models.items() if model.exiles]
        name = data.draw(st.sampled_from(waited_for))
        self.go_on(name, inward=True, calls=3)
        self.begin_at(self.models[name], [])

    def begin_at(self, model: Model, tokens: list[int]) -> None:
        if model.seat.serves and model.home.room.used < REGIONS:
            fresh = not model.exiles
            self.admit(model, stream_of(model.seat.model, tokens) if fresh else model.exiles.pop(0))

    def admit(self, model: Model, stream: Sequence) -> None:
        saved = 0 if stream.saved is None else stream.saved.positions
        if not model.home.can_admit(stream):
            model.exiles.append(stream)
            return
        model.home.admit(stream)
        model.streams.append(stream)
        while stream.moves:
            self.carry(model)
        assert stream.fed >= saved
        self.seen["came with rows" if saved else "came without rows"] += 1
        self.feed(model, stream)

    def feed(self, model: Model, stream: Sequence) -> None:
        """Compute what is left of a stream's tokens: what comes of it tells whether its rows are its own."""
        chunk = Chunk(tuple(stream.tokens[stream.fed :]), stream.fed, tuple(stream.pages), (0,))
        chunk = replace(chunk, logit_rows=(len(chunk.tokens) - 1,))
        executor = model.home.executor
        assert isinstance(executor, FakeExecutor)
        (logits,) = executor.run(Batch((chunk,)))
        alone = NullExecutor(pages=1, page_positions=POSITIONS, vocabulary=8)
        whole = Chunk(tuple(stream.tokens), 0, (0,), (len(stream.tokens) - 1,))
        np.testing.assert_array_equal(logits, alone.run(Batch((whole,)))[0])
        stream.fed = len(stream.tokens)
        stream.tokens.append(int(np.argmax(logits[:3])))
        model.home.advanced(stream)

    @precondition(lambda self: any(model.streams for model in self.serving()))
    @rule(data=st.data(), ends=SELDOM)
    def generate(self, data: st.DataObject, ends: bool) -> None:
        """A model's oldest stream goes on, or ends and leaves its rows behind."""
        model = data.draw(st.sampled_from([model for model in self.serving() if model.streams]))
        stream = model.streams[0]
        if not ends and len(stream.tokens) < POSITIONS:
            self.feed(model, stream)
        else:
            model.streams.remove(stream)
            model.home.let_go(stream, written=False)

    @rule(name=MODELS, slices=st.integers(1, 8))
    def hydrate(self, name: str, slices: int) -> None:
        """What a model that leaves has there begins to move, or moves on."""
        model = self.models[name]
        if model.state != "leaving":
            return
        for stream in list(model.streams):
            if not stream.moves:
                self.evacuate(model, stream)
        if not model.streams and not model.home.moves:
            self.seen["parked rows"] += model.home.room.cached
            model.home.vacate()
        for _ in range(slices):
            if model.home.moves:
                self.carry(model)

    def evacuate(self, model: Model, stream: Sequence) -> None:
        def out(moved: bool) -> None:
            self.seen["went with rows" if moved else "went without rows"] += 1
            model.home.let_go(stream, written=False)
            model.streams.remove(stream)
            self.exile(model, stream)

        evacuate(model.home, self.bank, stream, out, keep=True)

    def exile(self, model: Model, stream: Sequence) -> None:
        stream.pages.clear()
        stream.fed, stream.follows = 0, None
        model.exiles.append(stream)

    def carry(self, model: Model) -> None:
        """Run the first move of a home, whole."""
        move = model.home.moves[0]
        while move.left:
            move.run(move.left.popleft(), model.home.executor)
        model.home.moves.popleft().finish(True)

    # ---- What must be

    def facts(self) -> dict[str, object]:
        """All that a call that is refused leaves as it is."""
        return {
            "touched": (self.stage.calls, self.stage.renewed),
            "there": dict(self.stage.there),
            "held": self.stage.reservations.held,
            "states": [(str(model.seat.state), model.seat.serves) for model in self.models.values()],
            "executors": [model.home.executor for model in self.models.values()],
            "rooms": [model.home.room for model in self.models.values()],
            "bank": (self.bank.used, self.bank.entries),
        }

    @invariant()
    def a_step_is_counted(self) -> None:
        type(self).steps += 1

    @invariant()
    def everybody_is_where_they_should_be(self) -> None:
        for name, model in self.models.items():
            assert model.seat.state == model.state
            assert model.seat.serves == (model.state in ("on", "armed"))
            assert model.seat.bytes == self.held.get(name, self.stage.sizes[name])
        there = {name for name, model in self.models.items() if model.state in THERE}
        assert set(self.held) == there == set(self.stage.there)
        assert self.stage.reservations.held == self.held
        held = sum(self.held.values())
        assert held <= self.stage.budget
        assert self.stage.reservations.free == self.stage.budget - held

    @invariant()
    def no_region_and_no_byte_is_lost(self) -> None:
        for model in self.models.values():
            room = model.home.room
            assert room.free + room.used + room.cached + model.home.regions.leaving == REGIONS
            assert room.used == len(model.streams)
        assert self.bank.used == sum(entry.bytes for entry in self.bank.entries) <= self.bank.limit
        saved = {stream for stream in self.streams() if stream.saved is not None}
        moving = sum(not move.inward for model in self.models.values() for move in model.home.moves)
        assert sum(not entry.kept or entry.live for entry in self.bank.entries) <= len(saved) + moving

    def streams(self) -> Iterator[Sequence]:
        return itertools.chain.from_iterable(each.streams + each.exiles for each in self.models.values())

    def teardown(self) -> None:
        """In the end everybody leaves, in order: then nothing is left."""
        self.stage.broken, self.stage.less = None, 0
        for name, model in self.models.items():
            while model.state != "away":
                if model.state == "leaving":
                    self.hydrate(name, 8)
                if not self.wrong(name, OUTWARD[model.state]):
                    self.attempt(name, OUTWARD[model.state])
            assert (model.home.room.free, len(model.home.moves)) == (REGIONS, 0)
        assert (self.stage.there, self.stage.reservations.held) == ({}, {})
        for stream in self.streams():
            if stream.saved is not None:
                stream.saved.close()
        self.bank.flush()
        assert (self.bank.used, self.bank.entries) == (0, ())


USUAL = {
    *(f"{call} from {state}" for call, ways in WAYS.items() for state in ways),
    "rearm: full", "rearm: broken", "rearm while restored, in vain", "drop while leaving, in vain",
    "released from on", "released from away", "parked rows", "went with rows", "went without rows",
    "came with rows", "came without rows",
}  # fmt: skip


def test_calls_out_of_order_change_nothing_and_those_in_order_leave_nothing_behind() -> None:
    SeatMachine.steps, SeatMachine.seen = 0, Counter()
    run_state_machine_as_test(
        SeatMachine,
        settings=settings(
            max_examples=80,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate, Phase.shrink),
        ),
    )
    assert set(+SeatMachine.seen) >= USUAL, (USUAL - set(+SeatMachine.seen), SeatMachine.seen)
    assert SeatMachine.steps >= 20 * 80, SeatMachine.steps


@pytest.mark.parametrize("state", [str(state) for state in SeatState])
def test_every_call_in_every_state(state: str) -> None:
    """Each is made in a world of its own, and what must not be done there does nothing."""
    for call, ways in WAYS.items():
        machine = SeatMachine()
        machine.seen.clear()
        for each in PATHS[state]:
            machine.attempt("large", each)
        assert machine.models["large"].seat.state == state
        machine.attempt("large", call)
        assert bool(machine.seen[f"{call} while {state}, in vain"]) == (state not in ways)
        machine.everybody_is_where_they_should_be()
        machine.teardown()


def test_who_stays_after_all_is_in_nobodys_way() -> None:
    machine = SeatMachine()
    for call in (*PATHS["leaving"], "stay"):
        machine.attempt("small", call)
    for call in PATHS["on"]:
        machine.attempt("middle", call)
    assert machine.held == {"small": 3, "middle": 4}


def test_nobody_drops_while_rows_of_the_scratch_region_are_on_their_way() -> None:
    """That region is no stream's, and so it is not among those that are free or not."""
    machine = SeatMachine()
    for call in PATHS["leaving"]:
        machine.attempt("small", call)
    model = machine.models["small"]
    rows = [np.zeros((1, ROW_BYTES), np.uint8)]
    model.home.moves.append(Move(None, (REGIONS,), rows, 0, 1, inward=False, finish=lambda _: None))
    machine.seen.clear()
    machine.attempt("small", "drop")
    assert machine.seen["drop while leaving, in vain"] == 1
    model.home.moves.clear()
    machine.attempt("small", "drop")


def test_reservations_tell_what_is_not_in_order() -> None:
    there = Reservations(lambda: 10)
    there.take("a", 6)
    with pytest.raises(OrderError, match="a is on the device already"):
        there.take("a", 1)
    with pytest.raises(TierdError, match=r"b needs .* of which .* are free"):
        there.take("b", 5)
    with pytest.raises(OrderError, match="a has no reservation of 7 bytes"):
        there.adjust("a", 7)
    with pytest.raises(OrderError, match="b has no reservation of 0 bytes"):
        there.adjust("b", 0)
    with pytest.raises(OrderError, match="b cannot leave: it is not on the device"):
        there.leave("b")
    there.adjust("a", 5)
    there.take("b", 5)
    assert (there.held, there.of("a"), there.of("c"), there.free) == ({"a": 5, "b": 5}, 5, 0, 0)
    there.leave("a")
    there.leave("b")
    for _ in range(2):
        there.release("a")
    with pytest.raises(OrderError, match="c cannot come: b is to leave the device and has not dropped"):
        there.take("c", 1)
    there.stay("b")
    there.check_order("c")
    there.take("c", 5)


def test_fewer_bytes_than_are_held_leave_none() -> None:
    total = 10
    there = Reservations(lambda: total)
    there.take("a", 6)
    total = 5
    assert there.free == 0
    with pytest.raises(DeviceMemoryError, match=r"of which 0\.0 MiB are free"):
        there.take("b", 1)
