"""Models that take turns, step by step: what happens while something else of theirs is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from engine.device_drive import text
from engine.device_slot import NullFallback
from engine.harness import model
from engine.manual import Board, BoardExecutor, Clock, ManualLoop
from engine.null_slot import request
from engine.null_stage import NullStage, seated_slot
from tierd.core import FailedEvent, FinishedEvent, PassReason
from tierd.engine.dance import Dance
from tierd.engine.ledger import Ledger
from tierd.engine.messages import Activate, Load, Message, Stop, Taken, Unload
from tierd.errors import DeviceLostError, DeviceMemoryError, QueueFullError, TierdError, UnavailableError
from tierd.kv.bank import Bank
from tierd.settings import ModelSettings, QueueSettings, ServerSettings, Settings, SwitchSettings
from tierd.slot import Slot
from tierd.tier.status import TierStatus

PROMPT = b"a prompt that is long enough to be waited for"
AT_ONCE = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0)
SOON = SwitchSettings(min_hold_s=2.0, max_wait_s=0.0)
TO_THE_CPU = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0, resume="cpu")
PATIENT = SwitchSettings(min_hold_s=600.0, max_wait_s=600.0)
BUDGET = 10


class Played:
    """Models as large as the stage, unless told otherwise, and a loop that is taken through its turns."""

    def __init__(
        self,
        names: str = "ab",
        *,
        sizes: dict[str, int] | None = None,
        pinned: str = "",
        switch: SwitchSettings = AT_ONCE,
        timeout_s: float = 0.0,
        capacity: int = 64,
        backlog: int = 1000,
        bank: int = 1 << 20,
        tries: int = 3,
        refusal: str = "",
        **options: Any,
    ) -> None:
        """timeout_s, capacity: see QueueSettings. backlog: see ServerSettings; clients read nothing.

        tries, refusal: see NullFallback. options: of `seated_slot`.
        """
        self.bank, self.stage, self.clock, self.board = Bank(bank), NullStage(BUDGET), Clock(), Board()
        self.sizes, self.pinned, self.options = sizes or {}, pinned, options
        self.tries, self.refusal = tries, refusal
        self.slots: dict[str, Slot] = {}
        self.loop = ManualLoop(
            Settings(
                queue=QueueSettings(timeout_s=timeout_s, capacity=capacity),
                server=ServerSettings(reader_backlog=backlog),
                switch=switch,
            ),
            self.bank,
            clock=self.clock,
            open_slot=self.open,
            tier=self.status,
            release=self.stage.reservations.release,
        )
        for name in names:
            self.loop.put(self.open(self.settings_of(name)))
        self.loop.turn()

    def settings_of(self, name: str) -> ModelSettings:
        return replace(model(name, streams=3), pin=name in self.pinned)

    def open(self, settings: ModelSettings) -> Slot:
        size = self.sizes.get(settings.id, BUDGET)
        slot = self.slots[settings.id] = seated_slot(
            settings,
            self.stage,
            size=size,
            on=size <= self.stage.reservations.free,
            bank=self.bank,
            chunk_rows=8,
            executor=self.executor,
            **{"regions": 3, **self.options},
        )
        assert isinstance(slot.fallback, NullFallback)
        slot.fallback.tries, slot.fallback.refusal = self.tries, self.refusal
        return slot

    def status(self) -> TierStatus:
        return TierStatus(reason="it was given up") if self.board.abandoned else self.stage.status()

    def executor(self, **options: Any) -> BoardExecutor:
        if self.board.abandoned:
            self.board = Board()
        return BoardExecutor(self.board, **options)

    def ask(self, id: str, name: str, prompt: bytes = PROMPT, tokens: int = 8) -> None:
        self.loop.submit(request(id, prompt, tokens, model=name))
        self.loop.turn()

    def tell(self, *messages: Message) -> None:
        for message in messages:
            self.loop.inbox.put(message)
        self.loop.turn()

    def until(self, reached: Callable[[], bool], *devices: str, workers: bool = True) -> None:
        """Let devices work, and the engine's threads, till something is reached."""
        while not reached():
            worked = [self.loop.work(device) for device in devices]
            if workers and self.loop.workers:
                self.loop.workers.popleft()()
                worked.append(True)
            worked.append(self.loop.due is not None and self.loop.due <= self.clock.now)
            self.loop.turn()
            assert any(worked), "nothing is left to do"

    def end(self) -> None:
        """Let everything come to its end, time too, and check that nothing is held."""
        going = True
        while going:
            going = self.loop.work("gpu") | self.loop.work("cpu") | bool(self.loop.workers)
            if self.loop.workers:
                self.loop.workers.popleft()()
            elif not going and self.loop.live and self.loop.due is not None:
                self.clock.now, going = self.loop.due, True
            self.loop.turn()
        assert not self.loop.live
        assert not any(entry.pins or entry.live for entry in self.bank.entries)
        for slot in self.loop.everyone:
            room = slot.home.room
            assert (room.used, room.reserved) == (0, 0)

    def failed(self, id: str) -> TierdError:
        (end,) = self.loop.mail.terminals()[id]
        assert isinstance(end, FailedEvent), end
        return end.error

    def passes(self) -> set[str]:
        """Return why streams were on the CPU."""
        value = self.loop.metrics.registry.get_sample_value
        return {
            reason
            for reason in PassReason
            for model in self.slots
            if value("tierd_gpu_cpu_passes_total", {"model": model, "reason": reason})
        }

    def said(self, id: str, prompt: bytes = PROMPT, tokens: int = 8) -> None:
        (end,) = self.loop.mail.terminals()[id]
        assert isinstance(end, FinishedEvent), end
        assert self.loop.mail.text(id) == text(prompt, tokens)


@contextmanager
def played(*names: str, **options: Any) -> Iterator[Played]:
    there = Played(*names, **options)
    try:
        yield there
    finally:
        there.loop.close()


def test_nothing_is_due_once_a_model_that_goes_is_being_freed() -> None:
    with played() as it:
        unloaded: Future[None] = Future()
        it.tell(Unload("a", it.clock.now + 5.0, unloaded))
        assert it.loop.workers
        assert it.loop.due is None
        it.end()
        assert unloaded.done()


def test_memory_of_a_model_that_is_being_freed_is_waited_for() -> None:
    with played("abc") as it:
        activated: Future[Any] = Future()
        it.tell(Unload("a", None, Future()))
        (free,) = it.loop.workers
        it.ask("b", "b")
        it.tell(Activate("c", activated))
        assert list(it.loop.workers) == [free]
        assert it.loop.dance.switch is None
        it.end()
        it.said("b")
        assert activated.result()
        assert it.stage.armed == ["a", "c", "b"]
        assert not it.passes()


def test_who_can_be_nowhere_any_more_ends() -> None:
    """Neither at the CPU nor on the device: it is lost for good, or pinned models leave too little of it."""
    with played(tries=0, refusal="it must not") as it:
        it.ask("a", "a")
        it.ask("b", "b")
        it.board.armed["out"] = DeviceLostError("lost")
        it.end()
        for id in "ab":
            error = it.failed(id)
            assert isinstance(error, UnavailableError)
            assert "it must not" in str(error)
    with played(sizes={"a": 4}, pinned="a", refusal="it must not") as it:
        it.ask("b", "b")
        assert "does not fit" in str(it.failed("b"))
        it.end()


def test_a_model_comes_though_the_fresh_device_has_declined_another() -> None:
    with played(refusal="it must not") as it:
        fallback = it.slots["a"].fallback
        assert isinstance(fallback, NullFallback)
        fallback.tries, fallback.broken = 1, [DeviceMemoryError("too small for it")]
        it.ask("a", "a")
        it.board.armed["step"] = DeviceLostError("lost")
        it.until(lambda: not it.loop.live, "gpu")
        assert isinstance(it.failed("a"), UnavailableError)
        it.board = Board()
        it.ask("b", "b")
        it.end()
        it.said("b")


def test_nobody_is_given_up_before_a_failure_is_known() -> None:
    with played("abc", refusal="it must not") as it:
        it.ask("a", "a")
        it.ask("b", "b")
        it.until(lambda: bool(it.loop.workers), "gpu", workers=False)
        it.board.abandoned = True  # in the worker, which has not said so yet
        it.ask("c", "c")
        it.end()
        for id in "abc":
            it.said(id)


def test_a_switch_ends_though_nobody_can_be_put_back() -> None:
    with played() as it:
        it.stage.broken = [DeviceMemoryError("in pieces"), MemoryError()]
        activated: Future[Any] = Future()
        it.tell(Activate("b", activated))
        it.until(activated.done)
        assert isinstance(activated.exception(), DeviceMemoryError)
        for id in "ab":
            it.ask(id, id)
        it.end()
        for id in "ab":
            it.said(id)


def test_nobody_waits_in_the_queue_in_vain_for_a_model_that_is_away() -> None:
    """Its time there begins when the model is back."""
    with played(switch=PATIENT, timeout_s=5.0) as it:
        it.ask("a", "a", tokens=12)
        for i in range(4):
            it.ask(f"b{i}", "b", tokens=4)
        it.clock.now += 300.0
        it.loop.turn()
        assert it.loop.live == {"a", "b0", "b1", "b2", "b3"}
        it.until(lambda: it.slots["b"].serves, "gpu")
        assert it.loop.due == it.clock.now + 5.0
        it.end()
        it.said("a", tokens=12)
        for i in range(4):
            it.said(f"b{i}", tokens=4)


def test_a_queue_is_as_long_while_its_model_is_away() -> None:
    with played(switch=PATIENT, capacity=2) as it:
        it.ask("a", "a")
        for i in range(6):
            it.ask(f"b{i}", "b")
        assert isinstance(it.failed("b5"), QueueFullError)
        it.end()
        for i in range(5):
            it.said(f"b{i}")


def test_streams_whose_clients_do_not_read_hold_no_device() -> None:
    with played(switch=PATIENT, backlog=4, positions=128) as it:
        it.ask("slow", "a", tokens=40)
        it.until(lambda: it.slots["a"].running[0].paused and not it.slots["a"].steps, "gpu")
        it.ask("b", "b", tokens=2)
        it.until(lambda: bool(it.loop.mail.terminals().get("b")), "gpu")
        it.said("b", tokens=2)
        assert it.slots["a"].returning[0].paused
        assert not it.slots["a"].serves
        it.tell(Taken("slow", 1000))
        it.end()
        it.said("slow", tokens=40)
        assert it.stage.armed == ["a", "b", "a"]


def test_requests_that_come_during_a_switch_are_served_in_one_stay() -> None:
    with played(switch=SOON) as it:
        it.ask("b0", "b")
        assert it.loop.dance.switch is not None
        for i in range(1, 4):
            it.ask(f"b{i}", "b")
            it.ask(f"a{i}", "a")
        it.end()
        for i in range(1, 4):
            it.said(f"b{i}")
            it.said(f"a{i}")
        assert it.stage.armed == ["a", "b", "a"]
        assert not it.passes()


def test_a_stream_that_went_on_at_the_cpu_comes_back_when_the_device_has_room() -> None:
    with played(switch=TO_THE_CPU, positions=128) as it:
        it.ask("a", "a", tokens=60)
        it.until(lambda: it.slots["a"].running[0].generated > 3, "gpu")
        it.ask("b", "b")
        it.until(lambda: bool(it.loop.mail.terminals().get("b")), "gpu", "cpu")
        assert it.passes() == {PassReason.AWAY}
        it.until(lambda: bool(it.slots["a"].running), "gpu", "cpu")
        it.end()
        it.said("a", tokens=60)
        it.said("b")
        assert it.stage.armed == ["a", "b", "a"]


def test_streams_that_cannot_go_on_at_the_cpu_wait_for_the_device() -> None:
    with played(switch=TO_THE_CPU, refusal="it must not") as it:
        it.ask("a", "a", tokens=12)
        it.until(lambda: it.slots["a"].running[0].generated > 3, "gpu")
        it.ask("b", "b")
        it.end()
        it.said("a", tokens=12)
        it.said("b")
        assert not it.passes()


@pytest.mark.parametrize("limit_s", [None, 0.0])
@pytest.mark.parametrize("phase", ["pause", "hydrate", ""])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_model_is_unloaded_in_the_middle_of_a_switch(name: str, phase: str, limit_s: float | None) -> None:
    with played() as it:
        it.ask("a", "a", tokens=12)
        it.until(lambda: it.slots["a"].running[0].generated > 3, "gpu")
        it.ask("b", "b")
        switch = it.loop.dance.switch
        assert switch is not None
        it.until(lambda: switch.phase == phase, "gpu", workers=False)
        unloaded: Future[None] = Future()
        it.tell(Unload(name, None if limit_s is None else it.clock.now + limit_s, unloaded))
        for id in "ab":
            if id == name and limit_s is not None:
                assert isinstance(it.failed(id), UnavailableError)
        it.end()
        for id in "ab":
            if id != name or limit_s is None:
                it.said(id, tokens=12 if id == "a" else 8)
        assert unloaded.done()
        assert set(it.loop.snapshot.models) == {"a", "b"} - {name}


def test_a_load_that_fails_gives_the_device_back_to_the_streams_that_were_there() -> None:
    with played("a") as it:
        it.ask("a", "a", tokens=12)
        it.until(lambda: it.slots["a"].running[0].generated > 3, "gpu")
        loaded: Future[Any] = Future()
        it.stage.broken = [DeviceMemoryError("in pieces")]
        it.tell(Load(it.settings_of("b"), loaded, activate=True))
        it.until(lambda: it.loop.dance.switch is not None, "gpu")
        it.end()
        assert isinstance(loaded.exception(), DeviceMemoryError)
        it.said("a", tokens=12)
        assert not it.passes()
        assert it.stage.reservations.held == {"a": BUDGET}
        assert list(it.loop.models.catalogue.entries) == ["a"]


def test_the_youngest_keeps_its_tokens_alone_where_the_bank_is_too_small() -> None:
    with played(switch=SOON, bank=8 * 80, positions=128) as it:
        it.ask("old", "a", tokens=30)
        it.clock.now += 1.0
        it.ask("young", "a", PROMPT[::-1], tokens=30)
        it.until(lambda: [s.generated > 3 for s in it.slots["a"].running] == [True, True], "gpu")
        it.clock.now += 1.0
        it.ask("b", "b")
        it.until(lambda: len(it.slots["a"].returning) == 2, "gpu")
        old, young = it.slots["a"].returning
        assert (old.request.id, young.request.id) == ("old", "young")
        assert old.saved is not None
        assert old.saved.positions > len(PROMPT)
        assert young.saved is None
        it.end()
        it.said("old", tokens=30)
        it.said("young", PROMPT[::-1], tokens=30)
        assert not it.passes()


def test_the_next_switch_begins_as_soon_as_one_has_ended() -> None:
    with played(switch=SwitchSettings(min_hold_s=0.0, max_wait_s=0.0, idle_s=5.0)) as it:
        it.clock.now += 5.0
        it.loop.turn()
        assert it.loop.dance.switch is not None
        activated: Future[Any] = Future()
        it.tell(Activate("b", activated))
        it.loop.workers.popleft()()
        it.loop.turn()
        assert it.loop.dance.switch is not None
        it.until(activated.done)


def test_a_device_that_has_failed_while_nobody_was_there_is_tried_again() -> None:
    idle = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0, idle_s=5.0)
    with played(switch=idle, refusal="it must not") as it:

        def fail_while_nobody_is_there() -> None:
            it.clock.now += 5.0
            it.loop.turn()
            it.until(lambda: it.loop.dance.switch is None, "gpu")
            assert not it.stage.reservations.held
            it.board.abandoned = True

        fail_while_nobody_is_there()
        it.ask("b", "b")
        it.end()
        it.said("b")
        fail_while_nobody_is_there()
        activated: Future[Any] = Future()
        it.tell(Activate("a", activated))
        assert isinstance(activated.exception(), DeviceLostError)
        it.until(lambda: it.slots["a"].serves)


def test_a_lost_device_is_tried_again_though_who_lost_it_was_unloaded() -> None:
    with played(refusal="it must not") as it:
        fallback = it.slots["a"].fallback
        assert isinstance(fallback, NullFallback)
        fallback.delay_s = 5.0
        it.ask("a", "a")
        it.board.armed["step"] = DeviceLostError("lost")
        it.until(lambda: bool(it.slots["a"].lost), "gpu")
        it.tell(Unload("a", it.clock.now, Future()))
        it.ask("b", "b")
        it.until(lambda: not it.loop.workers)
        it.end()
        it.said("b")


def test_a_switch_during_which_the_device_is_lost_has_failed() -> None:
    with played(switch=SwitchSettings(min_hold_s=600.0, max_wait_s=600.0)) as it:
        it.ask("b", "b")
        it.until(lambda: bool(it.slots["b"].running), "gpu")
        it.tell(Activate("a", Future()))
        it.until(lambda: it.slots["a"].serves, "gpu")
        activated: Future[Any] = Future()
        it.tell(Activate("b", activated))
        it.board.armed["in"] = DeviceLostError("lost")
        it.until(activated.done, "gpu")
        assert isinstance(activated.exception(), DeviceLostError)
        it.end()
        it.said("b")


def test_a_model_that_could_not_come_is_tried_again_after_a_while() -> None:
    with played(refusal="it must not") as it:
        it.stage.broken = [DeviceMemoryError("in pieces")]
        it.ask("b", "b")
        it.until(lambda: it.slots["b"].barred is PassReason.NO_ROOM, "gpu")
        assert it.slots["a"].serves
        assert it.loop.due is not None
        assert it.loop.due > it.clock.now
        it.end()
        it.said("b")
        assert it.stage.armed == ["a", "a", "b"]


def test_a_model_that_could_not_come_beside_another_comes_alone_until_the_device_is_a_fresh_one() -> None:
    with played("abc", sizes={"a": 4, "b": 4, "c": 6}, refusal="it must not") as it:
        for faults, there in ((0, {"c"}), (1, {"b", "c"})):
            it.stage.faults = faults
            for name in "ab":
                it.ask(f"{name}{faults}", name)
                it.end()
            if not faults:
                it.stage.broken = [DeviceMemoryError("in pieces")]
            it.ask(f"c{faults}", "c")
            it.end()
            it.said(f"c{faults}")
            assert it.stage.reservations.held.keys() == there


def test_a_model_that_could_not_come_though_nobody_was_there_does_not_come_alone() -> None:
    with played("abc", sizes={"a": 8, "b": 4, "c": 4}, refusal="it must not") as it:
        it.stage.broken = [DeviceMemoryError("in pieces")]
        for name in "bc":
            it.ask(name, name)
            it.end()
            it.said(name)
        assert it.stage.reservations.held.keys() == {"b", "c"}


def test_a_model_that_finds_no_memory_on_the_next_device_comes_when_it_is_asked_for() -> None:
    with played("a") as it:
        it.stage.broken = [DeviceMemoryError("in pieces")]
        it.board.armed["step"] = DeviceLostError("lost")
        for id in "xy":
            it.ask(id, "a")
            it.end()
            it.said(id)
        assert it.stage.armed == ["a", "a"]
        assert not it.slots["a"].lost
        it.ask("z", "a")
        it.end()
        it.said("z")
        assert it.stage.armed == ["a", "a"]


def test_models_that_were_about_to_leave_stay_when_the_engine_stops() -> None:
    with played() as it:
        it.ask("a", "a", tokens=12)
        it.until(lambda: it.slots["a"].running[0].generated > 3, "gpu")
        activated: Future[Any] = Future()
        it.tell(Activate("b", activated))
        switch = it.loop.dance.switch
        assert switch is not None
        assert switch.phase == "pause"
        it.tell(Stop())
        it.end()
        for refused in (activated.exception(), it.failed("a")):
            assert isinstance(refused, UnavailableError)
        assert it.slots["a"].serves
        assert not it.loop.busy


def test_a_prompt_for_the_scratch_region_is_fed_elsewhere_when_the_model_leaves() -> None:
    with played(regions=1, positions=64, scratch=True) as it:
        it.ask("home", "a", b"h" * 40)
        it.ask("guest", "a", b"g" * 40)
        it.until(lambda: bool(it.slots["a"].guests), "cpu")
        it.tell(Activate("b", Future()))
        assert not it.slots["a"].guests
        it.end()
        it.said("home", b"h" * 40)
        it.said("guest", b"g" * 40)


@pytest.mark.parametrize("forced", [False, True])
def test_a_model_whose_room_one_that_is_loaded_takes_comes_nevertheless(forced: bool) -> None:
    idle = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0, idle_s=5.0)
    with played("a", sizes={"a": 6, "b": 6}, switch=idle) as it:
        it.clock.now += 5.0
        it.loop.turn()
        it.until(lambda: it.loop.dance.switch is None)
        activated: Future[Any] = Future()
        if forced:
            it.tell(Activate("a", activated))
        else:
            it.ask("a", "a")
        it.tell(Load(it.settings_of("b"), Future()))
        it.loop.workers.rotate(-1)
        it.loop.workers.popleft()()
        it.loop.turn()
        assert it.stage.reservations.held == {"b": 6}
        if forced:
            it.until(activated.done)
            assert activated.result()
        else:
            it.end()
            it.said("a")
        assert it.stage.reservations.held == {"a": 6}
        assert not it.passes()


@pytest.mark.parametrize(
    ("name", "owner", "part"),
    [
        ("a", Dance, "_rules"),
        ("b", Dance, "_outgoing_for"),
        ("b", Dance, "_begin"),
        ("b", Ledger, "switched"),
    ],
)
def test_a_wish_is_answered_once_though_the_engine_fails_at_it(
    name: str, owner: type, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever that is: "a" is there already, "b" has to come."""

    def fault(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of the engine")

    with played() as it:
        monkeypatch.setattr(owner, part, property(fault) if part == "_rules" else fault)
        activated: Future[Any] = Future()

        def wish() -> None:
            it.tell(Activate(name, activated))
            it.until(activated.done, "gpu")

        with pytest.raises(RuntimeError, match="a fault of the engine"):
            wish()
        it.loop.break_down()
        assert isinstance(activated.exception(0), UnavailableError)
