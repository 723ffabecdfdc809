"""The prefix cache over a pool. In the place of every row lies the history that its K/V comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierd.kv import prefix
from tierd.kv.openings import pack
from tierd.kv.pool import PagePool
from tierd.kv.prefix import Match, PrefixCache

PAGE = 4


class Memory:
    """A pool, its cache, and for each row of each page all tokens up to its own."""

    def __init__(self, pages: int = 64, *, enabled: bool = True) -> None:
        self.pool = PagePool(pages)
        self.cache = PrefixCache(self.pool, PAGE, enabled=enabled)
        self.rows: list[list[tuple[int, ...]]] = [[] for _ in range(pages)]

    def hold(self, tokens: Sequence[int]) -> list[int]:
        """Feed tokens into pages of their own."""
        count = -(-len(tokens) // PAGE)
        self.pool.reserve(count)
        pages = []
        for at in range(0, len(tokens), PAGE):
            if not self.pool.free:
                self.cache.evict()
            pages.append(self.pool.take())
            ends = range(at + 1, min(at + PAGE, len(tokens)) + 1)
            self.rows[pages[-1]] = [tuple(tokens[:end]) for end in ends]
        return pages

    def serve(self, tokens: Sequence[int]) -> None:
        """Feed tokens and donate them."""
        self.cache.donate(tokens, self.hold(tokens))

    def match(self, prompt: Sequence[int]) -> Match:
        """Return the match of a prompt; its pages hold what they should."""
        match = self.cache.match(prompt)
        found = [row for page in match.pages for row in self.rows[page]]
        rest = match.positions - len(found)
        assert (match.source is None) == (rest == 0)
        if match.source is not None:
            assert len(self.rows[match.source]) >= rest
            found += self.rows[match.source][:rest]
        assert found == [tuple(prompt[: position + 1]) for position in range(match.positions)]
        assert match.positions < max(1, len(prompt))
        return match

    def rests(self) -> bool:
        return self.pool.used == 0 and len(self.cache) == self.pool.cached


def formula(prompt: Sequence[int], fed: Sequence[Sequence[int]]) -> int:
    """The longest common token prefix with what was fed, but one token at least is left to feed."""
    common = [sum(accumulate((a == b for a, b in zip(prompt, tokens, strict=False)), min)) for tokens in fed]
    return min(max(common, default=0), len(prompt) - 1)


HISTORY = list(range(100, 110))  # two pages and a half


@pytest.mark.parametrize(
    ("prompt", "whole", "positions"),
    [
        ([*HISTORY, 1, 2], 2, 10),
        (HISTORY, 2, 9),
        (HISTORY[:9], 2, 8),
        (HISTORY[:8], 1, 7),
        (HISTORY[:5], 1, 4),
        ([*HISTORY[:6], 1, 2, 3], 1, 6),
        ([*HISTORY[:3], 1], 0, 3),
        ([1, *HISTORY], 0, 0),
        (HISTORY[:1], 0, 0),
    ],
)
def test_whole_pages_are_shared_and_part_of_one_is_copied(
    prompt: list[int], whole: int, positions: int
) -> None:
    memory = Memory()
    assert memory.match(prompt) == Match()
    memory.serve(HISTORY)
    match = memory.match(prompt)
    assert (len(match.pages), match.positions) == (whole, positions)
    assert memory.match(prompt) == match
    assert (memory.pool.cached, memory.pool.used) == (3, 0)


def test_the_best_of_many_pages_that_begin_alike() -> None:
    memory = Memory()
    stem = [7, 7, 7, 7]
    tails = [[1, 2, 3, 4], [1, 2, 3], [1, 2, 9, 9], [1], [5, 6], [300, 1], [70000, 2, 3, 4]]
    for tail in tails:
        memory.serve(stem + tail)
    for tail in [*tails, [1, 2], [1, 2, 3, 9], [1, 2, 8], [5], [300, 2], [70000, 2, 4], [6], [0]]:
        prompt = [*stem, *tail, 999]
        assert memory.match(prompt).positions == formula(prompt, [stem + tail for tail in tails])


def test_what_is_there_already_is_not_kept_twice() -> None:
    memory = Memory()
    for _ in range(3):
        memory.serve(HISTORY)
        assert (memory.pool.cached, len(memory.cache)) == (3, 3)
    memory.serve(HISTORY[:9])
    memory.serve(HISTORY[:3])
    assert memory.pool.cached == 3
    memory.serve([*HISTORY, 1])  # goes on in the last page, which is thereby of no more use
    assert memory.pool.cached == 3
    memory.serve([*HISTORY, 1, 2, 3])
    assert memory.pool.cached == 4
    assert memory.match([*HISTORY, 1, 2, 3, 4]).positions == 13
    memory.serve([*HISTORY, 5])  # branches off inside it
    assert memory.pool.cached == 5


def test_pages_beyond_the_valid_tokens_are_freed() -> None:
    memory = Memory()
    memory.cache.donate(HISTORY[:5], memory.hold(HISTORY))
    assert (memory.pool.cached, memory.pool.free) == (2, 62)
    assert memory.match(HISTORY).positions == 5
    memory.cache.donate([], memory.hold(HISTORY))
    assert memory.pool.cached == 2


def test_a_shared_page_is_cached_again_when_the_last_stream_lets_go() -> None:
    memory = Memory()
    memory.serve(HISTORY)
    shared = memory.match([*HISTORY, 1]).pages
    for page in shared * 2:
        memory.pool.retain(page)
    memory.cache.donate(HISTORY[:8], shared)
    assert (memory.pool.used, memory.pool.cached, len(memory.cache)) == (2, 1, 3)
    memory.cache.donate(HISTORY[:8], shared)
    assert memory.rests()


def test_the_longest_unused_end_of_a_history_goes_first() -> None:
    memory = Memory()
    first, second = [1] * 10, [2] * 10
    memory.serve(first)
    memory.serve(second)
    memory.cache.evict()
    assert (memory.match([*first, 0]).positions, memory.match([*second, 0]).positions) == (8, 10)
    memory.serve(first[:8])  # used again
    for positions in (8, 4, 0):
        memory.cache.evict()
        assert memory.match([*second, 0]).positions == positions
    assert memory.match([*first, 0]).positions == 8
    assert memory.pool.cached == 2


def test_pages_in_use_are_not_evicted() -> None:
    memory = Memory(pages=3)
    memory.serve(HISTORY)
    match = memory.match(HISTORY)
    for page in match.pages:
        memory.pool.retain(page)
    memory.cache.evict()
    with pytest.raises(ValueError, match="no page is cached"):
        memory.cache.evict()
    assert memory.match(HISTORY).pages == match.pages


def test_a_flush_frees_what_nobody_uses_and_finds_nothing_any_more() -> None:
    memory = Memory()
    memory.serve(HISTORY)
    memory.serve([1, 2, 3])
    shared = memory.match(HISTORY).pages
    for page in shared:
        memory.pool.retain(page)
    assert memory.cache.flush() == 2
    assert len(memory.cache) == 0
    assert memory.match(HISTORY) == Match()
    assert (memory.pool.used, memory.pool.cached) == (2, 0)
    memory.serve(HISTORY)
    memory.cache.donate(HISTORY[:8], shared)
    assert memory.match(HISTORY).positions == 9
    assert (memory.pool.used, memory.pool.cached) == (0, 3)
    assert memory.cache.flush() == 3
    assert memory.cache.flush() == 0
    assert memory.pool.free == memory.pool.total


def test_one_that_is_off_keeps_nothing() -> None:
    memory = Memory(enabled=False)
    memory.serve(HISTORY)
    assert memory.match(HISTORY) == Match()
    assert memory.pool.free == memory.pool.total


@pytest.mark.parametrize(
    "chain_key",
    [
        lambda before, tokens: b"always the same",
        lambda before, tokens: tokens[:1],
        lambda before, tokens: tokens,  # whatever came before
    ],
)
def test_keys_that_collide_never_give_wrong_rows(
    chain_key: Callable[[bytes, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "chain_key", chain_key)
    memory = Memory(pages=12)
    a, b, c, d = [1, 9, 9, 9], [1, 8, 8, 8], [2, 7, 7, 7], [2, 6, 6, 6]
    histories = [[*a, *c, *b, 5], [*b, *c, *a, 5], [*b, *c, *d, 5], [*c, *c, 5], [*c, *d, *c, *d]]
    for history in histories * 2:
        memory.serve(history)
        for prompt in histories:
            assert memory.match([*prompt, 0]).positions <= len(prompt)
        assert memory.rests()
    memory.cache.flush()
    memory.serve(histories[0])
    assert memory.match([*histories[0], 0]).positions >= PAGE


def test_a_key_stands_for_every_token_before_it() -> None:
    key = prefix.chain_key(b"", b"page")
    assert len({key, prefix.chain_key(key, b"page"), prefix.chain_key(b"", b"pagf"), b""}) == 4
    assert key == prefix.chain_key(b"", b"page")


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=3 * PAGE + 1)


@given(histories=st.lists(TOKENS, max_size=12), prompts=st.lists(TOKENS, min_size=1, max_size=6))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_formula_holds(histories: list[list[int]], prompts: list[list[int]]) -> None:
    """Few different tokens, so that histories share whole pages, parts of pages, and nothing."""
    memory = Memory()
    for number, history in enumerate(histories):
        memory.serve(history)
        for prompt in prompts:
            assert memory.match(prompt).positions == formula(prompt, histories[: number + 1])
    assert memory.rests()


@given(histories=st.lists(TOKENS, max_size=20), prompt=TOKENS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_little_memory_gives_less_but_nothing_wrong(histories: list[list[int]], prompt: list[int]) -> None:
    memory = Memory(pages=5)
    for number, history in enumerate(histories):
        memory.serve(history)
        assert memory.match(history).positions == len(history) - 1
        assert memory.match(prompt).positions <= formula(prompt, histories[: number + 1])
        assert memory.rests()
        assert len(memory.cache) <= memory.pool.total
    memory.cache.flush()
    assert memory.pool.free == memory.pool.total


def taken(memory: Memory) -> list[tuple[int, ...]]:
    """Take all new chains; return the tokens that each holds, as its rows have them."""
    chains: list[tuple[int, ...]] = []
    while (chain := memory.cache.take_new()) is not None:
        assert memory.cache.holds(chain)
        rows = [row for page in chain.pages for row in memory.rows[page]]
        assert chain.tokens == pack(rows[-1])
        assert rows == [rows[-1][:end] for end in range(1, len(rows) + 1)]
        chains.append(rows[-1])
    return chains


def test_each_conversation_is_taken_once_the_latest_first() -> None:
    memory = Memory()
    memory.serve([1, 2, 3, 4, 5])
    memory.serve([1, 2, 3, 4, 6, 7, 8, 9])
    memory.serve([9])
    assert taken(memory) == [(9,), (1, 2, 3, 4, 6, 7, 8, 9), (1, 2, 3, 4, 5)]
    memory.serve([1, 2, 3, 4, 5])
    memory.serve([1, 2, 3, 4])
    assert taken(memory) == []
    memory.serve([1, 2, 3, 4, 5, 6])
    memory.serve([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert taken(memory) == [(1, 2, 3, 4, 5, 6, 7, 8, 9)]


def test_what_is_left_of_a_conversation_is_taken_unless_the_whole_was() -> None:
    memory = Memory(4)
    memory.serve([1, 2, 3, 4, 5, 6])
    memory.serve([7])
    memory.cache.evict()
    assert taken(memory) == [(7,), (1, 2, 3, 4)]
    memory.serve([7, 8])
    assert taken(memory) == [(7, 8)]
    memory.cache.evict()
    assert taken(memory) == []


def test_a_chain_is_held_until_one_of_its_pages_is_forgotten() -> None:
    memory = Memory()
    memory.serve([1, 2, 3, 4, 5, 6])
    chain = memory.cache.take_new()
    assert chain is not None
    assert memory.cache.holds(chain)
    memory.cache.evict()
    assert not memory.cache.holds(chain)
    memory.serve([1, 2, 3, 4, 5, 6])
    assert not memory.cache.holds(chain)
    memory.cache.flush()
    assert taken(memory) == []
