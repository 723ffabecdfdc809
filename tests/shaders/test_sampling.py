"""Picking tokens on the device: exact ids, against the chain and the rule of the draw in plain numpy.

A row may be left to the host only where the device cannot know: see `_must_decide`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu import Gpu
from reference import sampling
from tierd.backends import library

Floats = npt.NDArray[np.float32]

DRAW = np.dtype(
    [
        ("inverse", "f4"),
        ("top_p", "f4"),
        ("min_p", "f4"),
        ("uniform", "f4"),
        ("top_k", "u4"),
        ("first_change", "u4"),
        ("changes", "u4"),
        ("flags", "u4"),
        ("allowed", "u8"),
        ("unused", "u8"),
    ]
)
CHANGE = np.dtype([("id", "u4"), ("bias", "f4"), ("repeat", "f4"), ("minus", "f4")])
PICKED = np.dtype(
    [
        ("id", "i4"),
        ("flags", "u4"),
        ("logit", "f4"),
        ("lse", "f4"),
        ("candidate", [("logit", "f4"), ("id", "u4")], (sampling.HEAD,)),
    ]
)
WANT_LSE, TAIL, NOBODY = 1, 1, 0xFFFFFFFF
PART, BLOCK = 4096, 64
SLACK = 2e-5  # how near to an edge the device may leave a draw to the host


@dataclass
class Rows:
    """Rows of logits, and how each is drawn. allowed: words of bits per row; used where a draw's is not 0."""

    logits: Floats
    draws: npt.NDArray[Any]
    changes: npt.NDArray[Any]
    allowed: npt.NDArray[np.uint32]

    def drawn_from(self, row: int) -> Floats:
        """Return a row's logits after what changes them."""
        draw = self.draws[row]
        mine = self.changes[draw["first_change"] :][: draw["changes"]]
        ids = mine["id"].astype(np.int64)
        logits = sampling.change(self.logits[row], ids, mine["bias"], mine["repeat"], mine["minus"])
        if draw["allowed"]:
            bits = np.unpackbits(self.allowed[row].view(np.uint8), bitorder="little")[: logits.size]
            logits[bits == 0] = -np.inf
        return logits


def _plain(logits: Floats, **fields: float) -> Rows:
    """Return rows that are all drawn alike, without changes."""
    draws = np.zeros(len(logits), DRAW)
    for name, value in {"inverse": 1.0, "top_p": 1.0, **fields}.items():
        draws[name] = value
    return Rows(logits, draws, np.zeros(0, CHANGE), np.zeros((len(logits), 1), np.uint32))


def _pick(gpu: Gpu, rows: Rows) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
    """Return what the kernels pick, and the ids for the next step. The logits stay as they are."""
    count, vocabulary = rows.logits.shape
    stride = -(-vocabulary // 32) * 32 + 32
    parts = -(-vocabulary // PART)
    padded = np.full((count, stride), np.inf, np.float32)
    padded[:, :vocabulary] = rows.logits
    logits = gpu.place(padded)
    allowed = gpu.place(rows.allowed)
    draws = rows.draws.copy()
    draws["allowed"] *= allowed.address + np.arange(count, dtype=np.uint64) * allowed.values.strides[0]
    picked, sampled = gpu.place(np.zeros(count, PICKED)), gpu.place(np.zeros(count, np.uint32))
    placed = [
        logits,
        gpu.place(draws),
        gpu.place(np.concatenate([rows.changes, np.zeros(1, CHANGE)])),
        gpu.place(np.full((count, parts, PART // BLOCK), NOBODY, np.uint32)),
        gpu.place(np.full((count, parts, 4), np.nan, np.float32)),
    ]
    push: dict[str, float] = dict(
        zip(("logits", "draws", "changes", "peaks", "masses"), (one.address for one in placed), strict=True)
    )
    push |= {"vocabulary": vocabulary, "stride": stride}
    gpu.run("candidates", "plain", (parts, count, 1), **push)
    gpu.run("draw", "plain", (1, count, 1), picked=picked.address, sampled=sampled.address, **push)
    np.testing.assert_array_equal(logits.values.view(np.uint32), padded.view(np.uint32))
    return picked.values, sampled.values


def _must_decide(drawn: sampling.Drawn | None) -> bool:
    """Whether the candidates and the sum of all weights tell the id.

    They do not where the id lies in the tail, nor, within float32's rounding, at an edge. Where a filter has
    its say on the tail they tell what is kept within bounds only.
    """
    if drawn is None:
        return True
    return drawn.place < sampling.HEAD and drawn.edge > SLACK and not drawn.kept.tail_filtered


@dataclass
class Tally:
    """Rows left to the host, and those of them whose id is in the head all the same."""

    left: int = 0
    left_in_head: int = 0


def _check(gpu: Gpu, rows: Rows) -> Tally:
    picked, sampled = _pick(gpu, rows)
    tally = Tally()
    for row, (result, draw) in enumerate(zip(picked, rows.draws, strict=True)):
        raw, logits = rows.logits[row], rows.drawn_from(row)
        best = sampling.ranked(logits)[: sampling.HEAD]
        found = result["candidate"]["id"]
        np.testing.assert_array_equal(found[: best.size], best)
        assert (found[best.size :] == NOBODY).all()
        np.testing.assert_array_equal(result["candidate"]["logit"][: best.size], logits[best])
        if draw["flags"] & WANT_LSE:
            assert result["lse"] == pytest.approx(sampling.log_sum_exp(raw), rel=2e-7, abs=2e-6)
            assert result["lse"] >= np.nanmax(raw, initial=-np.inf)  # nothing is more than certain
        chain = {name: draw[name] for name in ("inverse", "top_p", "min_p", "uniform")}
        drawn = sampling.draw(logits, top_k=int(draw["top_k"]), **chain)
        id = 0 if drawn is None else drawn.id
        if result["flags"] & TAIL:
            assert not _must_decide(drawn)
            assert result["id"] == -1
            assert sampled[row] == best[0]
            tally.left += 1
            tally.left_in_head += drawn is not None and drawn.place < sampling.HEAD
        else:
            assert (result["id"], sampled[row]) == (id, id)
            assert result["logit"] == raw[id] or np.isnan(raw[id])
    return tally


def _spread(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    return random.uniform(0.1, 5, (shape[0], 1)) * random.standard_normal(shape)


def _ties(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    return np.round(2 * random.standard_normal(shape))


def _flat(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    return np.full(shape, random.choice([0.0, -0.0, -3.5, 1e30]))


def _peaked(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    logits = 3 * random.standard_normal(shape)
    logits[np.arange(shape[0]), random.integers(0, shape[1], shape[0])] += 12
    return logits


def _ascending(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    return np.sort(3 * random.standard_normal(shape)) * random.choice([-1, 1])


def _broken(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """What no model should give: rows of NaN, of -infinity, with an infinity, with one number."""
    logits = random.choice([-100, -3, -0.0, 0.0, 1e-6, 0.5, 2, np.nan, -np.inf], shape)
    for row in range(shape[0]):
        somewhere = random.integers(shape[1])
        match row % 7:
            case 0:
                logits[row] = np.nan
            case 1:
                logits[row] = -np.inf
            case 2:
                logits[row, somewhere] = np.inf
            case 3:
                logits[row] = np.nan
                logits[row, somewhere] = random.choice([-np.inf, 1.0])
    return logits


KINDS = (_spread, _ties, _flat, _peaked, _ascending, _broken)


def _random_rows(random: np.random.Generator, logits: Floats, *, changed: bool) -> Rows:
    """Return rows with settings of every kind; `changed`: most with changes, half with a mask."""
    count, vocabulary = logits.shape
    draws = np.zeros(count, DRAW)
    temperature = random.choice([0, 0.2, 0.7, 1, 1.5, 3], count).astype(np.float32)
    draws["inverse"] = np.where(temperature > 0, np.float32(1) / np.maximum(temperature, 0.1), 0)
    draws["top_p"] = random.choice([1, 1, 0.95, 0.5, 0.999, 0], count)
    draws["min_p"] = random.choice([0, 0, 0.05, 0.3, 1e-4, 1], count)
    draws["top_k"] = random.choice([0, 0, 1, 5, 40, 64, 65, 100, 1000, 10**6], count)
    draws["uniform"] = random.random(count)
    draws["flags"] = random.choice([0, WANT_LSE], count)
    allowed = random.integers(0, 2**32, (count, -(-vocabulary // 32)), dtype=np.uint32)
    changes = np.zeros(0, CHANGE)
    if changed:
        allowed[::5] = 1 << 3
        allowed[1::5] = 0
        draws["allowed"] = random.integers(0, 2, count)
        for draw in draws:
            more = np.zeros(random.integers(0, min(vocabulary, 300) + 1), CHANGE)
            more["id"] = np.sort(random.permutation(vocabulary)[: more.size])
            more["bias"] = random.choice([0, 0, -100, 5, 1], more.size)
            more["repeat"] = random.choice([1, 1.1, 1.3, 0.5], more.size)
            more["minus"] = random.choice([0, 0.5, -1], more.size)
            draw["first_change"], draw["changes"] = changes.size, more.size
            changes = np.concatenate([changes, more])
    return Rows(logits, draws, changes, allowed)


VOCABULARIES = [
    (1, 40),
    (5, 60),
    (63, 60),
    (64, 60),
    (65, 80),
    (300, 80),
    (4096, 20),
    (4100, 40),
    (20_001, 8),
]


@pytest.mark.parametrize("changed", [False, True], ids=["plain", "changed"])
@pytest.mark.parametrize(("vocabulary", "count"), [*VOCABULARIES, (49_152, 3), (262_144, 1), (262_208, 1)])
def test_picks_what_the_rule_of_the_draw_says(gpu: Gpu, vocabulary: int, count: int, changed: bool) -> None:
    random = np.random.default_rng(vocabulary)
    for kind in KINDS:
        logits = kind(random, (count, vocabulary)).astype(np.float32)
        _check(gpu, _random_rows(random, logits, changed=changed))


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, 0),
        ({"top_k": 40}, 0),
        ({"min_p": 0.05}, 0),
        ({"top_p": 0.95, "min_p": 0.05}, 0),
        ({"top_p": 0.95}, 2),
        ({"top_k": 200}, 32),
    ],
)
def test_what_the_head_holds_is_seldom_left_to_the_host(
    gpu: Gpu, settings: dict[str, float], left: int
) -> None:
    """Logits and settings as they are in use. left: rows of 120 that the bounds leave in doubt."""
    random = np.random.default_rng(1)
    rows = _plain((3 * random.standard_normal((120, 2000))).astype(np.float32), inverse=1 / 0.7, **settings)
    rows.draws["uniform"] = random.random(120)
    tally = _check(gpu, rows)
    assert tally.left_in_head <= left
    assert tally.left <= left + 8


def test_draws_cover_the_head_and_leave_the_tail(gpu: Gpu) -> None:
    """Numbers up to the head's share pick from it in order; those beyond are left to the host."""
    row = (2 * np.random.default_rng(2).standard_normal(1000)).astype(np.float32)
    rows = _plain(np.repeat(row[None], 1000, axis=0))
    rows.draws["uniform"] = (np.arange(1000) + 0.5) / 1000
    picked, _ = _pick(gpu, rows)
    weights = np.exp(row.astype(np.float64))
    best = np.argsort(-row)[:64]
    share = weights[best].sum() / weights.sum()
    ids = picked["id"]
    head = ids[rows.draws["uniform"] < share - 1e-4]
    places = [int(np.flatnonzero(best == id)[0]) for id in head]
    assert places == sorted(places)
    assert set(places) >= set(range(20))
    assert (ids[rows.draws["uniform"] > share + 1e-4] == -1).all()
    assert 0.6 < share < 0.8


@pytest.mark.parametrize("settings", [{}, {"top_k": 40}, {"top_p": 0.9, "min_p": 0.02}])
def test_numbers_at_edges_are_left_to_the_host(gpu: Gpu, settings: dict[str, float]) -> None:
    """Numbers so near to where one id ends and the next begins that float32 cannot tell them apart."""
    row = (2 * np.random.default_rng(6).standard_normal(500)).astype(np.float32)
    chain = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
    kept = sampling.keep(row, 1.0, **chain)  # type: ignore[arg-type]
    edges = (np.cumsum(kept.weights) / kept.weights.sum())[: min(63, kept.ids.size - 1)]
    assert edges.size > 20
    rows = _plain(np.repeat(row[None], edges.size, axis=0), **settings)
    rows.draws["uniform"] = edges
    picked, _ = _pick(gpu, rows)
    assert (picked["flags"] == TAIL).all()


def test_device_and_host_map_a_number_to_the_same_token(gpu: Gpu) -> None:
    """The device gets the number rounded: it decides only what that leaves no doubt about."""
    random = np.random.default_rng(3)
    logits = (2.5 * random.standard_normal((600, 2000))).astype(np.float32)
    logits = np.round(logits, 2)
    uniform = random.random(len(logits))
    for temperature, top_k, top_p, min_p in ((0.8, 0, 1.0, 0.0), (1.0, 40, 0.9, 0.0), (1.3, 300, 0.7, 0.01)):
        inverse = np.float32(1) / np.float32(temperature)
        rows = _plain(logits, inverse=inverse, top_k=top_k, top_p=top_p, min_p=min_p)
        rows.draws["uniform"] = uniform
        picked, _ = _pick(gpu, rows)
        decided = np.flatnonzero(picked["flags"] == 0)
        assert decided.size > 50
        for row in decided:
            assert picked["id"][row] == library.sample(
                logits[row],
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                uniform=float(uniform[row]),
            )


def test_a_row_is_the_same_alone_and_among_others(gpu: Gpu) -> None:
    random = np.random.default_rng(4)
    logits = _spread(random, (7, 9000)).astype(np.float32)
    rows = _random_rows(random, logits, changed=True)
    rows.draws["flags"] = WANT_LSE
    together, _ = _pick(gpu, rows)
    for row in range(len(logits)):
        only = slice(row, row + 1)
        alone, _ = _pick(gpu, Rows(logits[only], rows.draws[only], rows.changes, rows.allowed[only]))
        assert alone.tobytes() == together[only].tobytes()


@pytest.mark.parametrize("inverse", [0.0, np.inf])
def test_no_temperature_and_next_to_none_pick_the_best(gpu: Gpu, inverse: float) -> None:
    logits = np.random.default_rng(8).standard_normal((3, 500)).astype(np.float32)
    picked, sampled = _pick(gpu, _plain(logits, inverse=inverse, uniform=0.99))
    assert picked["id"].tolist() == sampled.tolist() == logits.argmax(axis=1).tolist()


def test_a_change_is_bias_then_repeat_then_minus(gpu: Gpu) -> None:
    """Raw values stay what log-probabilities are made of."""
    logits = np.zeros((1, 100), np.float32)
    logits[0, [7, 8, 9]] = [2.0, -1.0, 3.0]
    rows = _plain(logits, inverse=0, flags=WANT_LSE)
    rows.changes = np.array([(7, 2.0, 1.6, 0.25), (8, 0.5, 2.0, -4.0), (9, 0.0, 3.0, 0.0)], dtype=CHANGE)
    rows.draws["changes"] = 3
    (picked,), _ = _pick(gpu, rows)
    assert picked["candidate"]["id"][:3].tolist() == [8, 7, 9]
    assert picked["candidate"]["logit"][:3].tolist() == [3.0, 2.25, 1.0]
    assert (picked["id"], picked["logit"]) == (8, -1.0)
    assert picked["lse"] == pytest.approx(sampling.log_sum_exp(logits[0]), abs=2e-6)


def test_changes_reach_ids_at_the_edges_of_blocks_and_parts(gpu: Gpu) -> None:
    """Ids whose blocks have nothing else that would bring them among the best."""
    ids = np.array([0, 63, 64, 4095, 4096, 8191, 8192, 9001])
    rows = _plain(np.random.default_rng(7).standard_normal((1, 9002)).astype(np.float32), top_k=8)
    rows.logits[0, np.isin(np.arange(9002) // BLOCK, ids // BLOCK)] = -50
    rows.changes = np.zeros(ids.size, CHANGE)
    rows.changes["id"], rows.changes["bias"], rows.changes["repeat"] = ids, 100 + np.arange(ids.size) * 10, 1
    rows.draws["changes"] = ids.size
    (picked,), _ = _pick(gpu, rows)
    assert picked["candidate"]["id"][: ids.size].tolist() == ids[::-1].tolist()
    assert picked["id"] == 9001
