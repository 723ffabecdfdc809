from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from manual_spill import ManualSpill
from tierd.kv.bank import Bank, Banked
from tierd.kv.origin import origin_of
from tierd.kv.row_files import read_header

ROW_BYTES = (8, 16)
POSITION = sum(ROW_BYTES)


@pytest.fixture
def spill(tmp_path: Path) -> ManualSpill:
    return ManualSpill(tmp_path)


@pytest.fixture
def bank(spill: ManualSpill) -> Bank:
    return Bank(10 * POSITION, spill=spill)


def put(bank: Bank, token: int, length: int, *, model: str = "m", live: bool = False) -> Banked:
    """Keep the rows of a conversation of one token only."""
    entry = bank.open(model, "host", ROW_BYTES, length, live=live)
    assert entry is not None
    for layer in entry.layers:
        layer[:] = token
    bank.keep(entry, [token] * length)
    return entry


def fetch(bank: Bank, entry: Banked) -> list[bool]:
    """Fetch an entry; what is told will be in the list."""
    told: list[bool] = []
    bank.fetch(entry, told.append)
    return told


def finish(bank: Bank, spill: ManualSpill) -> Banked:
    return bank.settle(spill.finish())


def written(bank: Bank, spill: ManualSpill, token: int, length: int) -> Banked:
    """Put an entry that makes the bank write it."""
    entry = put(bank, token, length)
    assert finish(bank, spill) is entry
    assert entry.path is not None
    return entry


def test_nothing_is_written_while_half_of_the_memory_can_be_had(bank: Bank, spill: ManualSpill) -> None:
    first, second = put(bank, 1, 3), put(bank, 2, 2)
    assert spill.job is None
    put(bank, 3, 1)
    assert finish(bank, spill) is first
    assert spill.job is None
    assert first.path is not None
    assert first.in_memory
    assert second.path is None
    assert (bank.spilled, bank.used) == (first.path.stat().st_size, 6 * POSITION)


def test_live_and_unfinished_entries_are_not_written(bank: Bank, spill: ManualSpill) -> None:
    live = put(bank, 1, 4, live=True)
    filling = bank.open("m", "host", ROW_BYTES, 4, live=False)
    assert filling is not None
    assert spill.job is None
    bank.keep(filling, [2] * 4)
    assert finish(bank, spill) is filling
    assert spill.job is None
    bank.parked(live)
    assert spill.job is None  # half of it is in a file
    put(bank, 3, 2)
    assert finish(bank, spill) is live


def test_an_entry_in_a_file_leaves_memory_and_nothing_is_dropped(bank: Bank, spill: ManualSpill) -> None:
    entry = written(bank, spill, 1, 6)
    put(bank, 2, 4)
    other = put(bank, 3, 4)
    assert not entry.in_memory
    assert not entry.dropped
    assert bank.used == 8 * POSITION
    assert bank.dropped == 0
    assert bank.find("m", "host", [1, 1]) == (entry, 2)
    assert other.in_memory


def test_what_is_in_a_file_leaves_before_what_would_be_lost(bank: Bank, spill: ManualSpill) -> None:
    first, second = put(bank, 1, 3), put(bank, 2, 3)
    assert finish(bank, spill) is first
    bank.touch(first)
    put(bank, 3, 4)
    bank.settle(spill.fail())
    while spill.job is not None:
        bank.settle(spill.fail())
    put(bank, 4, 2)
    assert not first.in_memory
    assert second.in_memory
    assert bank.dropped == 0


def test_what_is_being_written_stays(bank: Bank, spill: ManualSpill) -> None:
    entry = put(bank, 1, 6)
    assert spill.job is not None
    assert bank.open("m", "host", ROW_BYTES, 5, live=True) is None
    bank.close(entry)
    assert bank.used == 6 * POSITION
    assert bank.find("m", "host", [1]) is None
    assert finish(bank, spill) is entry
    assert (bank.used, bank.spilled, entry.dropped, spill.files) == (0, 0, True, set())


def test_rows_are_fetched(bank: Bank, spill: ManualSpill) -> None:
    entry = written(bank, spill, 1, 6)
    other = put(bank, 2, 8)
    finish(bank, spill)
    told = fetch(bank, entry)
    told_too = fetch(bank, entry)
    assert not other.in_memory
    assert not entry.in_memory
    assert entry.fetching
    assert bank.used == 6 * POSITION
    assert told == told_too == []
    assert finish(bank, spill) is entry
    assert not entry.fetching
    assert told == told_too == [True]
    assert all((layer == 1).all() for layer in entry.layers)
    assert fetch(bank, entry) == [True]
    assert spill.job is None


def test_fetching_comes_before_writing(spill: ManualSpill) -> None:
    bank = Bank(40 * POSITION, spill=spill)
    first, live = put(bank, 1, 3), put(bank, 2, 18, live=True)
    assert finish(bank, spill) is first
    second = put(bank, 3, 4)
    bank.close(put(bank, 4, 16, live=True))
    bank.close(live)
    assert not first.in_memory
    third = put(bank, 5, 21)
    fetch(bank, first)
    assert [finish(bank, spill) for _ in range(3)] == [second, first, third]
    assert first.in_memory


def test_there_may_be_no_room_to_fetch(bank: Bank, spill: ManualSpill) -> None:
    entry = written(bank, spill, 1, 6)
    put(bank, 2, 7, live=True)
    assert not entry.in_memory
    assert fetch(bank, entry) == [False]
    assert not entry.fetching
    assert bank.used == 7 * POSITION


def test_a_bad_file_is_a_miss(bank: Bank, spill: ManualSpill, caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[Banked] = []
    bank = Bank(10 * POSITION, spill=spill, on_drop=dropped.append)
    entry = written(bank, spill, 1, 6)
    put(bank, 2, 7, live=True)
    live = bank.entries[-1]
    bank.close(live)
    bank.pin(entry)
    told = fetch(bank, entry)
    path = entry.path
    assert path is not None
    path.write_bytes(b"x")
    assert finish(bank, spill) is entry
    assert (entry.dropped, entry.damaged, entry.in_memory) == (True, True, False)
    assert dropped == [entry]
    assert told == [False]
    assert (bank.dropped, bank.dropped_positions, bank.used) == (1, 6, 0)
    assert bank.find("m", "host", [1]) is None
    assert f"cannot read {path} back: it has another size" in caplog.text
    assert (bank.spilled, spill.files) == (0, set())
    bank.unpin(entry)
    assert bank.entries == ()


def test_what_is_closed_while_it_is_fetched_can_still_be_read(bank: Bank, spill: ManualSpill) -> None:
    entry = written(bank, spill, 1, 6)
    bank.close(put(bank, 2, 7, live=True))
    bank.pin(entry)
    told = fetch(bank, entry)
    assert bank.flush() == 1
    cleared: list[str] = []
    bank.filing.when_cleared(cleared.append)
    assert cleared == []
    assert finish(bank, spill) is entry
    assert (told, cleared, spill.files) == ([True], [""], set())
    assert all((layer == 1).all() for layer in entry.layers)
    bank.unpin(entry)
    assert (bank.entries, bank.used) == ((), 0)


def test_what_is_closed_before_it_is_fetched_is_not_read(bank: Bank, spill: ManualSpill) -> None:
    entry = written(bank, spill, 1, 6)
    bank.close(put(bank, 2, 7, live=True))
    bank.pin(entry)
    assert bank.flush() == 1
    cleared: list[str] = []
    bank.filing.when_cleared(cleared.append)
    assert (cleared, spill.files, bank.spilled) == ([""], set(), 0)
    assert fetch(bank, entry) == [False]
    bank.unpin(entry)
    assert (bank.entries, bank.used) == ((), 0)


def test_a_file_that_is_being_written_is_waited_for_and_removed(bank: Bank, spill: ManualSpill) -> None:
    entry = put(bank, 1, 6)
    bank.flush()
    cleared: list[str] = []
    bank.filing.when_cleared(cleared.append)
    assert cleared == []
    assert finish(bank, spill) is entry
    assert (cleared, spill.files, bank.entries) == ([""], set(), ())


def test_without_files_there_is_nothing_to_clear() -> None:
    cleared: list[str] = []
    Bank(10 * POSITION).filing.when_cleared(cleared.append)
    assert cleared == [""]


def test_failures_to_write_are_said_once(
    bank: Bank, spill: ManualSpill, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    first, second = put(bank, 1, 4), put(bank, 2, 4)
    assert bank.settle(spill.fail()) is first
    assert bank.settle(spill.fail()) is second
    assert spill.job is None
    assert [first.unwritable, second.unwritable] == [True, True]
    assert len(caplog.records) == 1
    assert "no luck; K/V that memory does not hold is dropped" in caplog.text
    third = put(bank, 3, 6)
    assert first.dropped
    assert finish(bank, spill) is third
    fourth = put(bank, 4, 4)
    assert bank.settle(spill.fail()) is fourth
    assert len(caplog.records) == 2


def test_the_oldest_files_make_room_for_newer_ones(bank: Bank, spill: ManualSpill) -> None:
    entries = [written(bank, spill, 0, 6)]
    spill.limit = 2 * bank.spilled
    entries += [written(bank, spill, token, 6) for token in range(1, 4)]
    assert [entry.dropped for entry in entries] == [True, True, False, False]
    assert bank.spilled == spill.limit
    assert spill.files == {entry.path for entry in entries[2:]}
    assert bank.dropped == 2


def test_what_is_too_large_for_a_file_is_not_written(tmp_path: Path) -> None:
    spill = ManualSpill(tmp_path, limit=6 * POSITION)
    bank = Bank(10 * POSITION, spill=spill)
    entry = put(bank, 1, 6)
    assert spill.job is None
    assert entry.unwritable


def test_a_full_disk_costs_the_oldest_files(bank: Bank, spill: ManualSpill) -> None:
    old = written(bank, spill, 1, 6)
    entry = put(bank, 2, 6)
    assert bank.settle(spill.fail(full=True)) is entry
    assert old.dropped
    assert finish(bank, spill) is entry
    assert spill.files == {entry.path}
    more = put(bank, 3, 4)
    bank.touch(entry)
    while spill.job is not None:
        bank.settle(spill.fail(full=True))
    assert not entry.dropped
    assert more.path is None


def test_all_is_saved_the_latest_first(spill: ManualSpill) -> None:
    bank = Bank(100 * POSITION, spill=spill)
    first, second, live = put(bank, 1, 2), put(bank, 2, 2), put(bank, 3, 2, live=True)
    assert spill.job is None
    bank.filing.begin_to_save()
    assert [finish(bank, spill) for _ in range(2)] == [second, first]
    assert not bank.filing.at_work
    late = put(bank, 4, 1)
    assert finish(bank, spill) is late
    bank.parked(live)
    assert finish(bank, spill) is live
    bank.filing.end_saving()
    put(bank, 5, 1)
    assert not bank.filing.at_work


def test_memory_of_what_is_saved_can_be_given_up(bank: Bank, spill: ManualSpill) -> None:
    entry = put(bank, 1, 4)
    bank.rest(entry)
    assert entry.in_memory
    bank.filing.begin_to_save()
    bank.rest(entry)
    assert entry.in_memory
    finish(bank, spill)
    bank.pin(entry)
    bank.rest(entry)
    assert entry.in_memory
    bank.unpin(entry)
    bank.rest(entry)
    assert (entry.in_memory, bank.used) == (False, 0)
    assert fetch(bank, entry) == []
    finish(bank, spill)
    assert all((layer == 1).all() for layer in entry.layers)


def test_a_file_goes_once_another_has_all_of_it_and_more(bank: Bank, spill: ManualSpill) -> None:
    """Whatever ends the process, one of them is there."""
    short = written(bank, spill, 1, 6)
    others = written(bank, spill, 2, 6), put(bank, 1, 2, model="n")
    more = put(bank, 1, 7)
    assert not short.dropped
    bank.filing.begin_to_save()
    while more.path is None:
        assert short.path in spill.files
        finish(bank, spill)
    assert (short.dropped, spill.files >= {more.path}) == (True, True)
    assert [other.dropped for other in others] == [False, False]
    assert bank.dropped == 0


def test_saving_tries_again_what_could_not_be_written(bank: Bank, spill: ManualSpill) -> None:
    entry = put(bank, 1, 6)
    bank.settle(spill.fail())
    assert entry.unwritable
    bank.filing.begin_to_save()
    assert finish(bank, spill) is entry
    assert entry.path is not None


def test_an_entry_may_have_been_used_before_others(bank: Bank, spill: ManualSpill) -> None:
    first, last = put(bank, 1, 1), put(bank, 2, 1)
    between = bank.open("m", "host", ROW_BYTES, 1, live=False, used=(first.used + last.used) / 2)
    assert between is not None
    assert bank.entries == (first, between, last)


def again(spill: ManualSpill, *, limit: int = 1 << 62) -> Bank:
    """Return the bank of the next process."""
    following = ManualSpill(spill.folder, limit)
    following.found = {path: read_header(path) for path in spill.folder.glob("*.rows")}
    return Bank(10 * POSITION, spill=following)


def saved(bank: Bank, spill: ManualSpill) -> None:
    bank.filing.begin_to_save()
    while bank.filing.at_work:
        finish(bank, spill)


def test_files_are_entries_of_the_next_process(bank: Bank, spill: ManualSpill) -> None:
    for token in range(3):
        time.sleep(0.002)  # their order is told to the millisecond
        put(bank, token, 2 + token)
    saved(bank, spill)
    following = again(spill)
    assert [entry.tokens for entry in following.entries] == [[0] * 2, [1] * 3, [2] * 4]
    assert (following.used, following.spilled) == (0, bank.spilled)
    assert [entry.used for entry in following.entries] == pytest.approx(
        [entry.used for entry in bank.entries], abs=0.001
    )
    found = following.find("m", "host", [1, 1])
    assert found == (following.entries[1], 2)
    told = fetch(following, found[0])
    assert isinstance(following.filing._spill, ManualSpill)
    following.settle(following.filing._spill.finish())
    assert told == [True]
    assert all((layer == 1).all() for layer in found[0].layers)


def test_a_lower_limit_costs_the_oldest_files(bank: Bank, spill: ManualSpill) -> None:
    for token in range(3):
        time.sleep(0.002)
        put(bank, token, 2)
    saved(bank, spill)
    following = again(spill, limit=2 * bank.spilled // 3)
    assert [entry.tokens[0] for entry in following.entries] == [1, 2]
    assert len(spill.files) == 2


def test_rows_of_another_file_codec_or_version_are_forgotten_and_those_of_elsewhere_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = origin_of("a", "f16", "cpu avx2")
    origins = {
        "ours": ours,
        "other file": origin_of("b", "f16", "cpu avx2"),
        "other codec": origin_of("a", "tq4", "cpu avx2"),
        "older": ours.replace("tierd ", "tierd 0."),
        "elsewhere": origin_of("a", "f16", "a device"),
    }
    spill = ManualSpill(tmp_path)
    bank = Bank(100 * POSITION, spill=spill)
    for origin in (*origins.values(), "of a model that is not there"):
        entry = bank.open("m" if origin in origins.values() else "n", origin, ROW_BYTES, 1, live=False)
        assert entry is not None
        bank.keep(entry, [len(bank.entries)])
    odd = bank.open("m", ours, (8,), 1, live=False)
    assert odd is not None
    bank.keep(odd, [99])
    saved(bank, spill)
    paths = {entry.origin: entry.path for entry in bank.entries}
    odd_path, paths[ours] = odd.path, bank.entries[0].path
    following = again(spill)
    for _ in range(2):
        following.review("m", ours, ROW_BYTES)
    left = {entry.origin for entry in following.entries}
    assert left == {ours, origins["elsewhere"], "of a model that is not there"}
    assert {record.getMessage() for record in caplog.records} == {
        f"model=m ignored and removed {paths[origins['other file']]}: it is of another model file",
        f"model=m ignored and removed {paths[origins['other codec']]}: it is of another codec",
        f"model=m ignored and removed {paths[origins['older']]}: it is of another tierd",
        f"model=m ignored and removed {odd_path}: it is of other layers",
        f"model=m ignores {paths[origins['elsewhere']]}: its rows were computed by a device, not by cpu avx2",
    }
    assert len(caplog.records) == 5
