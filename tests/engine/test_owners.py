"""What is kept of one owner's requests is found for no other's: in pages, regions, the bank and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.device_slot import device_slot
from engine.drive import begin, complete, enqueue, greedy, run
from engine.harness import NULL, model
from engine.null_slot import null_slot, request
from live import wait_until
from tierd.core import Request, Sequence
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.kv.openings import Packed, opening_of, pack
from tierd.kv.row_files import Header, read_header
from tierd.kv.saved import evacuate
from tierd.kv.spill import SpillDone, open_spill
from tierd.settings import StateSettings
from tierd.slot import Slot

PROMPT = b"abcdefghijklmnopqrstuvwxyz"
ROW_BYTES = (8,)

Slots = Callable[[], Slot]


def asked(id: str, owner: str, prompt: bytes = PROMPT) -> Request:
    return replace(request(id, prompt, 3), owner=owner)


def found(slot: Slot, owner: str, prompt: bytes = PROMPT) -> int:
    """Have a prompt served; return how much of it was known, whatever that was: the text is the same."""
    (sequence,) = run(slot, asked("again", owner, prompt))
    assert sequence.tokens == greedy(prompt, 3)
    assert slot.home.room.used == 0
    return sequence.cached


@pytest.fixture(params=["pages", "regions"])
def slots(request: pytest.FixtureRequest) -> Slots:
    made: dict[str, Slots] = {
        "pages": lambda: null_slot(NULL),
        "regions": lambda: device_slot(NULL, regions=6),
    }
    return made[request.param]


def test_an_owner_finds_all_that_its_own_requests_have_left_and_nothing_else(slots: Slots) -> None:
    slot = slots()
    assert found(slot, "alice") == 0
    assert found(slot, "alice") == len(PROMPT) - 1
    assert found(slot, "bob") == 0
    assert found(slot, "") == 0
    assert [found(slot, owner) for owner in ("alice", "bob", "")] == [len(PROMPT) - 1] * 3
    assert found(slot, "ali") == 0
    assert found(slot, "bob", PROMPT[:9] + b"!") == 9


def test_streams_that_run_together_are_told_apart(slots: Slots) -> None:
    first, other, same = run(slots(), asked("a", "alice"), asked("b", "bob"), asked("c", "alice"))
    assert [one.tokens for one in (first, other, same)] == [greedy(PROMPT, 3)] * 3
    assert (first.cached, other.cached) == (0, 0)


def test_only_streams_of_one_owner_wait_for_rows_of_each_other() -> None:
    slot = device_slot(model("null", streams=4), regions=4)
    first, other, same = run(slot, asked("a", "alice"), asked("b", "bob"), asked("c", "alice"))
    assert (first.cached, other.cached, same.cached) == (0, 0, len(PROMPT) - 1)


def test_a_stream_that_generates_lends_its_rows_to_its_owner_alone() -> None:
    slot = device_slot(model("null", streams=4), regions=4)
    (first,) = enqueue(slot, asked("a", "alice"))
    while first.fed < len(PROMPT):
        begin(slot)
        complete(slot)
    same, other = run(slot, asked("b", "alice"), asked("c", "bob"))
    assert (same.cached, other.cached) == (len(PROMPT) - 1, 0)


@pytest.mark.parametrize("device", [False, True])
def test_a_stream_that_ends_while_another_owners_runs_leaves_it_nothing(device: bool) -> None:
    slot = device_slot(NULL, regions=2) if device else null_slot(NULL)
    run(slot, asked("a", "alice"), asked("b", "alice", b"something else"))
    assert found(slot, "bob") == 0
    assert found(slot, "bob", b"something else") == 0


def test_what_leaves_a_region_for_the_bank_stays_its_owners() -> None:
    slot = device_slot(NULL, regions=1)
    assert found(slot, "alice") == 0
    assert found(slot, "bob") == 0  # alice's went to the bank
    assert found(slot, "carol", b"something else") == 0
    assert slot.home.bank is not None
    assert sorted(entry.owner for entry in slot.home.bank.entries) == ["alice", "bob"]
    assert found(slot, "dave") == 0
    assert found(slot, "alice") == len(PROMPT) - 1
    assert found(slot, "bob") == len(PROMPT) - 1


def test_what_pages_have_to_be_saved_is_their_owners() -> None:
    slot = null_slot(NULL)
    (sequence,) = run(slot, asked("a", "alice"))
    parked = slot.home.next_to_save()
    assert parked is not None
    assert parked.tokens == opening_of(sequence, -1)
    assert parked.tokens.owner == "alice"


def kept(bank: Bank, tokens: list[int], owner: str, *, origin: str = "host") -> None:
    entry = bank.open("m", origin, ROW_BYTES, len(tokens), live=False)
    assert entry is not None
    bank.keep(entry, Packed(pack(tokens), owner))


def test_a_bank_has_a_shelf_for_each_owner() -> None:
    bank = Bank(1 << 20)
    kept(bank, [1, 2, 3], "alice")
    kept(bank, [1, 2], "bob")
    assert [entry.owner for entry in bank.entries] == ["alice", "bob"]  # neither makes the other needless
    for owner, most in (("alice", 3), ("bob", 2), ("", 0)):
        asked_for = Packed(pack([1, 2, 3, 4]), owner)
        there = bank.find("m", "host", asked_for)
        assert (there[0].owner, there[1]) == (owner, most) if most else there is None
        assert bank.holds("m", "host", Packed(pack([1, 2]), owner)) == (most > 0)
    kept(bank, [1, 2, 3], "bob")
    assert [(entry.owner, entry.valid) for entry in bank.entries] == [("alice", 3), ("bob", 3)]
    assert bank.flush() == 2
    assert bank.find("m", "host", Packed(pack([1]), "alice")) is None


def test_what_is_gone_is_remembered_by_owner() -> None:
    gone = Gone()
    bank = Bank(3 * sum(ROW_BYTES), on_drop=gone.dropped)
    kept(bank, [1, 2, 3], "alice")
    kept(bank, [4, 5], "bob")
    gone.note("m", "host", Packed(pack([6]), "alice"))
    told = [
        gone.find("m", "host", Packed(pack(tokens), owner), 1)
        for owner in ("alice", "bob")
        for tokens in ([1, 2, 3], [6])
    ]
    assert told == [3, 1, 0, 0]


def test_a_stream_that_has_to_leave_its_pages_takes_its_owner_along() -> None:
    slot, bank = null_slot(NULL), Bank(1 << 20)
    (sequence,) = run(slot, asked("a", "alice"))
    evacuate(slot.home, bank, sequence, lambda moved: None, keep=True)
    slot.home.moves.popleft().finish(True)
    tokens = sequence.tokens[: sequence.fed]
    assert bank.holds("null", slot.home.origin, Packed(pack(tokens), "alice"))
    assert not bank.holds("null", slot.home.origin, Packed(pack(tokens), "bob"))
    assert not bank.holds("null", slot.home.origin, tokens)


def test_files_say_whose_they_are(tmp_path: Path) -> None:
    done: list[SpillDone] = []
    settings = StateSettings(dir=tmp_path)
    spill = open_spill(settings, done.append)  # type: ignore[arg-type]
    bank = Bank(1 << 20, spill=spill)
    kept(bank, [1, 2, 3], "alice")
    bank.filing.begin_to_save()
    wait_until(lambda: len(done) == 1)
    bank.settle(done.pop())
    assert spill is not None
    assert spill.close(10)
    (path,) = (tmp_path / "bank").glob("*.rows")
    assert read_header(path).owner == "alice"
    again = open_spill(settings, done.append)  # type: ignore[arg-type]
    after = Bank(1 << 20, spill=again)
    there = after.find("m", "host", Packed(pack([1, 2, 3]), "alice"))
    assert there is not None
    assert (there[0].owner, there[1]) == ("alice", 3)
    assert after.find("m", "host", Packed(pack([1, 2, 3]), "bob")) is None
    assert after.find("m", "host", [1, 2, 3]) is None
    assert again is not None
    again.close(10)


def test_an_owner_is_part_of_what_a_header_vouches_for() -> None:
    header = Header(model="m", origin="host", owner="alice", row_bytes=ROW_BYTES, tokens=pack([1]), used=1)
    assert header.pack() != replace(header, owner="bob").pack()


def test_an_opening_is_its_streams(slots: Slots) -> None:
    sequence: Sequence = run(slots(), asked("a", "alice"))[0]
    assert opening_of(sequence, 4) == Packed(pack(list(PROMPT[:4])), "alice")
    assert opening_of(sequence, -1) == Packed(pack(sequence.tokens[:-1]), "alice")
