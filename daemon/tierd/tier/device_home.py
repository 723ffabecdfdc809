"""A home of regions: the K/V of one stream lies in one region of a device, and stays there when it ends.

A conversation that comes back finds its rows by its tokens: in the region where they were parked, which it
takes over; in one whose rows another conversation needs too, of which it gets a copy; or in the bank. A
region that is wanted for somebody else is taken from the conversation that was used last the longest ago,
and its rows go to the bank if there is room.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from tierd.backends.protocol import Executor
from tierd.core import Request, SavedRows, Sequence
from tierd.kv.bank import Bank, Banked
from tierd.kv.gone import Gone
from tierd.kv.home import Parked, Room
from tierd.kv.moves import Move
from tierd.kv.openings import Packed, opening_of, shared_opening
from tierd.kv.saved import SavedEntry
from tierd.kv.times import unix_time
from tierd.tier.regions import Claim, Regions

# Tokens that a stream would have to be fed for nothing before it waits for another stream's rows.
_WORTH_WAITING = 16


@dataclass(frozen=True, slots=True)
class _Opening:
    """The rows that are known of a stream's tokens. At most one of claim, session and banked is there."""

    positions: int = 0
    claim: Claim | None = None
    session: Sequence | None = None
    banked: Banked | None = None


class DeviceHome:
    """See Home. Its executor's pages are regions; the first `regions` of them are for streams."""

    def __init__(
        self,
        executor: Executor,
        *,
        model: str,
        origin: str,
        bank: Bank,
        gone: Gone,
        regions: int,
        keeps: bool = True,
        device: object = None,
    ) -> None:
        """origin: of its rows; no others are found in the bank. keeps: conversations may share them.

        device: what it is on; homes of one device are lost together.
        """
        self.executor = executor
        self.device = device
        self.most = executor.page_positions
        self.keeps = keeps
        self.moves: deque[Move] = deque()
        self.regions: Regions[Sequence] = Regions(regions)
        self._model = model
        self.origin = origin
        self.bank = bank
        self._gone = gone
        self.used: list[float | None] = [None] * regions  # when, by region, in monotonic seconds
        self._fetching: dict[Sequence, SavedRows] = {}  # those whose rows are on their way from a file
        self._flushes = 0
        self._saved: set[Claim] = set()  # those that `next_to_save` has returned
        self._tokens: dict[Sequence, Packed] = {}  # of those that have a region, as they were admitted
        # By whose rows they wait for; with how many.
        self._followers: dict[Sequence, list[tuple[Sequence, int]]] = {}
        # Of streams that have ended while a step in flight still writes behind what is kept of them.
        self._written: dict[Sequence, Claim] = {}
        self._withdrawn: dict[Sequence, int] = {}  # regions in which nothing is kept

    @property
    def unsaved(self) -> int:
        """See Home."""
        return len(self._unsaved())

    @property
    def room(self) -> Room:
        """See Home."""
        regions = self.regions
        return Room(
            total=regions.count, free=regions.free, used=regions.live, cached=regions.parked, reserved=0
        )

    def refusal(self, request: Request) -> str:
        """See Home. The longest request begins in a region, too."""
        return ""

    def fitting(self, waiting: Iterable[Sequence]) -> int:
        """See Home."""
        there = self.regions.free + sum(view.claim is not None and not view.pins for view in self.regions)
        return sum(1 for _ in islice(waiting, there))

    def lack(self, waiting: Iterable[Sequence]) -> str:
        """See Home."""
        return f"one of the model's {self.regions.count} regions of K/V on the device"

    def can_admit(self, sequence: Sequence) -> bool:
        """See Home."""
        return self.regions.free > 0 or self.regions.oldest() is not None

    def admit(self, sequence: Sequence) -> None:
        """See Home."""
        tokens = self._tokens[sequence] = opening_of(sequence, -1)
        opening = self._find(sequence, tokens)
        leader, shared = self._leader(sequence, tokens, opening.positions)
        if leader is not None:
            self._take_region(sequence, lambda: self._follow(sequence, leader, shared))
        elif opening.claim is not None and self._may_adopt(opening):
            region = self.regions.adopt(sequence, opening.claim, opening.positions)
            assert region is not None
            sequence.pages = [self._use(region)]
            self._begin(sequence, opening.positions)
        elif opening.claim is not None and self._is_last(opening.claim):
            # What lies behind the shared rows goes to the bank; these are where they are wanted.
            positions = opening.positions if self.executor.rewinds else 0
            self._take_region(sequence, lambda: self._begin(sequence, positions))
        else:
            self._hold(opening)
            self._take_region(sequence, lambda: self._fill(sequence, opening))

    def grow(self, sequence: Sequence, end: int) -> bool:
        """See Home. A region is of one size."""
        return True

    def cover(self, sequence: Sequence, end: int) -> None:
        """See Home."""

    def let_go(self, sequence: Sequence, *, written: bool) -> None:
        """See Home."""
        keeps = self.keeps and sequence.request.shares and not sequence.mixed
        kept = sequence.tokens[: sequence.fed] if keeps else []
        self._tokens.pop(sequence, None)
        self._use(sequence.pages[0])
        sequence.pages.clear()
        sequence.follows = None
        if written and not kept:
            self._withdrawn[sequence] = self.regions.withdraw(sequence)
        else:
            claim = self.regions.park(sequence, kept)
            if written:
                assert claim is not None
                self.regions.pin(claim)
                self._written[sequence] = claim
        if sequence in self._followers:
            self._lead(sequence)

    def advanced(self, sequence: Sequence) -> None:
        """See Home."""
        if sequence in self._followers:
            self._lead(sequence)

    def settled(self, sequence: Sequence) -> None:
        """See Home."""
        claim = self._written.pop(sequence, None)
        if claim is not None:
            self.regions.unpin(claim)
        region = self._withdrawn.pop(sequence, None)
        if region is not None:
            self.regions.release(region)

    def flush(self) -> int:
        """See Home. What is in the bank is forgotten as well."""
        self.bank.flush(self._model)
        self._flushes += 1
        before = self.regions.free
        for claim in self.regions.claims():
            self.regions.drop(claim)
        return self.regions.free - before

    def next_to_save(self) -> Parked | None:
        """See Home."""
        claims = self._unsaved()
        if not claims:
            return None
        claim = claims[-1]
        self._saved.add(claim)
        region = self.regions.region_of(claim)
        assert region is not None
        used = self.used[region]
        assert used is not None
        return Parked(
            tokens=self.regions.packed_of(claim),
            pages=(region,),
            used=unix_time(used),
            stands=lambda: self._is_parked(claim),
            put_back=lambda: self._saved.discard(claim),
        )

    def vacate(self) -> None:
        """Have the rows of parked conversations brought to the bank, those used last if not all have room.

        Their regions are free once that is done. ValueError while a claim is pinned; no stream lives here.
        """
        going: list[tuple[int, Packed, Banked]] = []
        for claim in self.regions.claims():
            tokens = self.regions.packed_of(claim)
            if self._is_banked(tokens):
                self._forget(claim)
        for claim in reversed(self.regions.claims()):
            tokens = self.regions.packed_of(claim)
            entry = self._bank_entry(tokens)
            if entry is None:
                self._forget(claim)
            else:
                going.append((self.regions.leave(claim), tokens, entry))
        for region, tokens, entry in reversed(going):

            def out(region: int = region) -> None:
                self.regions.release(region)

            self._bank_rows(None, region, tokens, entry, out)

    def rescue(self, sequence: Sequence) -> SavedRows | None:
        """Return what the bank has of a stream whose region is lost; None when it has nothing."""
        if not sequence.request.shares:
            return None
        found = self.bank.find(self._model, self.origin, opening_of(sequence, -1))
        return None if found is None else SavedEntry(self.bank, found[0], found[1])

    def lose(self) -> None:
        """Note that the device has failed: all moves end, as if they had never begun, and no row is left."""
        while self.moves:
            self.moves.popleft().finish(False)
        for sequence, saved in self._fetching.items():
            sequence.moves -= 1
            saved.close()
        self._fetching.clear()
        for follower, _ in (one for some in self._followers.values() for one in some):
            follower.follows = None
        self._followers.clear()
        self._written.clear()
        self._withdrawn.clear()
        self._tokens.clear()
        self.regions.lose()

    def _may_share(self, sequence: Sequence) -> bool:
        """Whether a stream may go on with rows that others have computed."""
        return self.keeps and self.executor.prefill_continues and sequence.request.shares

    def _find(self, sequence: Sequence, tokens: Packed) -> _Opening:
        """Return the longest known opening of a stream's tokens."""
        if sequence.saved is not None:
            return _Opening(sequence.saved.positions)
        if not self._may_share(sequence):
            return _Opening()
        there = self.regions.find(tokens)
        banked = self.bank.find(
            self._model, self.origin, tokens, minimum=1 if there is None else there.positions + 1
        )
        if banked is not None:
            return _Opening(banked[1], banked=banked[0])
        if there is not None:
            return _Opening(there.positions, claim=there.claim, session=there.session)
        return _Opening()

    def _may_adopt(self, opening: _Opening) -> bool:
        """Whether to go on in a parked region, not in a copy: its rows are wanted whole."""
        claim = opening.claim
        assert claim is not None
        return any(
            view.claim == claim and not view.pins and view.positions == opening.positions
            for view in self.regions
        )

    def _is_last(self, claim: Claim) -> bool:
        """Whether a stream can have no other region than that of a claim."""
        takeable = [view.claim for view in self.regions if view.claim is not None and not view.pins]
        return not self.regions.free and takeable == [claim]

    def _take_region(self, sequence: Sequence, then: Callable[[], None]) -> None:
        """Give a stream a region and do `then`, once the rows of whoever had it are in the bank."""
        if self.regions.free:
            sequence.pages = [self._use(self.regions.open(sequence))]
            then()
            return
        claim = self.regions.oldest()
        assert claim is not None
        tokens = self.regions.packed_of(claim)
        sequence.pages = [self._use(self.regions.take(claim, sequence))]
        if self._is_banked(tokens):
            then()
            return
        entry = self._bank_entry(tokens)
        if entry is None:
            then()
            return

        def out() -> None:
            sequence.moves -= 1
            then()

        sequence.moves += 1
        self._bank_rows(sequence, sequence.pages[0], tokens, entry, out)

    def _fill(self, sequence: Sequence, opening: _Opening) -> None:
        """Bring the rows that are held into a stream's region."""
        if opening.session is not None and self.regions.region_of(opening.session) is None:
            opening = self._find(sequence, opening_of(sequence, -1))  # it has ended, and is parked or gone
            self._hold(opening)
        owner = opening.claim if opening.session is None else opening.session
        if opening.banked is not None:
            self.bank.touch(opening.banked)
            self._bring(sequence, SavedEntry(self.bank, opening.banked, opening.positions))
        elif sequence.saved is not None:
            self._bring(sequence, sequence.saved)
        else:
            if opening.claim is not None:
                self.regions.touch(opening.claim)
            if owner is not None:
                source = self.regions.fork(owner)
                self.executor.copy_rows(source, sequence.pages[0], opening.positions)
            self._begin(sequence, opening.positions)
        self._release(opening)

    def _lost(self, tokens: Packed, known: int) -> int:
        """Return how many more tokens than are known had rows once."""
        return max(0, self._gone.find(self._model, self.origin, tokens, known + 1) - known)

    def _bank_entry(self, tokens: Packed) -> Banked | None:
        """Return an entry of the bank for the rows of a parked conversation; without room they are lost."""
        row_bytes = self.executor.row_bytes
        entry = self.bank.open(self._model, self.origin, row_bytes, len(tokens), live=False)
        if entry is None:
            self.bank.turn_away(self._model, self.origin, tokens)
        return entry

    def _bank_rows(
        self,
        sequence: Sequence | None,
        region: int,
        tokens: Packed,
        entry: Banked,
        then: Callable[[], None],
    ) -> None:
        """Have a region's rows brought into an entry, to be kept there; sequence: who waits for that."""
        flushes = self._flushes

        def out(moved: bool) -> None:
            if moved and self._flushes == flushes:
                self.bank.touch(entry)
                self.bank.keep(entry, tokens)
            else:
                self.bank.close(entry)
                self._gone.note(self._model, self.origin, tokens)
            then()

        self.moves.append(Move(sequence, (region,), entry.layers, 0, len(tokens), inward=False, finish=out))

    def _hold(self, opening: _Opening) -> None:
        """See to it that known rows stay."""
        if opening.claim is not None:
            self.regions.pin(opening.claim)
        if opening.banked is not None:
            self.bank.pin(opening.banked)

    def _release(self, opening: _Opening) -> None:
        if opening.claim is not None:
            self.regions.unpin(opening.claim)
        if opening.banked is not None:
            self.bank.unpin(opening.banked)

    def _leader(self, sequence: Sequence, tokens: Packed, known: int) -> tuple[Sequence | None, int]:
        """Return a stream that is about to be fed more of the same opening than is known, and how much."""
        if sequence.saved is not None or not self._may_share(sequence):
            return None, 0
        for other, content in self._tokens.items():
            if other is sequence or other.paused or other.mixed or other.fed >= len(content):
                continue
            if not other.request.shares or content.owner != tokens.owner:
                continue
            shared = shared_opening(content.content, tokens.content)
            if shared > max(known, other.fed) + _WORTH_WAITING:
                return other, shared
        return None, 0

    def _follow(self, sequence: Sequence, leader: Sequence, shared: int) -> None:
        """Let a stream wait for another's rows, unless these are there by now or that one has ended."""
        sequence.follows = leader
        self._followers.setdefault(leader, []).append((sequence, shared))
        self._lead(leader)

    def _lead(self, leader: Sequence) -> None:
        """Fill the regions of those that wait for a stream's rows, once these are there or it has ended."""
        ended = self.regions.region_of(leader) is None
        for follower, shared in self._followers.pop(leader, ()):
            if follower.follows is not leader:  # it has ended itself
                continue
            if not ended and leader.fed < shared:
                self._followers.setdefault(leader, []).append((follower, shared))
                continue
            follower.follows = None
            if ended:
                opening = self._find(follower, opening_of(follower, -1))
            else:
                opening = _Opening(shared, session=leader)
            self._hold(opening)
            self._fill(follower, opening)

    def _bring(self, sequence: Sequence, saved: SavedRows) -> None:
        sequence.moves += 1
        self._fetching[sequence] = saved

        def fetched(there: bool) -> None:
            if self._fetching.pop(sequence, None) is not saved:  # the device was lost meanwhile
                return
            positions = saved.positions if there else 0

            def arrived(moved: bool) -> None:
                sequence.moves -= 1
                own, sequence.saved = sequence.saved is saved, None
                self._begin(sequence, positions if moved else 0, own=own and moved)
                sequence.mixed = sequence.fed > 0 and saved.origin != self.origin
                saved.close()

            pages = tuple(sequence.pages)
            self.moves.append(Move(sequence, pages, saved.layers, 0, positions, inward=True, finish=arrived))

        saved.fetch(fetched)

    def _begin(self, sequence: Sequence, positions: int, *, own: bool = False) -> None:
        """Let a stream go on from so many positions. own: it was fed them itself, or had them before."""
        sequence.fed, sequence.mixed = positions, False
        if not (sequence.generated or own):
            sequence.cached = positions
            shares = sequence.request.shares  # else all of it would have to be fed in any case
            sequence.refed = self._lost(self._tokens[sequence], positions) if shares else 0

    def _is_banked(self, tokens: Packed) -> bool:
        """Whether the bank has the rows of all these tokens, which then counts as their last use."""
        found = self.bank.find(self._model, self.origin, tokens, minimum=len(tokens))
        if found is None:
            return False
        self.bank.touch(found[0])
        return True

    def _use(self, region: int) -> int:
        """Note that a region is used now, and return it."""
        self.used[region] = time.monotonic()
        return region

    def _unsaved(self) -> list[Claim]:
        """Return the claims that `next_to_save` has not returned, the least recently used first."""
        claims = self.regions.claims()
        self._saved &= set(claims)
        return [claim for claim in claims if claim not in self._saved and self._is_parked(claim)]

    def _is_parked(self, claim: Claim) -> bool:
        """Whether a claim has rows."""
        return self.regions.region_of(claim) is not None and len(self.regions.packed_of(claim)) > 0

    def _forget(self, claim: Claim) -> None:
        self.regions.release(self.regions.leave(claim))
