"""Picking a token: against the chain and the rule of the draw, written plainly in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import sampling
from tierd.backends import library
from tierd.core import ADJUSTMENT


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
    (1.0, 0, 0.0, 0.0),
    (30.0, 0, 0.3, 0.0),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), CHAINS)
@pytest.mark.parametrize("size", [3, 400, 5000])
def test_draws_follow_the_chain(
    temperature: float, top_k: int, top_p: float, min_p: float, size: int
) -> None:
    logits = (3 * np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    kept = sampling.keep(logits, 1 / temperature, top_k, top_p, min_p)
    shares = kept.weights / kept.weights.sum()
    expected = dict(zip(kept.ids.tolist(), shares.tolist(), strict=True))
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


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 200, 3000])
def test_a_number_picks_what_the_rule_of_the_draw_says(size: int, ties: bool) -> None:
    """Wherever the filters cut, in the head or beyond it. A draw at an edge may fall on either side of it."""
    random = np.random.default_rng(size)
    at_edges = 0
    for _ in range(200):
        logits = random.uniform(0.2, 5) * random.standard_normal(size)
        logits = (np.round(logits) if ties else logits).astype(np.float32)
        logits[random.random(size) < 0.1] = random.choice([np.nan, -np.inf, 1.0])
        temperature = float(random.choice([0.3, 1.0, 1.5]))
        chain = {
            "top_k": int(random.choice([0, 1, 5, 63, 64, 65, 100, 1000, 10**6])),
            "top_p": float(random.choice([0.0, 0.3, 0.9, 0.99, 1.0])),
            "min_p": float(random.choice([0.0, 1e-5, 0.01, 0.2, 1.0])),
            "uniform": random.random(),
        }
        inverse = np.float32(1) / np.float32(temperature)
        drawn = sampling.draw(logits, inverse=inverse, **chain)  # type: ignore[arg-type]
        pick = library.sample(logits, temperature=temperature, **chain)  # type: ignore[arg-type]
        if drawn is not None and drawn.edge < 1e-6:
            at_edges += 1
        else:
            assert pick == (0 if drawn is None else drawn.id)
    assert at_edges < 10


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
    least = max(0.0, min_p * (1 - 1e-5) - 1e-9)
    assert pick in sampling.keep(logits, 1 / temperature, top_k, min(1.0, top_p + 1e-5), least).ids


def test_broken_logits_fall_back_to_the_best() -> None:
    chain = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0}
    assert library.sample(np.float32([1, np.inf, 2]), **chain, uniform=0.9) == 1
    assert library.sample(np.float32([np.nan] * 3), **chain, uniform=0.9) == 0
    assert library.sample(np.float32([np.nan, 1, -np.inf]), **chain, uniform=0.99) == 1


def _draw(logits: np.ndarray, uniform: float, **chain: float) -> int:
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | chain
    return library.sample(logits.astype(np.float32), **settings, uniform=uniform)  # type: ignore[arg-type]


ALMOST_ONE = float(np.nextafter(1.0, 0.0))


def test_the_head_lies_first_along_the_draw_then_ids_in_order() -> None:
    logits = np.random.default_rng(5).standard_normal(3000)
    best = np.argsort(-logits)
    for chain, kept in (({}, 3000), ({"top_k": 20}, 20), ({"top_k": 500}, 500), ({"min_p": 0.05}, 400)):
        picks = [_draw(logits, i / 2000, **chain) for i in range(2000)]
        places = [int(np.flatnonzero(best == pick)[0]) for pick in picks]
        inside = [place for place in places if place < 64]
        assert places[: len(inside)] == inside == sorted(inside)
        assert picks[len(inside) :] == sorted(picks[len(inside) :])
        assert (len(inside) == 2000) == (kept <= 64)
    assert _draw(logits, 0.0, top_k=20) == best[0]
    assert _draw(logits, ALMOST_ONE, top_k=20) == best[19]
    assert _draw(logits, ALMOST_ONE, top_k=500) == best[64:500].max()


@pytest.mark.parametrize("size", [1, 63, 64, 65, 5000])
@pytest.mark.parametrize("keep", [1, 2, 50, 64, 4999])
def test_of_equal_tokens_the_first_are_kept(size: int, keep: int) -> None:
    """Flat logits are the worst case, too: every token falls into one bin of the histogram."""
    flat = np.full(size, -3.5)
    last = min(keep, size) - 1
    assert _draw(flat, ALMOST_ONE, top_k=keep) == last
    assert _draw(flat, ALMOST_ONE, top_p=(keep - 0.5) / size if keep < size else 1.0) == last
    assert {_draw(flat, (i + 0.5) / (last + 1), top_k=keep) for i in range(last + 1)} == set(range(last + 1))


@given(
    st.lists(
        st.sampled_from([-100.0, -3.0, -0.0, 0.0, 1e-6, 0.5, 2.0, np.nan, -np.inf]), min_size=1, max_size=300
    ),
    st.integers(1, 300),
)
def test_top_k_keeps_exactly_k_by_logit_then_id(values: list[float], top_k: int) -> None:
    logits = np.float32(values)
    usable = np.flatnonzero(np.isfinite(logits))
    order = usable[np.lexsort((usable, -logits[usable]))][:top_k]
    likely = [id for id in order.tolist() if logits[id] > logits[order[0]] - 87]
    if usable.size == 0:
        return
    assert _draw(logits, 0.0, top_k=top_k) == likely[0]
    assert _draw(logits, ALMOST_ONE, top_k=top_k) == (max(likely[64:]) if len(likely) > 64 else likely[-1])


def test_the_filters_follow_one_another() -> None:
    """top_p measures what top_k left: 0.5 / 0.8 reaches 0.6 by one token, 0.5 alone does not."""
    logits = np.log([0.2, 0.5, 0.3])
    assert {_draw(logits, u, top_p=0.6) for u in (0.0, ALMOST_ONE)} == {1, 2}
    assert {_draw(logits, u, top_k=2, top_p=0.6) for u in (0.0, ALMOST_ONE)} == {1}
    assert {_draw(logits, u, top_p=0.9, min_p=0.7) for u in (0.0, ALMOST_ONE)} == {1}


@given(st.integers(0, 2**31), st.integers(1, 300))
def test_adjustments_are_those_of_the_reference_bit_for_bit(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    logits = (5 * random.standard_normal(size)).astype(np.float32)
    by = np.zeros(random.integers(0, size + 1), ADJUSTMENT)
    by["id"] = np.sort(random.permutation(size)[: by.size])
    by["plus"] = random.choice([0, -100, 2.5, 0.1], by.size)
    by["repeat"] = random.choice([1, 1.1, 0.3, 100], by.size)
    by["minus"] = random.choice([0, 0.7, -1.3], by.size)
    expected = sampling.change(logits, by["id"].astype(np.int64), by["plus"], by["repeat"], by["minus"])
    library.adjust(logits, by)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 1000, 1023])
@pytest.mark.parametrize("kind", ["some", "all", "none", "one"])
def test_what_is_allowed_is_selected_and_nothing_else(size: int, kind: str) -> None:
    """Also where a word of the mask is all ones or zeros; bits past the vocabulary mean nothing."""
    random = np.random.default_rng(size)
    bits = np.ones(-(-size // 32) * 32, np.bool_)
    bits[:size] = {
        "some": random.random(size) < 0.5, "all": True, "none": False, "one": np.arange(size) == size - 1
    }[kind]  # fmt: skip
    logits = random.standard_normal(size).astype(np.float32)
    ids, values = library.select(logits, np.packbits(bits, bitorder="little").view(np.uint32))
    np.testing.assert_array_equal(ids, np.flatnonzero(bits[:size]))
    np.testing.assert_array_equal(values, logits[bits[:size]])


@pytest.mark.parametrize("size", [1, 15, 16, 1000, 1024, 1025, 49152])
def test_log_sum_exp(size: int) -> None:
    logits = (4 * np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    exact = logits.astype(np.float64)
    expected = exact.max() + np.log(np.exp(exact - exact.max()).sum())
    assert library.log_sum_exp(logits) == pytest.approx(expected, abs=1e-6)


def test_log_sum_exp_of_broken_logits() -> None:
    assert library.log_sum_exp(np.float32([np.nan, 1, -np.inf])) == pytest.approx(1)
    assert library.log_sum_exp(np.float32([1, np.inf])) == np.inf
    assert library.log_sum_exp(np.float32([-np.inf, np.nan])) == -np.inf
    assert library.log_sum_exp(np.float32([3e38, -3e38])) == pytest.approx(3e38)


@given(st.integers(0, 2**31), st.integers(1, 500), st.integers(0, 30), st.booleans())
def test_top_is_in_order_of_likelihood_then_ids(seed: int, size: int, count: int, ties: bool) -> None:
    logits = np.random.default_rng(seed).standard_normal(size)
    logits = (np.round(logits) if ties else logits).astype(np.float32)
    logits[np.random.default_rng(seed + 1).random(size) < 0.1] = np.nan
    ids = np.flatnonzero(~np.isnan(logits))
    assert library.top(logits, count) == ids[np.lexsort((ids, -logits[ids]))][:count].tolist()


def test_top_of_ascending_logits() -> None:
    assert library.top(np.arange(1000, dtype=np.float32), 3) == [999, 998, 997]
    assert library.top(np.full(3, -np.inf, np.float32), 2) == [0, 1]
