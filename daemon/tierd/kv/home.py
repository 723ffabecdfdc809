"""Where the K/V of a model's streams lies on one executor, and what of it is kept for later ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tierd.backends.protocol import Executor
from tierd.core import Request, Sequence
from tierd.kv.bank import Bank
from tierd.kv.moves import Move
from tierd.kv.openings import Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Pages of an executor: free + used + cached = total. reserved: those not used that are promised."""

    total: int
    free: int
    used: int
    cached: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parked:
    """A conversation whose stream has ended, and whose rows lie in pages.

    used: when it was last, seconds since the epoch. stands: tells whether the rows are there still: nothing
    keeps these pages from being given to others. put_back: lets `next_to_save` return it once more, the last.
    """

    tokens: Packed
    pages: tuple[int, ...]
    used: float
    stands: Callable[[], bool]
    put_back: Callable[[], None]


class Home(Protocol):
    """Gives streams their pages. Owned by the engine thread.

    executor: whose pages they are. origin: names what computes rows there; only rows of one are shared.
    most: positions of one stream. keeps: whether rows outlive their streams.
    moves: of rows that have been asked for, the oldest first; whoever runs them takes them out when they end.
    """

    executor: Executor
    origin: str
    most: int
    keeps: bool
    moves: deque[Move]

    @property
    def bank(self) -> Bank | None:
        """Where the rows of streams wait that must do without pages for a while; None: nowhere."""

    @property
    def unsaved(self) -> int:
        """How many conversations `next_to_save` has not returned."""

    @property
    def room(self) -> Room:
        """How many pages are in what use."""

    def refusal(self, request: Request) -> str:
        """Say why a request could never be served, "" when it could. Pure."""

    def fitting(self, waiting: Iterable[Sequence]) -> int:
        """Return how many of those who wait, from the first on, could be admitted now together. Pure."""

    def lack(self, waiting: Iterable[Sequence]) -> str:
        """Say what the last of these, all of whom wait, lacks. Pure."""

    def can_admit(self, sequence: Sequence) -> bool:
        """Whether a stream can have its pages now. Pure."""

    def admit(self, sequence: Sequence) -> None:
        """Give a stream its pages: what is known of its tokens is found, or comes by moves.

        Sets `pages` and `fed`, and `cached` of one that has not generated anything.
        """

    def grow(self, sequence: Sequence, end: int) -> bool:
        """See to it that positions below `end` can have pages; False where nobody gives one up.

        A stream that was admitted has them for its tokens, and sooner or later, at least when it is alone,
        for all that it may ever have. No more than that are asked for.
        """

    def cover(self, sequence: Sequence, end: int) -> None:
        """Give positions below `end` pages. Called for streams that were admitted or have grown so far."""

    def let_go(self, sequence: Sequence, *, written: bool) -> None:
        """Take a stream's pages back and keep the rows of its fed tokens, if rows are kept.

        written: a step in flight still writes rows behind these; until `settled` others may read the pages
        but not have them. No move is at work on them.
        """

    def advanced(self, sequence: Sequence) -> None:
        """Note that more of a stream's tokens are fed."""

    def settled(self, sequence: Sequence) -> None:
        """Note that nothing writes any more to the pages of a stream that has been let go."""

    def next_to_save(self) -> Parked | None:
        """Return the conversation that ended last of those that this has not returned yet, None without."""

    def flush(self) -> int:
        """Forget the rows of streams that have ended; return how many pages are free now that were not."""
