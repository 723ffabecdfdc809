"""Picking a token: against the chain written plainly in numpy, over draws that cover [0, 1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierd.backends import library


def _philox(counter: list[int], key: list[int]) -> list[int]:
    ffi, lib = library.load()
    out = ffi.new("uint32_t[4]")
    lib.hk_philox(ffi.new("uint32_t[4]", counter), ffi.new("uint32_t[2]", key), out)
    return list(out)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    """The answers that Random123 publishes in kat_vectors."""
    assert _philox(counter, key) == expected


def test_uniform_is_uniform_and_depends_on_both() -> None:
    draws = np.array([library.uniform(seed, position) for seed in range(50) for position in range(100)])
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert np.unique(draws).size == draws.size
    counts, _ = np.histogram(draws, 10, (0.0, 1.0))
    assert np.abs(counts - 500).max() < 100
    assert library.uniform(2**64 - 1, 7) != library.uniform(2**63 - 1, 7)


def test_argmax() -> None:
    nan = np.nan
    assert library.argmax(np.float32([1, 3, 3, 2])) == 1
    assert library.argmax(np.float32([nan, -5, nan, -4])) == 3
    assert library.argmax(np.float32([nan, nan])) == 0
    assert library.argmax(np.float32([-np.inf, -np.inf])) == 0
    assert library.argmax(np.float32([-2.0])) == 0


def _reference(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Return id -> probability after the whole chain."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.lexsort((np.arange(p.size), -p))
    if top_k:
        order = order[:top_k]
    if top_p < 1.0:
        share = np.cumsum(p[order]) / p[order].sum()
        order = order[: int(np.argmax(share >= top_p)) + 1]
    order = order[p[order] >= min_p * p.max()]
    return {int(i): float(p[i] / p[order].sum()) for i in order}


CHAINS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (1.5, 1, 1.0, 0.0),
    (1.0, 0, 0.8, 0.0),
    (0.8, 40, 0.95, 0.05),
    (1.0, 0, 1.0, 0.1),
    (2.0, 1000, 0.5, 0.3),
    (1.0, 0, 0.0001, 0.0),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), CHAINS)
@pytest.mark.parametrize("size", [3, 400])
def test_draws_follow_the_chain(
    temperature: float, top_k: int, top_p: float, min_p: float, size: int
) -> None:
    logits = (3 * np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    expected = _reference(logits, temperature, top_k, top_p, min_p)
    grid = 4000
    picks = [
        library.sample(
            logits,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            uniform=(i + 0.5) / grid,
        )
        for i in range(grid)
    ]
    ids, counts = np.unique(picks, return_counts=True)
    assert set(ids.tolist()) <= set(expected)
    for token, count in zip(ids.tolist(), counts.tolist(), strict=True):
        assert abs(count / grid - expected[token]) <= 1.5 / grid
    assert sum(expected[token] for token in set(expected) - set(ids.tolist())) <= len(expected) * 1.5 / grid


@given(
    st.integers(0, 2**31),
    st.integers(1, 300),
    st.floats(0.05, 3.0),
    st.integers(0, 400),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0, exclude_max=True),
    st.booleans(),
)
def test_a_pick_is_always_one_the_chain_allows(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float, draw: float, ties: bool
) -> None:
    logits = 4 * np.random.default_rng(seed).standard_normal(size)
    logits = (np.round(logits) if ties else logits).astype(np.float32)
    # One more token than the chain keeps: sums of floats may end on either side of top_p's edge.
    pick = library.sample(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=draw
    )
    allowed = _reference(
        logits, temperature, top_k, min(1.0, top_p + 1e-5), max(0.0, min_p * (1 - 1e-5) - 1e-9)
    )
    # Tokens less likely than e^-64 of the best one cannot be drawn.
    assert pick in allowed


def test_broken_logits_fall_back_to_the_best() -> None:
    chain = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0}
    assert library.sample(np.float32([1, np.inf, 2]), **chain, uniform=0.9) == 1
    assert library.sample(np.float32([np.nan] * 3), **chain, uniform=0.9) == 0
    assert library.sample(np.float32([np.nan, 1, -np.inf]), **chain, uniform=0.99) == 1
