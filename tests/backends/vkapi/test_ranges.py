"""The sub-allocator: ranges never overlap, nothing is lost, free neighbours grow together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierd.backends.vkapi.ranges import ALIGNMENT, Ranges, aligned

SIZE = 64 * ALIGNMENT


@given(st.lists(st.one_of(st.integers(1, 20 * ALIGNMENT), st.floats(0, 1, exclude_max=True)), max_size=80))
def test_ranges_are_apart_aligned_and_conserve_the_bytes(steps: list[int | float]) -> None:
    """An int takes so many bytes; a float gives back the range that far along the list of those taken."""
    ranges = Ranges(SIZE)
    taken: dict[int, int] = {}
    for step in steps:
        if isinstance(step, int):
            start = ranges.take(step)
            if start is None:
                assert largest_gap(taken) < step
            else:
                taken[start] = aligned(step)
        elif taken:
            start = sorted(taken)[int(step * len(taken))]
            ranges.give(start)
            del taken[start]
        end = 0
        for start, length in sorted(taken.items()):
            assert start >= end
            assert start % ALIGNMENT == 0
            end = start + length
        assert end <= SIZE
        assert ranges.taken == sum(taken.values())
    for start in taken:
        ranges.give(start)
    assert ranges.taken == 0
    assert ranges.take(SIZE) == 0


def largest_gap(taken: dict[int, int]) -> int:
    edges = [0, *(edge for start in sorted(taken) for edge in (start, start + taken[start])), SIZE]
    return max(end - start for start, end in zip(edges[::2], edges[1::2], strict=True))


def test_the_smallest_gap_that_fits_is_taken() -> None:
    ranges = Ranges(SIZE)
    starts = [ranges.take(units * ALIGNMENT) for units in (4, 1, 2, 1, 3, 1)]
    for index in (0, 2, 4):
        ranges.give(starts[index] or 0)
    assert ranges.take(2 * ALIGNMENT) == starts[2]
    assert ranges.take(3 * ALIGNMENT) == starts[4]
    assert ranges.take(3 * ALIGNMENT) == starts[0]


def test_a_range_is_given_back_once() -> None:
    ranges = Ranges(SIZE)
    start = ranges.take(1)
    assert start == 0
    ranges.give(start)
    with pytest.raises(KeyError):
        ranges.give(start)


@pytest.mark.parametrize(("size", "rounded"), [(1, 256), (256, 256), (257, 512), (1 << 40, 1 << 40)])
def test_sizes_are_rounded_up(size: int, rounded: int) -> None:
    assert aligned(size) == rounded
