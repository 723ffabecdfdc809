from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tierd.kv.bank import Bank, Banked

ROW_BYTES = (8, 16)
POSITION = sum(ROW_BYTES)


def put(
    bank: Bank, tokens: list[int], *, model: str = "m", origin: str = "host", live: bool = False
) -> Banked:
    """Keep these tokens' rows."""
    entry = bank.open(model, origin, ROW_BYTES, len(tokens), live=live)
    assert entry is not None
    bank.keep(entry, tokens)
    return entry


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_an_entry_has_room_for_its_rows() -> None:
    bank = Bank(10 * POSITION)
    entry = bank.open("m", "host", ROW_BYTES, 10, live=False)
    assert entry is not None
    assert [(layer.shape, layer.dtype) for layer in entry.layers] == [
        ((10, 8), np.uint8),
        ((10, 16), np.uint8),
    ]
    assert (entry.model, entry.origin, entry.positions, entry.bytes) == ("m", "host", 10, 10 * POSITION)
    assert bank.used == bank.limit == entry.bytes
    assert bank.entries == (entry,)
    assert bank.open("m", "host", ROW_BYTES, 1, live=True) is None


def test_memory_is_touched_as_it_is_written() -> None:
    bank = Bank(1 << 30)
    before = resident_bytes()
    entry = bank.open("m", "host", (1 << 20,), 1 << 10, live=False)
    assert entry is not None
    entry.layers[0][-1] = 1
    assert resident_bytes() - before < 1 << 28
    bank.close(entry)


def test_memory_that_the_system_refuses_is_no_room() -> None:
    bank = Bank(1 << 60)
    assert bank.open("m", "host", (1 << 20,), 1 << 36, live=False) is None
    assert (bank.used, bank.entries) == (0, ())


def test_closing_gives_the_room_back_once() -> None:
    bank = Bank(100 * POSITION)
    entry, other = put(bank, [1, 2]), put(bank, [1, 2, 3])
    for _ in range(2):
        bank.close(entry)
        assert bank.used == other.bytes
    assert (entry.dropped, entry.layers, other.dropped) == (True, [], False)
    assert bank.entries == (other,)
    assert bank.dropped == 0


def test_only_what_is_kept_is_found() -> None:
    bank = Bank(100 * POSITION)
    entry = bank.open("m", "host", ROW_BYTES, 5, live=False)
    assert entry is not None
    assert not entry.kept
    assert entry.tokens == []
    assert bank.find("m", "host", [1, 2, 3]) is None
    bank.keep(entry, [1, 2, 3])
    assert entry.kept
    assert entry.tokens == [1, 2, 3]
    assert entry.valid == 3
    assert bank.find("m", "host", [1, 2, 4]) == (entry, 2)
    bank.close(entry)
    assert bank.find("m", "host", [1, 2, 4]) is None


def test_the_longest_opening_is_found() -> None:
    bank = Bank(100 * POSITION)
    longer, long, short = put(bank, [1, 2, 3, 4, 5], live=True), put(bank, [1, 2, 3, 4]), put(bank, [1, 2])
    assert bank.find("m", "host", [1, 2, 9]) == (short, 2)
    assert bank.find("m", "host", [1, 2, 3, 9]) == (long, 3)
    assert bank.find("m", "host", [1, 2, 3, 4, 5, 6]) == (longer, 5)
    assert bank.find("m", "host", [1, 2, 9], minimum=3) is None
    assert bank.find("m", "host", [2]) is None
    assert bank.find("m", "host", []) is None


def test_of_equals_the_one_used_last_is_found() -> None:
    bank = Bank(100 * POSITION)
    first, second = put(bank, [1, 2], live=True), put(bank, [1, 2])
    assert bank.find("m", "host", [1, 2]) == (second, 2)
    bank.touch(first)
    assert bank.find("m", "host", [1, 2]) == (first, 2)


def test_whoever_has_rows_of_an_opening_alone_goes_once_another_has_more() -> None:
    bank = Bank(100 * POSITION)
    opening, same, pinned = put(bank, [1]), put(bank, [1, 2]), put(bank, [1, 2, 3], live=True)
    assert (opening.dropped, bank.entries) == (True, (pinned,))
    assert same.dropped
    others = put(bank, [1, 3]), put(bank, [1], model="n"), put(bank, [1], origin="vulkan")
    bank.pin(pinned)
    bank.parked(pinned)
    more = put(bank, [1, 2, 3, 4])
    assert set(bank.entries) == {pinned, *others, more}
    bank.unpin(pinned)
    most = put(bank, [1, 2, 3, 4, 5])
    assert set(bank.entries) == {*others, most}
    assert (bank.dropped, bank.used) == (0, sum(entry.bytes for entry in bank.entries))


def test_rows_of_another_model_or_origin_are_not_found() -> None:
    bank = Bank(100 * POSITION)
    put(bank, [1, 2], model="n")
    put(bank, [1, 2], origin="vulkan")
    assert bank.find("m", "host", [1, 2]) is None


def test_the_least_recently_used_make_room_and_are_counted() -> None:
    dropped: list[Banked] = []
    bank = Bank(10 * POSITION, on_drop=dropped.append)
    first, second, third = put(bank, [1] * 4), put(bank, [2] * 3), put(bank, [3] * 3, model="n")
    bank.touch(first)
    entry = bank.open("m", "host", ROW_BYTES, 5, live=True)
    assert entry is not None
    assert dropped == [second, third]
    assert (bank.dropped, bank.dropped_positions) == (2, 6)
    assert second.dropped
    assert second.layers == []
    assert bank.entries == (first, entry)
    assert bank.used == 9 * POSITION


def test_nothing_is_dropped_when_it_would_not_be_enough() -> None:
    bank = Bank(10 * POSITION)
    parked, live = put(bank, [1] * 4), put(bank, [2] * 6, live=True)
    assert bank.open("m", "host", ROW_BYTES, 5, live=True) is None
    assert bank.entries == (parked, live)
    assert bank.dropped == 0


def test_what_is_live_or_pinned_or_not_yet_kept_stays() -> None:
    bank = Bank(9 * POSITION)
    live, pinned = put(bank, [1] * 3, live=True), put(bank, [2] * 3)
    filling = bank.open("m", "host", ROW_BYTES, 3, live=False)
    assert filling is not None
    bank.pin(pinned)
    bank.pin(pinned)
    bank.unpin(pinned)
    assert bank.open("m", "host", ROW_BYTES, 1, live=False) is None

    bank.unpin(pinned)
    bank.keep(filling, [3] * 3)
    bank.parked(live)
    assert bank.open("m", "host", ROW_BYTES, 1, live=False) is not None
    assert (pinned.dropped, filling.dropped, live.dropped) == (True, False, False)
    assert bank.open("m", "host", ROW_BYTES, 6, live=False) is not None
    assert (filling.dropped, live.dropped) == (True, True)


def test_what_is_read_goes_only_with_its_last_reader() -> None:
    bank = Bank(100 * POSITION)
    entry = put(bank, [1, 2])
    bank.pin(entry)
    bank.pin(entry)
    bank.close(entry)
    bank.close(entry)
    assert bank.find("m", "host", [1, 2]) is None
    bank.pin(entry)
    bank.touch(entry)
    bank.unpin(entry)
    bank.unpin(entry)
    assert (bank.entries, bank.used, entry.dropped, len(entry.layers)) == ((entry,), entry.bytes, False, 2)
    bank.unpin(entry)
    assert (bank.entries, bank.used, entry.dropped) == ((), 0, True)
    with pytest.raises(ValueError, match="the entry is closed"):
        bank.pin(entry)


def test_flushing_leaves_what_is_in_use() -> None:
    bank = Bank(100 * POSITION)
    live, parked, other = put(bank, [1], live=True), put(bank, [2]), put(bank, [3], model="n")
    assert bank.flush("m") == 1
    assert bank.entries == (live, other)
    assert parked.dropped
    assert bank.flush() == 1
    assert bank.entries == (live,)
    assert bank.dropped == 0


def test_misuse_is_refused() -> None:
    bank = Bank(100 * POSITION)
    entry = bank.open("m", "host", ROW_BYTES, 2, live=False)
    assert entry is not None
    with pytest.raises(ValueError, match="cannot keep 0 tokens in 2 positions"):
        bank.keep(entry, [])
    with pytest.raises(ValueError, match="cannot keep 3 tokens in 2 positions"):
        bank.keep(entry, [1, 2, 3])
    with pytest.raises(ValueError, match="has no pin"):
        bank.unpin(entry)
    bank.close(entry)
    for act in (bank.touch, bank.pin, bank.parked):
        with pytest.raises(ValueError, match="the entry is closed"):
            act(entry)
    with pytest.raises(ValueError, match="the entry is closed"):
        bank.keep(entry, [1])
