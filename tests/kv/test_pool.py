from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tierd.kv.pool import PagePool


def test_a_new_pool_is_free() -> None:
    pool = PagePool(3)
    assert (pool.total, pool.free, pool.used, pool.reserved) == (3, 3, 0, 0)


def test_reserved_pages_stay_free_until_they_are_taken() -> None:
    pool = PagePool(3)
    pool.reserve(2)
    assert (pool.free, pool.used, pool.reserved) == (3, 0, 2)
    assert pool.can_reserve(1)
    assert not pool.can_reserve(2)
    pages = [pool.take(), pool.take()]
    assert pages == [0, 1]
    assert (pool.free, pool.used, pool.reserved) == (1, 2, 0)


def test_a_page_is_freed_with_its_last_reference_and_taken_again_first() -> None:
    pool = PagePool(3)
    pool.reserve(3)
    pool.take()
    page = pool.take()
    pool.retain(page)
    pool.release(page)
    assert pool.used == 2
    pool.release(page)
    assert pool.used == 1
    assert pool.take() == page


def test_what_was_not_promised_cannot_be_had() -> None:
    pool = PagePool(2)
    with pytest.raises(ValueError, match="cannot take a page: 0 promised, 2 free"):
        pool.take()
    with pytest.raises(ValueError, match="cannot reserve 3 pages"):
        pool.reserve(3)
    with pytest.raises(ValueError, match="cannot reserve -1 pages"):
        pool.reserve(-1)
    pool.reserve(1)
    for count in (-1, 2):
        with pytest.raises(ValueError, match="cannot give back"):
            pool.unreserve(count)
    page = pool.take()
    pool.release(page)
    with pytest.raises(ValueError, match="it has no reference"):
        pool.release(page)
    with pytest.raises(ValueError, match="it is free"):
        pool.retain(page)


def pool_with_cached(count: int, total: int = 4) -> PagePool:
    """Return a pool whose pages 0 to count - 1 are cached, page 0 for longest."""
    pool = PagePool(total)
    pool.reserve(count)
    for page in [pool.take() for _ in range(count)]:
        pool.keep(page)
        pool.release(page)
    return pool


def test_a_kept_page_is_cached_when_nobody_uses_it() -> None:
    pool = pool_with_cached(3)
    assert (pool.free, pool.used, pool.cached, pool.available) == (1, 0, 3, 4)
    pool.retain(1)
    assert (pool.free, pool.used, pool.cached, pool.references(1)) == (1, 1, 2, 1)
    pool.release(1)
    assert (pool.free, pool.used, pool.cached) == (1, 0, 3)


def test_the_oldest_is_whose_last_use_is_longest_ago() -> None:
    pool = pool_with_cached(3)
    assert pool.oldest == 0
    pool.retain(0)
    assert pool.oldest == 1
    pool.touch(1)
    assert pool.oldest == 2
    pool.release(0)
    pool.touch(3)  # free: nothing to touch
    order = []
    while pool.cached:
        order.append(pool.oldest)
        pool.discard(order[-1])
    assert order == [2, 1, 0]
    with pytest.raises(ValueError, match="no page is cached"):
        pool.oldest  # noqa: B018


def test_a_page_kept_no_longer_is_freed_when_nobody_uses_it() -> None:
    pool = pool_with_cached(2)
    pool.retain(0)
    pool.discard(0)
    pool.discard(1)
    assert (pool.free, pool.used, pool.cached) == (3, 1, 0)
    pool.release(0)
    assert pool.free == 4
    with pytest.raises(ValueError, match="cannot discard page 0"):
        pool.discard(0)
    with pytest.raises(ValueError, match="cannot keep page 0"):
        pool.keep(0)


def test_cached_pages_back_promises() -> None:
    pool = pool_with_cached(3)
    pool.reserve(4)
    with pytest.raises(ValueError, match="cannot retain page 0: it is promised"):
        pool.retain(0)
    taken = [pool.take()]
    with pytest.raises(ValueError, match="cannot take a page: 3 promised, 0 free"):
        pool.take()
    while pool.cached:
        pool.discard(pool.oldest)
        taken.append(pool.take())
    assert sorted(taken) == [0, 1, 2, 3]


class PoolMachine(RuleBasedStateMachine):
    """Holds one entry in `held` for each reference, so the model of a pool is two lists, a set, a number."""

    TOTAL = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(self.TOTAL)
        self.held: list[int] = []
        self.kept: set[int] = set()
        self.cached: list[int] = []
        self.promised = 0

    @rule(count=st.integers(0, TOTAL + 1))
    def reserve(self, count: int) -> None:
        possible = count + self.promised + len(set(self.held)) <= self.TOTAL
        assert self.pool.can_reserve(count) == possible
        if possible:
            self.pool.reserve(count)
            self.promised += count
        else:
            with pytest.raises(ValueError, match="cannot reserve"):
                self.pool.reserve(count)

    @precondition(lambda self: self.promised)
    @rule(data=st.data())
    def unreserve(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.promised))
        self.pool.unreserve(count)
        self.promised -= count

    @precondition(lambda self: self.promised)
    @rule()
    def take(self) -> None:
        if len(set(self.held)) + len(self.cached) == self.TOTAL:
            oldest = self.cached.pop(0)
            assert self.pool.oldest == oldest
            self.pool.discard(oldest)
            self.kept.remove(oldest)
        page = self.pool.take()
        assert 0 <= page < self.TOTAL
        assert page not in [*self.held, *self.cached]
        self.held.append(page)
        self.promised -= 1

    @precondition(lambda self: self.held or self.cached)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from([*self.held, *self.cached]))
        if page in self.cached:
            if not self.TOTAL - len(set(self.held)) - self.promised:
                with pytest.raises(ValueError, match="it is promised"):
                    self.pool.retain(page)
                return
            self.cached.remove(page)
        self.pool.retain(page)
        self.held.append(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.pool.release(page)
        self.held.remove(page)
        if page in self.kept and page not in self.held:
            self.cached.append(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.pool.keep(page)
        self.kept.add(page)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.discard(page)
        self.kept.remove(page)
        if page in self.cached:
            self.cached.remove(page)

    @rule()
    def discard_all(self) -> None:
        assert self.pool.discard_all() == len(self.cached)
        self.cached.clear()
        self.kept.clear()

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.cached))
        self.pool.touch(page)
        self.cached.remove(page)
        self.cached.append(page)

    @invariant()
    def the_books_balance(self) -> None:
        pool = self.pool
        assert pool.free + pool.used + pool.cached == pool.total == self.TOTAL
        assert pool.used == len(set(self.held))
        assert pool.cached == len(self.cached)
        assert pool.reserved == self.promised <= pool.free + pool.cached
        assert all(pool.references(page) == self.held.count(page) for page in range(self.TOTAL))
        if self.cached:
            assert pool.oldest == self.cached[0]


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None, derandomize=True)
