"""Sub-allocation: byte ranges handed out from one block and taken back."""

from __future__ import annotations

import bisect

ALIGNMENT = 256


class Ranges:
    """The ranges of a block of `size` bytes, a multiple of ALIGNMENT; so is every range.

    A request gets the smallest free range that holds it, the first among equals. Free neighbours are one.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._free = [(0, size)]  # (start, length), by start
        self._lengths: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Return the start of a range of `size` bytes or a little more, None when no free one holds it."""
        size = aligned(size)
        best: int | None = None
        for index, (_, length) in enumerate(self._free):
            if length >= size and (best is None or length < self._free[best][1]):
                best = index
        if best is None:
            return None
        start, length = self._free[best]
        if length == size:
            del self._free[best]
        else:
            self._free[best] = (start + size, length - size)
        self._lengths[start] = size
        self.taken += size
        return start

    def give(self, start: int) -> None:
        """Take back the range that starts there; KeyError when none was handed out."""
        length = self._lengths.pop(start)
        self.taken -= length
        index = bisect.bisect(self._free, (start, 0))
        if index < len(self._free) and self._free[index][0] == start + length:
            length += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == start:
            start, before = self._free.pop(index - 1)
            length += before
            index -= 1
        self._free.insert(index, (start, length))


def aligned(size: int) -> int:
    """Return the least multiple of ALIGNMENT that is at least `size`, and at least one."""
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT
