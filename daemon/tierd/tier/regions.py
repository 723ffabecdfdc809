"""Which region is whose: K/V rows on a device, one stream's to a region. It knows no device.

A region is free, or live (a session writes to it), or parked (its session has ended and its rows stay), or
leaving (nobody has it, but somebody still copies its rows out or writes to it). A parked one is named by a
claim, a number that is never used twice in a process: whoever comes back with it gets its rows, or learns
that they are gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Generic, NewType, Protocol, TypeVar

from tierd.kv.openings import (
    TOKEN_BYTES,
    Packed,
    Tokens,
    longest_opening,
    owner_of,
    pack,
    shared_opening,
    unpack,
)

Claim = NewType("Claim", int)

_numbers = itertools.count(1)


class Session(Hashable, Protocol):
    """Who owns a live region. `tokens[:fed]` have their K/V in it."""

    @property
    def tokens(self) -> list[int]:
        """All of its tokens, fed or not."""

    @property
    def fed(self) -> int:
        """How many of them, from the first one on, were fed."""

    @property
    def owner(self) -> str:
        """Whose they are; see `openings.Packed`."""


_Session = TypeVar("_Session", bound=Session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Generic[_Session]):
    """A conversation that begins as a prompt does: parked (`claim`) or live (`session`), the other is None.

    region: where its rows are. positions: how many leading tokens are the same.
    """

    claim: Claim | None = None
    session: _Session | None = None
    region: int
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView(Generic[_Session]):
    """What a region is now, to be shown. state: "free", "live", "parked" or "leaving".

    positions: with valid rows. pins: of a parked one.
    """

    region: int
    state: str
    session: _Session | None = None
    claim: Claim | None = None
    positions: int = 0
    pins: int = 0


@dataclass(slots=True)
class _Parked:
    """tokens: packed; those whose K/V is valid; none where it goes with its last pin. owner: theirs."""

    region: int
    tokens: bytes
    owner: str
    pins: int = 0


class Regions(Generic[_Session]):
    """Regions 0 to count - 1. Always free + live + parked + leaving = count.

    counts: how many claims were "parked" and "adopted", have "died" otherwise, and how often a conversation
    was "forked", ever; what there was none of is not there. It is replaced, never changed.
    """

    __slots__ = ("_free", "_leaving", "_live", "_parked", "count", "counts")

    def __init__(self, count: int) -> None:
        self.count = count
        self.counts: Mapping[str, int] = {}
        self._free = list(range(count - 1, -1, -1))  # the lowest on top
        self._live: dict[_Session, int] = {}
        self._parked: dict[Claim, _Parked] = {}  # in order of last use, the oldest first
        self._leaving: set[int] = set()

    @property
    def free(self) -> int:
        """Regions that hold nothing."""
        return len(self._free)

    @property
    def live(self) -> int:
        """Regions that a session owns."""
        return len(self._live)

    @property
    def parked(self) -> int:
        """Regions that a claim names."""
        return len(self._parked)

    @property
    def leaving(self) -> int:
        """Regions that nobody owns, and that are not free yet."""
        return len(self._leaving)

    def open(self, session: _Session) -> int:
        """Give a session a free region. ValueError when none is free or it has one."""
        self._refuse_second(session)
        if not self._free:
            raise ValueError(f"no region is free: {self.live} live, {self.parked} parked of {self.count}")
        self._live[session] = region = self._free.pop()
        return region

    def park(self, session: _Session, tokens: Ordered[int]) -> Claim | None:
        """Take a session's region back and keep its rows under a new claim.

        tokens: those whose K/V is valid, from position 0 on. Without any the region is free, and there is no
        claim.
        """
        region = self._end(session)
        if not tokens:
            self._free.append(region)
            return None
        claim = Claim(next(_numbers))
        self._note("parked")
        self._parked[claim] = _Parked(region, pack(tokens), session.owner)
        return claim

    def adopt(self, session: _Session, claim: Claim, positions: int) -> int | None:
        """Give a session the region that a claim names, to go on after `positions` of its rows.

        The claim is spent, and its pins with it. None when it is stale: spent before, or its region taken.
        ValueError for more positions than it has, and for a session that has a region.
        """
        self._refuse_second(session)
        parked = self._parked.get(claim)
        if parked is None:
            return None
        have = len(parked.tokens) // TOKEN_BYTES
        if not 0 <= positions <= have:
            raise ValueError(f"cannot adopt {positions} positions of claim {claim}: it has {have}")
        del self._parked[claim]
        self._note("adopted")
        self._live[session] = parked.region
        return parked.region

    def fork(self, owner: _Session | Claim) -> int:
        """Return the region of a session or of a claim, whose rows are about to be copied to another one.

        ValueError when it has none.
        """
        region = self.region_of(owner)
        if region is None:
            raise ValueError("nothing to copy: whose rows these were has no region")
        self._note("forked")
        return region

    def lose(self) -> None:
        """Free all regions: what was in them is gone, and all claims die."""
        self._note("died", len(self._parked))
        self._free = list(range(self.count - 1, -1, -1))
        self._live.clear()
        self._parked.clear()
        self._leaving.clear()

    def find(self, tokens: Tokens, minimum: int = 1) -> Match[_Session] | None:
        """Return the parked or live conversation with the longest opening of these tokens, `minimum` or more.

        Pure. It is of the same owner. Of equals a parked one wins, the one with the fewest tokens beyond;
        then the one used last.
        """
        packed, owner = pack(tokens), owner_of(tokens)
        match: Match[_Session] | None = None
        most = minimum - 1
        parked = (
            (claim, held.tokens) for claim, held in reversed(self._parked.items()) if held.owner == owner
        )
        found = longest_opening(packed, parked, minimum)
        if found is not None:
            claim, most = found
            match = Match(claim=claim, region=self._parked[claim].region, positions=most)
        for session, region in self._live.items():
            fed = min(session.fed, len(tokens))
            if session.owner == owner and fed > most and packed.startswith(pack(session.tokens[: most + 1])):
                most = shared_opening(pack(session.tokens[:fed]), packed)
                match = Match(session=session, region=region, positions=most)
        return match

    def oldest(self) -> Claim | None:
        """Return the claim without a pin whose last use is longest ago, None when there is none."""
        return next((claim for claim, parked in self._parked.items() if not parked.pins), None)

    def take(self, claim: Claim, session: _Session) -> int:
        """Give a session the region of a parked conversation, whose claim dies here.

        ValueError for a pinned or a stale one, and for a session that has a region.
        """
        self._refuse_second(session)
        self._live[session] = region = self._evict(claim)
        return region

    def leave(self, claim: Claim) -> int:
        """Let a claim die whose rows are being copied out: its region is nobody's until it is released.

        ValueError for a pinned or a stale one.
        """
        region = self._evict(claim)
        self._leaving.add(region)
        return region

    def drop(self, claim: Claim) -> None:
        """Keep nothing of a claim: its region is free now or, where it has pins, with the last of them.

        Nothing is found there meanwhile. ValueError for a stale one.
        """
        parked = self._named(claim)
        if parked.pins:
            parked.tokens = b""
        else:
            self._free.append(self._evict(claim))

    def withdraw(self, session: _Session) -> int:
        """Take a session's region back and keep nothing, but let nobody have it until it is released.

        For one that a step in flight still writes to. ValueError for a session that has none.
        """
        region = self._end(session)
        self._leaving.add(region)
        return region

    def release(self, region: int) -> None:
        """Free a region that is leaving. ValueError for any other."""
        if region not in self._leaving:
            raise ValueError(f"cannot release region {region}: it is not leaving")
        self._leaving.remove(region)
        self._free.append(region)

    def pin(self, claim: Claim) -> None:
        """Keep a claim's region from being taken till it is unpinned as often. ValueError for a stale one."""
        self._named(claim).pins += 1

    def unpin(self, claim: Claim) -> None:
        """Take a pin off; nothing happens to a stale claim. ValueError for one without a pin."""
        parked = self._parked.get(claim)
        if parked is None:
            return
        if not parked.pins:
            raise ValueError(f"claim {claim} has no pin")
        parked.pins -= 1
        if not (parked.pins or parked.tokens):
            self._free.append(self._evict(claim))

    def touch(self, claim: Claim) -> None:
        """Count this as the claim's last use. ValueError for a stale one."""
        parked = self._named(claim)
        del self._parked[claim]
        self._parked[claim] = parked

    def region_of(self, owner: _Session | Claim) -> int | None:
        """Return the region of a session or of a claim, None when it has none."""
        if isinstance(owner, int):
            parked = self._parked.get(owner)
            return None if parked is None else parked.region
        return self._live.get(owner)

    def tokens_of(self, claim: Claim) -> list[int]:
        """Return the tokens whose rows a claim names. ValueError for a stale one."""
        return unpack(self._named(claim).tokens)

    def packed_of(self, claim: Claim) -> Packed:
        """Return these tokens packed. ValueError for a stale one."""
        parked = self._named(claim)
        return Packed(parked.tokens, parked.owner)

    def claims(self) -> list[Claim]:
        """Return all claims that are not stale, the least recently used first."""
        return list(self._parked)

    def __iter__(self) -> Iterator[RegionView[_Session]]:
        """Go through all regions in order, as they are now."""
        views: dict[int, RegionView[_Session]] = {
            region: RegionView(region=region, state="leaving") for region in self._leaving
        }
        for session, region in self._live.items():
            views[region] = RegionView(region=region, state="live", session=session, positions=session.fed)
        for claim, parked in self._parked.items():
            views[parked.region] = RegionView(
                region=parked.region,
                state="parked",
                claim=claim,
                positions=len(parked.tokens) // TOKEN_BYTES,
                pins=parked.pins,
            )
        return (views.get(region) or RegionView(region=region, state="free") for region in range(self.count))

    def _note(self, event: str, times: int = 1) -> None:
        if times:
            self.counts = {**self.counts, event: self.counts.get(event, 0) + times}

    def _refuse_second(self, session: _Session) -> None:
        if session in self._live:
            raise ValueError(f"the session has region {self._live[session]} already")

    def _end(self, session: _Session) -> int:
        if session not in self._live:
            raise ValueError("the session has no region")
        return self._live.pop(session)

    def _named(self, claim: Claim) -> _Parked:
        parked = self._parked.get(claim)
        if parked is None:
            raise ValueError(f"claim {claim} is stale")
        return parked

    def _evict(self, claim: Claim) -> int:
        parked = self._named(claim)
        if parked.pins:
            raise ValueError(f"claim {claim} is pinned: its region cannot be taken")
        del self._parked[claim]
        self._note("died")
        return parked.region
