"""The page pool: which K/V pages are free, used, cached or promised. It knows ids only, no memory.

Pages are promised before they are taken, one by one as a stream grows, so that a promised one is always
there. A page is used while a stream refers to it. When the last one lets go of a page that is kept, its rows
stay: the page is cached until it is used again or discarded. Cached pages can be had as well as free ones,
so both back the promises.
"""

from __future__ import annotations


class PagePool:
    """Page ids 0 to total - 1. Always free + used + cached = total, and reserved <= free + cached."""

    __slots__ = ("_cached", "_free", "_kept", "_references", "_reserved")

    def __init__(self, total: int) -> None:
        # Lowest ids on top, and what was freed last is taken first: memory is touched as late as can be.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._kept: set[int] = set()
        self._cached: dict[int, None] = {}  # in order of last use, the oldest first
        self._reserved = 0

    @property
    def total(self) -> int:
        """Number of pages."""
        return len(self._references)

    @property
    def free(self) -> int:
        """Pages that hold nothing, reserved ones among them."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages with a reference, kept or not."""
        return self.total - self.free - self.cached

    @property
    def cached(self) -> int:
        """Kept pages without a reference."""
        return len(self._cached)

    @property
    def reserved(self) -> int:
        """Free or cached pages that are promised and not yet taken."""
        return self._reserved

    @property
    def available(self) -> int:
        """Pages that can still be promised."""
        return self.free + self.cached - self._reserved

    @property
    def oldest(self) -> int:
        """The cached page whose last use is longest ago. ValueError when none is cached."""
        if not self._cached:
            raise ValueError("no page is cached")
        return next(iter(self._cached))

    def references(self, page: int) -> int:
        """Return how many references a page has."""
        return self._references[page]

    def can_reserve(self, count: int) -> bool:
        """Whether `count` more pages can be promised."""
        return count <= self.available

    def reserve(self, count: int) -> None:
        """Promise `count` pages. ValueError unless `can_reserve(count)`."""
        if count < 0 or not self.can_reserve(count):
            raise ValueError(
                f"cannot reserve {count} pages: {self.free} free, {self.cached} cached, "
                f"{self._reserved} promised"
            )
        self._reserved += count

    def unreserve(self, count: int) -> None:
        """Give back `count` promises that will not be taken."""
        if not 0 <= count <= self._reserved:
            raise ValueError(f"cannot give back {count} of {self._reserved} promised pages")
        self._reserved -= count

    def take(self) -> int:
        """Turn one promise into a page with one reference and return its id.

        ValueError unless one is promised and one is free: a cached page must be discarded first.
        """
        if not self._reserved or not self._free:
            raise ValueError(f"cannot take a page: {self._reserved} promised, {self.free} free")
        self._reserved -= 1
        page = self._free.pop()
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Add a reference to a used or a cached page. ValueError for a cached one that is promised."""
        if not self._references[page]:
            if page not in self._cached:
                raise ValueError(f"cannot retain page {page}: it is free")
            if not self.available:
                raise ValueError(f"cannot retain page {page}: it is promised")
            del self._cached[page]
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; with the last one the page is cached if it is kept, else free."""
        if not self._references[page]:
            raise ValueError(f"cannot release page {page}: it has no reference")
        self._references[page] -= 1
        if not self._references[page]:
            if page in self._kept:
                self._cached[page] = None
            else:
                self._free.append(page)

    def keep(self, page: int) -> None:
        """Let a used page be cached, not freed, once its last reference is gone."""
        if not self._references[page]:
            raise ValueError(f"cannot keep page {page}: it has no reference")
        self._kept.add(page)

    def discard(self, page: int) -> None:
        """Keep a page no longer: a cached one is free at once, a used one with its last reference."""
        if page not in self._kept:
            raise ValueError(f"cannot discard page {page}: it is not kept")
        self._kept.remove(page)
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)

    def discard_all(self) -> int:
        """Discard all pages that are kept; return how many are free at once."""
        freed = len(self._cached)
        self._free.extend(self._cached)
        self._cached.clear()
        self._kept.clear()
        return freed

    def touch(self, page: int) -> None:
        """Count this as the last use of a page, if it is cached."""
        if page in self._cached:
            del self._cached[page]
            self._cached[page] = None
