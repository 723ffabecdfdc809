from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tierd.kv.openings import longest_opening, pack, shared_opening, unpack

TOKENS = st.lists(st.integers(0, 1), max_size=6)


def by_hand(a: list[int], b: list[int]) -> int:
    """The longest length at which both begin alike."""
    return max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])


@given(TOKENS, TOKENS)
def test_what_two_conversations_share(a: list[int], b: list[int]) -> None:
    assert shared_opening(pack(a), pack(b)) == by_hand(a, b)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_packed_tokens_come_back(tokens: list[int]) -> None:
    assert unpack(pack(tokens)) == tokens


@given(TOKENS, st.lists(TOKENS, max_size=6), st.integers(1, 4))
def test_the_longest_wins_then_the_one_with_least_beyond_then_the_first(
    tokens: list[int], held: list[list[int]], minimum: int
) -> None:
    ranked = sorted((-by_hand(tokens, content), len(content), index) for index, content in enumerate(held))
    expected = (ranked[0][2], -ranked[0][0]) if ranked and -ranked[0][0] >= minimum else None
    packed = [(index, pack(content)) for index, content in enumerate(held)]
    assert longest_opening(pack(tokens), packed, minimum) == expected


def test_thousands_that_begin_otherwise_cost_no_time() -> None:
    held = [(index, pack([7, 8, 9, index] * 500)) for index in range(4000)]
    tokens = pack([7, 8, 9, 4000] * 500)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert longest_opening(tokens, held) == (0, 3)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.004  # about a quarter of it on an idle machine
