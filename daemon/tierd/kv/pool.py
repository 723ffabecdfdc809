"""The page pool: which K/V pages are free, used, or promised. It knows ids only, no memory.

A request reserves at admission all the pages it may ever need, then takes them one by one as it
grows, so that it can never run dry on the way. A page is used while its reference count is above 0.
"""

from __future__ import annotations


class PagePool:
    """Page ids 0 to total - 1. Always free + used = total, and reserved <= free."""

    __slots__ = ("_free", "_references", "_reserved", "_used")

    def __init__(self, total: int) -> None:
        # Lowest ids on top, and what was freed last is taken first: memory is touched as late as can be.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._used = 0
        self._reserved = 0

    @property
    def total(self) -> int:
        """Number of pages."""
        return len(self._references)

    @property
    def free(self) -> int:
        """Pages without a reference, the reserved ones among them."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages with a reference."""
        return self._used

    @property
    def reserved(self) -> int:
        """Free pages that are promised and not yet taken."""
        return self._reserved

    def can_reserve(self, count: int) -> bool:
        """Whether `count` more pages can be promised."""
        return count <= self.free - self._reserved

    def reserve(self, count: int) -> None:
        """Promise `count` pages. ValueError unless `can_reserve(count)`."""
        if count < 0 or not self.can_reserve(count):
            raise ValueError(f"cannot reserve {count} pages: {self.free} free, {self._reserved} promised")
        self._reserved += count

    def unreserve(self, count: int) -> None:
        """Give back `count` promises that will not be taken."""
        if not 0 <= count <= self._reserved:
            raise ValueError(f"cannot give back {count} of {self._reserved} promised pages")
        self._reserved -= count

    def take(self) -> int:
        """Turn one promise into a page with one reference and return its id."""
        if not self._reserved:
            raise ValueError("cannot take a page: none is promised")
        self._reserved -= 1
        self._used += 1
        page = self._free.pop()
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Add a reference to a used page."""
        if not self._references[page]:
            raise ValueError(f"cannot retain page {page}: it is free")
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; with the last one the page is free."""
        if not self._references[page]:
            raise ValueError(f"cannot release page {page}: it is free")
        self._references[page] -= 1
        if not self._references[page]:
            self._used -= 1
            self._free.append(page)
