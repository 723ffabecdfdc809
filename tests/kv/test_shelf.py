from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from tierd.kv.banked import Banked
from tierd.kv.openings import longest_opening, pack
from tierd.kv.recency import Recency
from tierd.kv.row_files import Header
from tierd.kv.shelf import Shelf
from tierd.kv.times import unix_time

# Few tokens, which differ in their lowest and in their highest bytes, so that conversations begin alike.
TOKENS = st.lists(st.sampled_from([0, 1, 255, 256, 1 << 24]), min_size=1, max_size=5)


def entry_of(tokens: list[int]) -> Banked:
    entry = Banked("m", "host", (8,), len(tokens), live=False, in_memory=False)
    entry.packed = pack(tokens)
    return entry


@given(
    held=st.lists(TOKENS, max_size=14),
    gone=st.sets(st.integers(0, 13)),
    one_by_one=st.booleans(),
    asked=TOKENS,
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_a_shelf_finds_what_a_look_through_all_finds(
    held: list[list[int]], gone: set[int], one_by_one: bool, asked: list[int]
) -> None:
    entries = [entry_of(tokens) for tokens in held]
    shelf = Shelf()
    for entry in entries:
        shelf.add(entry)
    going = {entry for index, entry in enumerate(entries) if index in gone}
    for entry in going if one_by_one else ():
        shelf.discard(entry)
        shelf.discard(entry)
    shelf.discard_all(going)
    left = [entry for index, entry in enumerate(entries) if index not in gone]
    tokens = pack(asked)
    latest_first = [(entry, entry.packed or b"") for entry in reversed(left)]
    for minimum in range(1, 4):
        assert shelf.find(tokens, minimum) == longest_opening(tokens, latest_first, minimum)
    assert shelf.holds(tokens) == any(content.startswith(tokens) for _, content in latest_first)
    openings = list(shelf.openings(tokens))
    assert len(openings) == len(set(openings))
    assert set(openings) == {entry for entry, content in latest_first if tokens.startswith(content)}


@given(
    times=st.lists(st.sampled_from([1.0, 2.0, 3.0]), max_size=14),
    gone=st.sets(st.integers(0, 13)),
    one_by_one=st.booleans(),
    again=st.sets(st.integers(0, 13)),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_entries_are_in_the_order_of_their_use(
    times: list[float], gone: set[int], one_by_one: bool, again: set[int]
) -> None:
    """Of the same time those come first that were used first."""
    recency, entries = Recency(), [entry_of([1]) for _ in times]
    for entry, when in zip(entries, times, strict=True):
        entry.use(when)
        recency.add(entry)
    known = range(len(entries))
    for index in again & set(known):
        recency.discard(entries[index])
        entries[index].use(2.0)
        recency.add(entries[index])
    for index in gone & set(known):
        if one_by_one:
            recency.discard(entries[index])
            recency.discard(entries[index])
    recency.discard_all({entries[index] for index in gone & set(known)})
    left = [entries[index] for index in known if index not in gone]
    assert list(recency) == sorted(left, key=lambda entry: entry.order)
    assert list(reversed(recency)) == list(recency)[::-1]
    assert [entry in recency for entry in entries] == [index not in gone for index in known]
    assert len(recency) == len(left)


def test_no_clock_that_is_set_back_makes_the_latest_the_oldest() -> None:
    first = entry_of([1])
    with mock.patch.object(time, "time", return_value=5.0):
        second = entry_of([2])
        assert second.used >= first.used > 1e9
        assert unix_time() >= second.used
    assert second.order > first.order
    assert abs(unix_time() - time.time()) < 60


def test_what_a_file_says_of_times_to_come_is_not_believed() -> None:
    later = int(1000 * (unix_time() + 1e6))
    header = Header(model="m", origin="host", row_bytes=(8,), tokens=pack([1]), used=later)
    left = Banked.left_in(Path("0.rows"), header)
    assert left.used <= unix_time()
    assert entry_of([1]).order > left.order
