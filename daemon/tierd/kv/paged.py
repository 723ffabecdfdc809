"""A home of small pages: streams take them as they grow, and share whole ones of equal prompts.

A stream is granted pages for the tokens it has and some more; the grant grows a page at a time. So pages are
not kept for what may never be, and may run out: then somebody has to give up theirs for a while. Where the
bank knows more of a prompt than the pages do, the rest is brought from there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

from tierd.backends.protocol import Executor
from tierd.core import Request, SavedRows, Sequence
from tierd.kv.bank import Bank
from tierd.kv.home import Parked, Room
from tierd.kv.moves import Move
from tierd.kv.openings import Packed, opening_of
from tierd.kv.pool import PagePool
from tierd.kv.prefix import Match, PrefixCache
from tierd.kv.saved import SavedEntry
from tierd.kv.sizing import pages_for


class PagedHome:
    """See Home. A stream is admitted once its first grant can be reserved, and a page for each of those that
    will grow, so that it does not drive them out at once.

    What the prefix cache holds of a prompt needs no reserve where whole pages are shared; of a page that is
    partly equal the rows are copied.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        model: str = "",
        origin: str = "",
        bank: Bank | None = None,
        prefix_cache: bool = True,
    ) -> None:
        """origin: of its rows; no others are found in the bank. prefix_cache: False: no page outlives its
        streams, and nothing is found.
        """
        self.executor = executor
        self.origin = origin or executor.name
        self.most = executor.pages * executor.page_positions
        self.keeps = prefix_cache
        self.moves: deque[Move] = deque()
        self.pool = PagePool(executor.pages)
        self.prefixes = PrefixCache(self.pool, executor.page_positions, enabled=prefix_cache)
        self.bank = bank
        self._model = model
        self._grants: dict[Sequence, int] = {}  # pages, those that are taken among them

    @property
    def room(self) -> Room:
        """See Home."""
        pool = self.pool
        return Room(
            total=pool.total, free=pool.free, used=pool.used, cached=pool.cached, reserved=pool.reserved
        )

    @property
    def unsaved(self) -> int:
        """See Home."""
        return self.prefixes.new

    def pages_needed(self, request: Request) -> int:
        """Return how many pages a request may ever fill: the last token it asks for is never fed."""
        return pages_for(request.positions_fed, self.executor.page_positions)

    def refusal(self, request: Request) -> str:
        """See Home."""
        if self.pages_needed(request) <= self.pool.total:
            return ""
        return (
            f"{len(request.prompt)} prompt tokens and {request.max_tokens} tokens of output need "
            f"{self.pages_needed(request)} pages of K/V, more than the {self.pool.total} there are; "
            "shorten the prompt or lower max_tokens"
        )

    def first_grant(self, sequence: Sequence) -> int:
        """Return how many pages a stream must have to begin: for its tokens, and a page's worth more."""
        step = self.executor.page_positions
        return min(self.pages_needed(sequence.request), pages_for(len(sequence.tokens) + step, step))

    def granted(self, sequence: Sequence) -> int:
        """Return how many pages a stream was granted, 0 for one that is not here."""
        return self._grants.get(sequence, 0)

    def fitting(self, waiting: Iterable[Sequence]) -> int:
        """See Home. At least: pages that a prompt would share are counted as if it needed them."""
        count, pages, growing = 0, 0, self._growing
        for sequence in waiting:
            first = self.first_grant(sequence)
            if not self.pool.can_reserve(pages + first + growing):
                break
            pages += first
            growing += first < self.pages_needed(sequence.request)
            count += 1
        return count

    def lack(self, waiting: Iterable[Sequence]) -> str:
        """See Home."""
        *before, last = waiting
        promised = self._growing
        for sequence in before:
            first = self.first_grant(sequence)
            promised += first + (first < self.pages_needed(sequence.request))
        return (
            f"memory, its {len(last.tokens)} tokens need {self.first_grant(last)} pages of K/V to begin, "
            f"{max(0, self.pool.available - promised)} are free"
        )

    def can_admit(self, sequence: Sequence) -> bool:
        """See Home."""
        return self.could_admit(sequence, ())

    def could_admit(self, sequence: Sequence, going: Ordered[Sequence]) -> bool:
        """Whether a stream could have its pages if all of these gave up theirs. Pure."""
        pool = self.pool
        theirs = Counter(page for other in going for page in other.pages)
        promised = sum(self.granted(other) - len(other.pages) for other in going)
        freed = promised + sum(pool.references(page) == count for page, count in theirs.items())
        growing = self._growing - sum(map(self._grows, going))
        needed = self.first_grant(sequence) + growing - freed
        if pool.can_reserve(needed):
            return True
        if sequence.saved is not None:
            return False
        # A shared page is not reserved; one that no stream uses yet is lost to what can be reserved, too.
        shared = self._match(sequence).pages
        return pool.can_reserve(needed - sum(pool.references(page) > theirs[page] for page in shared))

    def admit(self, sequence: Sequence) -> None:
        """See Home."""
        needed = self._grants[sequence] = self.first_grant(sequence)
        match = self._match(sequence)
        if sequence.saved is not None and not self._has_all(match, sequence.saved):
            self.pool.reserve(needed)
            self._bring(sequence)
            return
        if sequence.saved is not None:
            sequence.saved.close()
            sequence.saved = None
        for page in match.pages:
            self.pool.retain(page)
        self.pool.reserve(needed - len(match.pages))
        sequence.pages.extend(match.pages)
        banked = self._find_banked(sequence, match)
        if banked is not None:
            sequence.fed = len(match.pages) * self.executor.page_positions
            self._bring_banked(sequence, banked)
            return
        if match.source is not None:
            self.pool.touch(match.source)
            page = self._take()
            # The source itself, when nothing else was left to take: then its rows are where they should be.
            if page != match.source:
                rows = match.positions % self.executor.page_positions
                self.executor.copy_rows(match.source, page, rows)
            sequence.pages.append(page)
        self._begin(sequence, match.positions)

    def grow(self, sequence: Sequence, end: int) -> bool:
        """See Home."""
        if end <= self._grants[sequence] * self.executor.page_positions:
            return True
        wanted = min(pages_for(end, self.executor.page_positions), self.pages_needed(sequence.request))
        more = wanted - self._grants[sequence]
        if more > 0:
            if not self.pool.can_reserve(more):
                return False
            self.pool.reserve(more)
            self._grants[sequence] = wanted
        return True

    def cover(self, sequence: Sequence, end: int) -> None:
        """See Home."""
        while len(sequence.pages) * self.executor.page_positions < end:
            sequence.pages.append(self._take())

    def let_go(self, sequence: Sequence, *, written: bool) -> None:
        """See Home."""
        if written:
            sequence.held.extend(sequence.pages)
            for page in sequence.held:
                self.pool.retain(page)
        self.pool.unreserve(self._grants.pop(sequence) - len(sequence.pages))
        keeps = sequence.request.shares and not sequence.mixed
        kept = sequence.tokens[: sequence.fed] if keeps else []
        self.prefixes.donate(kept, sequence.pages, sequence.owner)
        sequence.pages.clear()

    def advanced(self, sequence: Sequence) -> None:
        """See Home."""

    def settled(self, sequence: Sequence) -> None:
        """See Home."""
        for page in sequence.held:
            self.pool.release(page)
        sequence.held.clear()

    def next_to_save(self) -> Parked | None:
        """See Home."""
        chain = self.prefixes.take_new()
        if chain is None:
            return None
        return Parked(
            tokens=Packed(chain.tokens, chain.owner),
            pages=chain.pages,
            used=chain.since,
            stands=lambda: self.prefixes.holds(chain),
            put_back=lambda: self.prefixes.put_back(chain),
        )

    def flush(self) -> int:
        """See Home. What is in the bank is forgotten as well."""
        if self.bank is not None:
            self.bank.flush(self._model)
        return self.prefixes.flush()

    def _match(self, sequence: Sequence) -> Match:
        """Return what the pages have of a stream's tokens, if it may share it. Pure."""
        if not sequence.request.shares:
            return Match()
        return self.prefixes.match(sequence.tokens, sequence.owner)

    def _find_banked(self, sequence: Sequence, match: Match) -> SavedEntry | None:
        """Return what the bank has of a stream's tokens, if that is more than the pages have."""
        if self.bank is None or not self.keeps or not sequence.request.shares:
            return None
        tokens = opening_of(sequence, -1)
        found = self.bank.find(self._model, self.origin, tokens, minimum=match.positions + 1)
        if found is None:
            return None
        self.bank.touch(found[0])
        return SavedEntry(self.bank, *found)

    def _bring_banked(self, sequence: Sequence, saved: SavedEntry) -> None:
        """Have the bank's rows behind a stream's shared pages, which are fed, brought into new ones."""
        start = sequence.fed
        self.cover(sequence, saved.positions)

        def fetched(there: bool) -> None:
            stop = saved.positions if there else start

            def arrived(moved: bool) -> None:
                sequence.moves -= 1
                self._begin(sequence, stop if moved else start)
                saved.close()

            pages, layers = tuple(sequence.pages), [layer[start:] for layer in saved.layers]
            self.moves.append(Move(sequence, pages, layers, start, stop, inward=True, finish=arrived))

        sequence.moves += 1
        saved.fetch(fetched)

    def _begin(self, sequence: Sequence, positions: int) -> None:
        """Let a stream go on from so many positions."""
        sequence.fed, sequence.mixed = positions, False
        if not (sequence.generated or sequence.preemptions):
            sequence.cached = positions

    def _bring(self, sequence: Sequence) -> None:
        """Have a stream's own rows, which are outside, brought into new pages."""
        saved = sequence.saved
        assert saved is not None
        self.cover(sequence, saved.positions)

        def fetched(there: bool) -> None:
            stop = saved.positions if there else 0

            def arrived(moved: bool) -> None:
                sequence.moves -= 1
                sequence.saved = None
                sequence.fed = stop if moved else 0
                sequence.mixed = sequence.fed > 0 and saved.origin != self.origin
                saved.close()

            pages = tuple(sequence.pages)
            self.moves.append(Move(sequence, pages, saved.layers, 0, stop, inward=True, finish=arrived))

        sequence.moves += 1
        saved.fetch(fetched)

    @property
    def _growing(self) -> int:
        """How many streams may need more pages than they were granted."""
        return sum(map(self._grows, self._grants))

    def _grows(self, sequence: Sequence) -> bool:
        """Whether a stream that is here may need more pages than it was granted."""
        return self._grants[sequence] < self.pages_needed(sequence.request)

    def _has_all(self, match: Match, saved: SavedRows) -> bool:
        """Whether the pages still have all the rows that were saved of a stream."""
        return saved.origin == self.origin and match.positions >= saved.positions

    def _take(self) -> int:
        """Take a promised page; one that is cached makes room when none is free."""
        if not self.pool.free:
            self.prefixes.evict()
        return self.pool.take()
