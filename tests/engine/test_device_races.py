"""Things that seldom meet: streams that leave, wait or fail just while something of theirs is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from engine.device_drive import MODEL, text
from engine.device_slot import NullFallback, device_slot
from engine.harness import model
from engine.manual import Board, BoardExecutor, ManualLoop
from engine.null_slot import request
from tierd.core import FailedEvent, FinishedEvent
from tierd.engine.messages import Cancel
from tierd.errors import DeviceLostError, ExecutorError, UnavailableError
from tierd.kv.bank import Bank
from tierd.settings import QueueSettings, ServerSettings, Settings
from tierd.slot import Slot
from tierd.tier.device_home import DeviceHome

PROMPT = b"a prompt that is long enough to be waited for"


class Played:
    """A slot on a board, whose loop is taken through its turns by hand."""

    def __init__(
        self,
        *,
        streams: int = 3,
        bank: int = 1 << 20,
        tries: int = 3,
        backlog: int = 100,
        **options: object,
    ) -> None:
        """backlog: see ServerSettings; clients read nothing. options: of `device_slot`."""
        self.bank = Bank(bank)
        self.board = Board()
        self.slot = device_slot(
            model(MODEL, streams=streams),
            bank=self.bank,
            executor=self._executor,
            chunk_rows=8,
            **options,  # type: ignore[arg-type]
        )
        self.fallback.tries = tries
        readers = ServerSettings(reader_backlog=backlog)
        self.loop = ManualLoop(Settings(queue=QueueSettings(timeout_s=0), server=readers), self.bank)
        self.loop.put(self.slot)

    def _executor(self, **options: object) -> BoardExecutor:
        if self.board.abandoned:
            self.board = Board()
        return BoardExecutor(self.board, **options)

    @property
    def fallback(self) -> NullFallback:
        assert isinstance(self.slot.fallback, NullFallback)
        return self.slot.fallback

    @property
    def understudy(self) -> Slot:
        assert self.slot.understudy is not None
        return self.slot.understudy

    def ask(self, id: str, prompt: bytes = PROMPT, tokens: int = 8) -> None:
        self.loop.submit(request(id, prompt, tokens))
        self.loop.turn()

    def cancel(self, id: str) -> None:
        self.loop.inbox.put(Cancel(id))
        self.loop.turn()

    def until(self, reached: Callable[[], bool], *devices: str) -> None:
        """Let devices work, and workers, till something is reached."""
        while not reached():
            worked = [self.loop.work(device) for device in devices]
            if self.loop.workers:
                self.loop.workers.popleft()()
                worked.append(True)
            self.loop.turn()
            assert any(worked), "nothing is left to do"

    def end(self) -> None:
        """Let everything come to its end, and check that nothing is held."""
        going = True
        while going:
            going = self.loop.work("gpu") | self.loop.work("cpu") | bool(self.loop.workers)
            if self.loop.workers:
                self.loop.workers.popleft()()
            self.loop.turn()
        assert not self.loop.live
        assert not any(entry.pins or entry.live for entry in self.bank.entries)
        for slot in self.loop.everyone:
            room = slot.home.room
            assert (room.used, room.reserved) == (0, 0)

    def said(self, id: str, prompt: bytes = PROMPT, tokens: int = 8) -> None:
        (end,) = self.loop.mail.terminals()[id]
        assert isinstance(end, FinishedEvent)
        assert self.loop.mail.text(id) == text(prompt, tokens)


@contextmanager
def played(**options: object) -> Iterator[Played]:
    there = Played(**options)  # type: ignore[arg-type]
    try:
        yield there
    finally:
        there.loop.close()


def test_a_stream_leaves_while_its_rows_are_on_their_way_to_the_cpu() -> None:
    with played(positions=16, context=64) as it:
        it.ask("a", b"a prompt", 30)
        it.until(lambda: len(it.slot.home.moves) > 0, "gpu")
        it.cancel("a")
        it.end()
        assert not any(entry.live for entry in it.bank.entries)


def test_a_prompt_that_is_fed_on_the_device_for_the_cpu_leaves_before_it_has_pages() -> None:
    with played(regions=1, positions=64, scratch=True) as it:
        it.ask("a", b"a" * 50)
        it.ask("b", b"b" * 50)
        it.until(lambda: bool(it.slot.understudy and it.understudy.running), "cpu")
        assert it.understudy.running[0].moves
        it.cancel("b")
        it.board.armed["step"] = DeviceLostError("lost")
        it.end()
        it.said("a", b"a" * 50)


def test_nobody_waits_for_a_stream_that_waits_for_its_client() -> None:
    """It is fed again after a fault, on a device that must do without the CPU."""
    with played(positions=128, bank=0, backlog=5) as it:
        it.slot.stranded = "there is no memory"
        it.ask("slow", PROMPT, 40)
        it.until(lambda: it.loop.mail.text("slow") != "" and it.slot.running[0].paused, "gpu")
        it.board.armed["step"] = DeviceLostError("lost")
        it.ask("other", b"other", 4)
        it.until(lambda: bool(it.loop.mail.terminals().get("other")), "gpu")
        it.until(lambda: it.slot.lost == "" and len(it.slot.running) > 0, "gpu")
        assert it.slot.running[0].paused
        it.ask("quick", tokens=4)
        it.until(lambda: bool(it.loop.mail.terminals().get("quick")), "gpu")
        it.said("quick", tokens=4)
        it.cancel("slow")
        it.end()


def test_a_follower_goes_on_whose_leader_has_said_all_that_its_client_takes() -> None:
    """While the follower's region was being cleared for it."""
    with played(regions=2, positions=128, backlog=5) as it:
        it.ask("x", b"somebody", 2)
        it.ask("y", b"else", 2)
        it.end()
        it.ask("slow", PROMPT, 40)
        it.ask("quick", PROMPT + b"?", 4)
        (slow, quick) = it.slot.running
        late = it.slot.home.moves.pop()
        it.until(lambda: slow.paused, "gpu")
        it.slot.home.moves.append(late)
        it.loop.turn()
        it.until(lambda: bool(it.loop.mail.terminals().get("quick")), "gpu")
        it.said("quick", PROMPT + b"?", 4)
        assert quick.cached > 16
        it.cancel("slow")
        it.end()


def test_a_region_that_a_step_still_writes_to_is_nobodys() -> None:
    """A stream's first step fails while its second is in flight; a copy needs its region."""
    with played(regions=2, positions=128) as it:
        it.ask("talk")
        it.end()
        it.ask("a", b"a", 8)
        assert len(it.slot.steps) == 2
        it.board.armed["step"] = ExecutorError("a fault")
        it.ask("b", PROMPT + b"?")
        it.loop.work("gpu")
        it.loop.turn()
        assert isinstance(it.loop.mail.terminals()["a"][0], FailedEvent)
        it.end()
        it.said("b", PROMPT + b"?")


def test_a_request_ends_at_once_where_neither_device_nor_cpu_is_left() -> None:
    with played(tries=0) as it:
        it.slot.stranded = "there is no memory"
        it.board.armed["submit"] = DeviceLostError("lost")
        for id in "ab":
            it.ask(id)
            (end,) = it.loop.mail.terminals()[id]
            assert isinstance(end, FailedEvent)
            assert isinstance(end.error, UnavailableError)
        it.end()


def test_who_waits_behind_one_that_outgrows_its_region_runs_when_that_ends() -> None:
    with played(streams=1, regions=1, positions=16, context=64) as it:
        it.slot.stranded = "there is no memory"
        it.ask("long", b"a prompt", 30)
        it.ask("too long", b"a prompt" * 4)
        it.ask("short", b"short", 4)
        it.end()
        it.said("short", b"short", 4)
        assert isinstance(it.loop.mail.terminals()["long"][0], FinishedEvent)
        assert isinstance(it.loop.mail.terminals()["too long"][0], FailedEvent)


def test_a_lost_device_is_not_asked_for_while_something_is_at_work_on_it() -> None:
    with played() as it:
        it.ask("a", tokens=12)
        it.until(lambda: it.slot.running[0].generated > 1, "gpu")
        it.board.armed["step"] = DeviceLostError("lost")
        it.loop.work("gpu")
        it.loop.turn()
        assert it.slot.lost
        assert it.slot.steps
        assert it.loop.retry_deadline is None
        it.end()
        it.said("a", tokens=12)
        assert not it.slot.lost


@pytest.mark.parametrize("positions", [64, 32])
def test_the_scratch_region_is_as_long_as_the_others_on_a_fresh_device(
    positions: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt of 40 tokens may not fit those that there are later."""
    with played(regions=1, positions=64, scratch=True, context=64) as it:
        it.ask("a", b"a", 8)
        it.board.armed["step"] = DeviceLostError("lost")
        fresh = partial(device_slot, model(MODEL), regions=1, positions=positions, scratch=True)
        it.fallback.arm = lambda: home_of(fresh(bank=it.bank, executor=it._executor))
        it.end()
        assert it.slot.home.most == positions
        it.ask("b", b"b" * 40, 8)
        it.end()
        it.said("b", b"b" * 40)
        assert "a step failed" not in caplog.text


def test_who_waits_for_a_place_does_not_ask_for_the_cpu() -> None:
    """Nor does it once the place is free and the region not quite."""
    with played(streams=1, regions=1) as it:
        it.ask("a")
        it.ask("b")
        assert not it.loop.workers
        it.cancel("a")
        assert it.slot.steps
        assert not it.loop.workers
        it.end()
        it.said("b")
        assert it.slot.understudy is None


@pytest.mark.parametrize("bank", [0, 1 << 20], ids=["dropped", "banked"])
def test_who_has_lost_its_pages_on_the_cpu_gets_the_region_that_becomes_free(bank: int) -> None:
    with played(regions=1, positions=128, bank=bank) as it:
        it.fallback.pages = 17
        for id in "abc":
            it.ask(id, id.encode(), 60)
        it.until(lambda: bool(it.slot.understudy and it.understudy.preemptions), "cpu")
        (last,) = it.understudy.returning
        assert last.request.id == "c"
        assert (last.saved is None) is (bank == 0)
        it.cancel("a")
        it.until(lambda: last in it.slot.running and last.generated > 55, "gpu")
        assert last.passes is None
        assert [sequence.request.id for sequence in it.understudy.running] == ["b"]
        it.end()
        it.said("b", b"b", 60)
        it.said("c", b"c", 60)


def home_of(slot: Slot) -> DeviceHome:
    assert isinstance(slot.home, DeviceHome)
    return slot.home
