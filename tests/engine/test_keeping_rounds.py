"""Rounds of saving, turn by turn: a test moves rows and writes files when it pleases."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.device_slot import device_slot
from engine.drive import run
from engine.harness import NULL
from engine.null_slot import null_slot, request
from manual_spill import ManualSpill
from tierd.engine.keeping import Keeper
from tierd.kv.bank import Bank, Banked
from tierd.kv.openings import Packed, pack
from tierd.settings import StateSettings
from tierd.slot import Slot

LENGTH = 20  # tokens of a conversation


@dataclass
class Clock:
    """Each look at it takes a while."""

    step: float = 0.0
    now: float = 100.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@dataclass
class Round:
    """A model with so many parked conversations, and a bank with room for so many."""

    folder: Path
    room: float
    talks: int = 0
    pages: int = 2000
    clock: Clock = field(default_factory=Clock)
    dropped: list[Banked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spill = ManualSpill(self.folder)
        self.slot: Slot = null_slot(NULL, pages=self.pages)
        self.row_bytes = self.slot.home.executor.row_bytes
        size = LENGTH * sum(self.row_bytes)
        self.bank = Bank(int(self.room * size), spill=self.spill, on_drop=self.dropped.append)
        self.keeper = Keeper(StateSettings(dir=self.folder), self.bank, self.clock)
        for talk in range(self.talks):
            run(self.slot, request(f"{talk}", self.prompt(talk), 1))

    @staticmethod
    def prompt(talk: int) -> list[int]:
        return [talk // 200, talk % 200, *range(LENGTH - 2)]

    def put(self, talk: int, *, live: bool = False) -> Banked:
        """Put a conversation of the model's into the bank."""
        entry = self.bank.open("null", self.slot.home.origin, self.row_bytes, LENGTH, live=live)
        assert entry is not None
        self.bank.keep(entry, self.prompt(talk))
        return entry

    def turn(self, *, last: bool = False) -> bool:
        return self.keeper.step([self.slot], last=last)

    def move(self) -> None:
        """Move what is to be moved."""
        while self.slot.home.moves:
            move = self.slot.home.moves.popleft()
            while move.left:
                move.run(move.left.popleft(), self.slot.executor)
            move.finish(True)

    def write(self) -> None:
        """Write what is to be written."""
        while self.spill.job is not None:
            self.bank.settle(self.spill.finish())

    def finish(self, *, last: bool = False) -> None:
        for _ in range(10 * self.talks + 10):
            self.turn(last=last)
            self.move()
            self.write()
            if self.keeper.settled:
                return
        raise AssertionError("the round does not end")

    @property
    def kept(self) -> set[bytes]:
        return {entry.packed or b"" for entry in self.bank.entries if entry.path is not None}


def of(talks: Iterable[int]) -> set[bytes]:
    return {pack(Round.prompt(talk)) for talk in talks}


def test_nothing_is_dropped_for_what_is_to_be_saved(tmp_path: Path) -> None:
    """What the bank has that is in no file is written before anything else takes its room."""
    it = Round(tmp_path, room=1.5, talks=1)
    banked = it.put(7)
    it.keeper.ask()
    assert not it.turn()
    assert not it.slot.home.moves
    it.write()
    assert it.turn()
    assert banked.path is not None
    it.finish()
    assert it.kept == of([0, 7])
    assert it.dropped == []


def test_what_has_no_room_is_tried_again_in_the_next_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    it = Round(tmp_path, room=1.5, talks=3)
    live = it.put(7, live=True)
    it.keeper.ask()
    it.finish()
    assert it.kept == set()
    assert "state.dir: no room for 3 conversations" in caplog.text
    it.bank.close(live)
    it.keeper.ask()
    it.turn()
    (move,) = it.slot.home.moves
    assert it.slot.home.unsaved == 2
    it.move()
    it.write()
    it.finish()
    assert it.kept == of(range(3))
    assert move.pages == it.slot.home.prefixes.match([*it.prompt(2), 0]).pages  # type: ignore[attr-defined]


def test_what_cannot_be_written_is_tried_again_in_the_next_round(tmp_path: Path) -> None:
    it = Round(tmp_path, room=9, talks=1)
    it.keeper.ask()
    it.turn()
    it.move()
    it.bank.settle(it.spill.fail())
    it.finish()
    assert it.kept == set()
    it.keeper.ask()
    it.finish()
    assert it.kept == of([0])


def test_a_turn_looks_through_no_more_than_a_slice_of_time_allows(tmp_path: Path) -> None:
    """First what is saved already, then what has no room, then what is to be tried again."""
    it = Round(tmp_path, room=61, talks=50, clock=Clock(step=0.0001))
    for talk in range(50):
        it.put(talk)
    for _ in range(2):
        it.keeper.ask()
        turns, before = 0, it.slot.home.unsaved
        while not it.keeper.settled:
            assert it.keeper.deadline is not None
            it.turn()
            it.write()
            assert before - it.slot.home.unsaved <= 20
            before, turns = it.slot.home.unsaved, turns + 1
        assert turns >= 3
        for talk in range(50, 100):
            run(it.slot, request(f"{talk}", it.prompt(talk), 1))
        it.bank._holdings.limit = it.bank.used
        for entry in it.bank.entries:
            it.bank.pin(entry)
    assert it.slot.home.unsaved == 50
    assert it.kept == of(range(50))


def test_a_turn_without_time_still_gets_on(tmp_path: Path) -> None:
    it = Round(tmp_path, room=9, talks=5, clock=Clock(step=1.0))
    for talk in range(5):
        it.put(talk)
    it.keeper.ask()
    it.finish()
    assert it.kept == of(range(5))


def test_what_waits_for_room_is_not_brought_out_of_a_model_that_is_gone(tmp_path: Path) -> None:
    it = Round(tmp_path, room=1.5, talks=1)
    it.put(7)
    it.keeper.ask()
    it.turn()
    it.write()
    assert not it.keeper.step([], last=False)
    assert it.keeper.settled
    assert not it.slot.home.moves


def test_a_conversation_that_is_flushed_meanwhile_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    it = Round(tmp_path, room=9, talks=2)
    it.keeper.ask()
    it.turn()
    it.move()
    it.slot.flush()
    it.bank.flush()
    it.finish()
    assert it.kept == set()
    assert it.spill.files == set()
    assert not caplog.records


def test_a_pinned_region_that_is_flushed_is_not_found_or_saved(tmp_path: Path) -> None:
    """A step in flight still writes behind its rows; it is free once that has ended."""
    slot = device_slot(NULL)
    run(slot, request("first", Round.prompt(1), 1))
    regions = slot.home.regions  # type: ignore[attr-defined]
    (claim,) = regions.claims()
    parked = slot.home.next_to_save()
    assert parked is not None
    regions.pin(claim)
    assert slot.flush() == 0
    assert not parked.stands()
    parked.put_back()
    assert slot.home.next_to_save() is None
    assert slot.home.unsaved == 0
    assert regions.find(Packed(pack(Round.prompt(1)))) is None
    regions.unpin(claim)
    assert regions.free == regions.count
