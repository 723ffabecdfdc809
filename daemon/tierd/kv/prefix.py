"""The prefix cache: pages of streams that have ended, found again by the tokens whose K/V they hold.

A whole page is found by a chain hash: the key of a page is the hash of the key before it and of its
own tokens, so it names all the tokens from the first one on. Keys only point: the tokens of every
page are kept and compared, and with them the key they follow, so a collision costs a hit and never
gives wrong rows. What follows a key stands in the order of its tokens, so the page with the longest
common prefix is a neighbour of the place where the wanted tokens would stand. There the last, partly
equal page comes from; its rows must be copied, for whole pages alone are shared.

Every owner has chains of its own: they start from another root, so that no key of one is a key of another.

A cached page is never written: whoever shares it holds it whole, whoever needs a part has a copy.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tierd.kv.pool import PagePool
from tierd.kv.times import unix_time

# Bytes of a token; packed little-endian, so that a key means the same on every machine.
_TOKEN = 4
# What chains start from, before the name of their owner. It is longer than a key, so that it never is one.
_ROOT = b"the conversations of "


@dataclass(frozen=True, slots=True)
class Match:
    """What the cache holds of a prompt.

    pages: whole pages from the first position on, to be shared.
    source: the page whose first rows continue them, to be copied; None when there is none.
    positions: of the prompt, in pages and source together.
    """

    pages: tuple[int, ...] = ()
    source: int | None = None
    positions: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A page in the cache. tokens: packed. before: the key it follows. key: its own; None: partly filled.

    since: when it came, seconds since the epoch.
    """

    page: int
    tokens: bytes
    before: bytes
    key: bytes | None
    since: float


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A conversation in the cache: its pages, from the first position on."""

    entries: tuple[_Entry, ...]

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.entries[0].before.removeprefix(_ROOT).decode()

    @property
    def tokens(self) -> bytes:
        """Those of all pages, packed."""
        return b"".join(entry.tokens for entry in self.entries)

    @property
    def pages(self) -> tuple[int, ...]:
        """In order of their positions."""
        return tuple(entry.page for entry in self.entries)

    @property
    def since(self) -> float:
        """When its last page came, seconds since the epoch."""
        return self.entries[-1].since


def chain_key(before: bytes, tokens: bytes) -> bytes:
    """Return the key of a whole page with these packed tokens, after the page that `before` names."""
    return hashlib.blake2b(before + tokens, digest_size=16).digest()


def root_key(owner: str) -> bytes:
    """Return what an owner's first pages follow."""
    return _ROOT + owner.encode()


class PrefixCache:
    """Finds pages by tokens, over a pool that counts their references. It never holds more than there are.

    page_positions: positions of one page. enabled: False keeps nothing and so finds nothing.
    """

    def __init__(self, pool: PagePool, page_positions: int, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._pool = pool
        self._page_positions = page_positions
        self._page_bytes = page_positions * _TOKEN
        self._entries: dict[int, _Entry] = {}  # by page
        self._whole: dict[bytes, _Entry] = {}  # by key
        # By the key before them, in the order of their tokens; none is a prefix of another.
        self._after: dict[bytes, list[_Entry]] = {}
        # Last pages of chains that `take_new` has not returned, the latest last.
        self._new_ends: OrderedDict[_Entry, None] = OrderedDict()

    def __len__(self) -> int:
        """Pages that can be found, whether a stream holds them or not."""
        return len(self._entries)

    def match(self, prompt: Sequence[int], owner: str = "") -> Match:
        """Return the longest prefix of a prompt that an owner has, its last token left out: it must be fed.

        Pure; what it names stays only until the pool is next asked for a page.
        """
        if not self._entries:
            return Match()
        tokens = _pack(prompt[:-1])
        pages: list[int] = []
        key = root_key(owner)
        for part in self._parts(tokens):
            following = chain_key(key, part)
            entry = self._whole.get(following)
            if entry is None or entry.before != key or entry.tokens != part:
                break
            pages.append(entry.page)
            key = following
        rest = tokens[len(pages) * self._page_bytes :][: self._page_bytes]
        source, rows = self._best(key, rest)
        return Match(tuple(pages), source, len(pages) * self._page_positions + rows)

    def donate(self, tokens: Sequence[int], pages: Sequence[int], owner: str = "") -> None:
        """Take over a stream's references on its pages and keep what others of its owner may want.

        tokens: those whose K/V is valid, from position 0 on; pages may reach beyond them. What is
        cached already, in these pages or in others, is not kept twice.
        """
        kept = self._keep(tokens, pages, owner) if self.enabled else []
        for page in pages:
            self._pool.release(page)
        # The first page last, so that of a chain the end is always the oldest.
        for page in reversed(kept):
            self._pool.touch(page)

    def take_new(self) -> Chain | None:
        """Return the latest chain that has not been returned yet, in which others may go on; None without."""
        if not self._new_ends:
            return None
        entries = [self._new_ends.popitem()[0]]
        while (before := self._whole.get(entries[-1].before)) is not None:
            entries.append(before)
        return Chain(tuple(reversed(entries)))

    @property
    def new(self) -> int:
        """How many chains `take_new` has not returned."""
        return len(self._new_ends)

    def put_back(self, chain: Chain) -> None:
        """Let `take_new` return a chain once more, after all others, if nothing has become of it."""
        end = chain.entries[-1]
        if self._entries.get(end.page) is end and end.key not in self._after:
            self._put_last(end)

    def holds(self, chain: Chain) -> bool:
        """Whether a chain's pages are still what they were."""
        return all(self._entries.get(entry.page) is entry for entry in chain.entries)

    def evict(self) -> None:
        """Free the cached page whose last use is longest ago. ValueError when none is cached."""
        self._forget(self._entries[self._pool.oldest])

    def flush(self) -> int:
        """Forget everything and return how many pages are free now that were not."""
        self._entries.clear()
        self._whole.clear()
        self._after.clear()
        self._new_ends.clear()
        return self._pool.discard_all()

    def _parts(self, tokens: bytes) -> list[bytes]:
        return [tokens[at : at + self._page_bytes] for at in range(0, len(tokens), self._page_bytes)]

    def _best(self, before: bytes, tokens: bytes) -> tuple[int | None, int]:
        """Return the page after that key with the most leading rows in common with tokens, and how many."""
        siblings = self._after.get(before, [])
        at = _place(siblings, tokens)
        page, most = None, 0
        for entry in siblings[max(0, at - 1) : at + 1]:
            rows = _common(entry.tokens, tokens)
            if rows > most:
                page, most = entry.page, rows
        return page, most

    def _keep(self, tokens: Sequence[int], pages: Sequence[int], owner: str) -> list[int]:
        """Enter what is missing; return the cache's pages that hold these tokens, in order."""
        kept: list[int] = []
        key: bytes | None = root_key(owner)
        for page, part in zip(pages, self._parts(_pack(tokens)), strict=False):
            entry = self._keep_page(key, part, page) if key is not None else None
            if entry is None:
                break
            kept.append(entry.page)
            key = entry.key
        return kept

    def _keep_page(self, before: bytes, tokens: bytes, page: int) -> _Entry | None:
        """Return the entry that holds these tokens after that key: one for `page`, unless there is one.

        None when the key of other tokens is in the way.
        """
        siblings = self._after.get(before, [])
        at = _place(siblings, tokens)
        if at < len(siblings) and siblings[at].tokens.startswith(tokens):
            return siblings[at]
        key = chain_key(before, tokens) if len(tokens) == self._page_bytes else None
        if key in self._whole:
            return None
        if at and tokens.startswith(siblings[at - 1].tokens):
            at -= 1
            self._forget(siblings[at])
        entry = _Entry(page, tokens, before, key, unix_time())
        if before in self._whole:
            self._new_ends.pop(self._whole[before], None)
        self._new_ends[entry] = None
        self._after.setdefault(before, siblings).insert(at, entry)
        self._entries[page] = entry
        if key is not None:
            self._whole[key] = entry
        self._pool.keep(page)
        return entry

    def _forget(self, entry: _Entry) -> None:
        """Take a page out, and all that follows it: nothing could be found there any more."""
        gone, before = [entry], self._whole.get(entry.before)
        new = False
        while gone:
            entry = gone.pop()
            siblings = self._after[entry.before]
            del siblings[_place(siblings, entry.tokens)]
            if not siblings:
                del self._after[entry.before]
            if entry.key is not None:
                del self._whole[entry.key]
                gone += self._after.get(entry.key, ())
            new |= entry in self._new_ends
            self._new_ends.pop(entry, None)
            del self._entries[entry.page]
            self._pool.discard(entry.page)
        if new and before is not None and before.key not in self._after:
            self._put_last(before)  # what is evicted was used longest ago

    def _put_last(self, end: _Entry) -> None:
        """Note the end of a new chain as the one used longest ago."""
        self._new_ends[end] = None
        self._new_ends.move_to_end(end, last=False)


def _pack(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def _place(siblings: list[_Entry], tokens: bytes) -> int:
    """Return where tokens stand, or would stand, among pages in the order of their tokens."""
    return bisect_left(siblings, tokens, key=lambda entry: entry.tokens)


def _common(a: bytes, b: bytes) -> int:
    """Return how many leading tokens are the same."""
    length = min(len(a), len(b))
    difference = int.from_bytes(a[:length]) ^ int.from_bytes(b[:length])
    return (length - (difference.bit_length() + 7) // 8) // _TOKEN
