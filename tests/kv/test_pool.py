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
    with pytest.raises(ValueError, match="none is promised"):
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
    with pytest.raises(ValueError, match="it is free"):
        pool.release(page)
    with pytest.raises(ValueError, match="it is free"):
        pool.retain(page)


class PoolMachine(RuleBasedStateMachine):
    """Holds one entry in `held` for each reference, so the model of a pool is a list and a number."""

    TOTAL = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(self.TOTAL)
        self.held: list[int] = []
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
        page = self.pool.take()
        assert 0 <= page < self.TOTAL
        assert page not in self.held
        self.held.append(page)
        self.promised -= 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.pool.retain(page)
        self.held.append(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.pool.release(page)
        self.held.remove(page)

    @invariant()
    def the_books_balance(self) -> None:
        pool = self.pool
        assert pool.free + pool.used == pool.total == self.TOTAL
        assert pool.used == len(set(self.held))
        assert pool.reserved == self.promised <= pool.free


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
