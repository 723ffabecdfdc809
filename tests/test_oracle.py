"""Both real models on the host backend against the oracle: DESIGN.md, section 8.

KL bounds stand in the design beside llama.cpp's own figures for the same files.

For tq4 these bounds are all that is held. Its 4 bits cannot keep the rule of greedy ids: of those whose
margin is 0.5 or more SmolLM2 picks none wrong and Gemma 5, and of those with 0.1 or more 97.3 % and 96.8 %
agree (at the level avx512vnni). With q8_0 none is wrong, and 99.1 % and 99.5 % agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference import oracle
from tierd.backends import library
from tierd.backends.host import HostExecutor, ThreadPool, compile_plan
from tierd.chat.tokenizer import build_tokenizer
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

MAX_ROWS = 256
PAGES = 48  # 3,072 positions
STEPPED = 3  # of the greedy rows, so many are fed step by step as well

# Mean KL at most, over the short and the long text.
BOUNDS = {
    (oracle.SMOLLM2, "f16"): (0.0024, 0.0013),
    (oracle.GEMMA3, "f16"): (0.0033, 0.0027),
    (oracle.SMOLLM2, "q8_0"): (0.0026, 0.0016),
    (oracle.GEMMA3, "q8_0"): (0.0036, 0.0030),
    (oracle.SMOLLM2, "tq4"): (0.017, 0.022),
    (oracle.GEMMA3, "tq4"): (0.032, 0.031),
}
MODELS = [oracle.SMOLLM2, oracle.GEMMA3]
# Those that keep the rule of greedy ids; the other one takes long.
GREEDY_CODECS = ["f16", pytest.param("q8_0", marks=pytest.mark.long)]
pytestmark = pytest.mark.timeout(600)
# At the levels that `tests/other_levels.py` forces, `make test` holds both models to the short text, and one
# to the greedy rows that are fed step by step as well.
FORCED = "HOSTKERNELS_LEVEL" in os.environ
STEPPING = [oracle.SMOLLM2, pytest.param(oracle.GEMMA3, marks=[pytest.mark.long] if FORCED else [])]
ALL_ROWS = [pytest.param("f16", marks=[pytest.mark.long] if FORCED else []), GREEDY_CODECS[1]]
LONG_TEXT = [
    pytest.param(*case, marks=[pytest.mark.long] if FORCED or case[1] != "f16" else []) for case in BOUNDS
]

# Notes what a test has measured, for `findings`; pytest's own `record_property`.
Note = Callable[[str, object], None]


@dataclass
class Model:
    """A real model, opened once, with what the oracle says of it."""

    file: GGUFFile
    expected: dict[str, Any]
    end_ids: frozenset[int]
    pool: ThreadPool

    def executor(self, codec: str) -> HostExecutor:
        return compile_plan(
            build_plan(self.file),
            self.file,
            codec=KV_CODECS[codec],
            pages=PAGES,
            max_rows=MAX_ROWS,
            pool=self.pool,
        )


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(0)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def models(
    smollm2_path: Path, gemma3_path: Path, oracle_dir: Path, pool: ThreadPool
) -> Iterator[dict[str, Model]]:
    models = {}
    for name, path in ((oracle.SMOLLM2, smollm2_path), (oracle.GEMMA3, gemma3_path)):
        file = GGUFFile.open(path)
        end_ids = build_tokenizer(file).end_ids
        models[name] = Model(file, oracle.load(oracle_dir, name), end_ids, pool)
    yield models
    for model in models.values():
        model.file.close()


@pytest.fixture(scope="module")
def f16(models: dict[str, Model]) -> Iterator[dict[str, HostExecutor]]:
    executors = {name: model.executor("f16") for name, model in models.items()}
    yield executors
    for executor in executors.values():
        executor.close()


@pytest.fixture
def executor(
    name: str, codec: str, models: dict[str, Model], f16: dict[str, HostExecutor]
) -> Iterator[HostExecutor]:
    """The executor of a test's model and codec."""
    if codec == "f16":
        yield f16[name]
        return
    executor = models[name].executor(codec)
    yield executor
    executor.close()


@pytest.fixture
def note(record_property: Note) -> Note:
    record_property("on", f"host, {library.level()}")
    return record_property


def hold_divergence(found: float, bound: float, note: Note) -> None:
    """Note a mean KL and hold it to its bound."""
    note("mean_kl", found)
    note("bound", bound)
    assert found <= bound


def hold_greedy(rows: list[dict[str, Any]], picks: list[list[int]], note: Note) -> None:
    """Note how picks fare against the oracle's ids, and hold them to the rule."""
    verdict = oracle.greedy_rule(rows, picks)
    note("wrong", verdict.wrong)
    note("share", verdict.share)
    assert verdict.holds, verdict


def _feed(executor: HostExecutor, tokens: list[int], wanted: list[int]) -> list[np.ndarray]:
    """Feed one sequence in the largest chunks and return the logits at the positions wanted."""
    rows: list[np.ndarray] = []
    for start in range(0, len(tokens), MAX_ROWS):
        part = tokens[start : start + MAX_ROWS]
        offsets = tuple(position - start for position in wanted if 0 <= position - start < len(part))
        rows.extend(executor.run(Batch((Chunk(part, start, range(PAGES), offsets),))).copy())
    return rows


def _mean_kl(executor: HostExecutor, text: dict[str, Any]) -> float:
    top20 = text["top20"]
    return oracle.mean_kl(top20, _feed(executor, text["tokens"], oracle.positions(top20)))


@pytest.fixture(scope="module")
def kept() -> dict[tuple[str, str, int], list[np.ndarray]]:
    """Logits of greedy rows, by model, codec and row: what two tests look at is computed once."""
    return {}


@pytest.fixture
def prefilled(
    name: str,
    codec: str,
    models: dict[str, Model],
    executor: HostExecutor,
    kept: dict[tuple[str, str, int], list[np.ndarray]],
) -> Callable[[int], list[np.ndarray]]:
    """Return the logits of a greedy row, teacher-forced as one prefill."""

    def feed(number: int) -> list[np.ndarray]:
        key = (name, codec, number)
        if key in kept:
            return kept[key]
        logits = _feed(executor, *oracle.greedy_feed(models[name].expected["greedy"][number]))
        if number < STEPPED:
            kept[key] = logits
        return logits

    return feed


@pytest.mark.parametrize(("name", "codec"), list(BOUNDS))
def test_divergence(
    name: str, codec: str, models: dict[str, Model], executor: HostExecutor, note: Note
) -> None:
    found = _mean_kl(executor, models[name].expected["float32"])
    hold_divergence(found, BOUNDS[name, codec][0], note)


@pytest.mark.parametrize(("name", "codec"), LONG_TEXT)
def test_divergence_over_a_long_text(
    name: str, codec: str, models: dict[str, Model], executor: HostExecutor, note: Note
) -> None:
    found = _mean_kl(executor, models[name].expected["float32_long"])
    hold_divergence(found, BOUNDS[name, codec][1], note)


@pytest.mark.parametrize("codec", ALL_ROWS)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_ids(
    name: str, models: dict[str, Model], prefilled: Callable[[int], list[np.ndarray]], note: Note
) -> None:
    rows = models[name].expected["greedy"]
    picks = [oracle.greedy_picks(prefilled(number), models[name].end_ids) for number in range(len(rows))]
    hold_greedy(rows, picks, note)


@pytest.mark.parametrize("codec", GREEDY_CODECS)
@pytest.mark.parametrize("name", STEPPING)
def test_greedy_ids_step_by_step(
    name: str,
    models: dict[str, Model],
    executor: HostExecutor,
    prefilled: Callable[[int], list[np.ndarray]],
    note: Note,
) -> None:
    """Three rows as three streams, one token a step, and the same bits as one prefill each."""
    rows = models[name].expected["greedy"][:STEPPED]
    feeds = [oracle.greedy_feed(row) for row in rows]
    stepped: list[list[np.ndarray]] = [[] for _ in rows]
    for position in range(max(len(tokens) for tokens, _ in feeds)):
        live = [number for number, (tokens, _) in enumerate(feeds) if position < len(tokens)]
        wanted = [number for number in live if position in feeds[number][1]]
        chunks = tuple(
            Chunk(feeds[n][0][position : position + 1], position, [2 * n, 2 * n + 1], (0,) * (n in wanted))
            for n in live
        )
        for number, logits in zip(wanted, executor.run(Batch(chunks)), strict=True):
            stepped[number].append(logits.copy())
    for number in range(len(rows)):
        np.testing.assert_array_equal(stepped[number], prefilled(number))
    picks = [oracle.greedy_picks(logits, models[name].end_ids) for logits in stepped]
    hold_greedy(rows, picks, note)


@pytest.mark.parametrize("name", STEPPING)
def test_bits_do_not_depend_on_chunks_or_others(
    name: str, models: dict[str, Model], f16: dict[str, HostExecutor]
) -> None:
    """The real models: whole, in chunks of 1, 7 and 64, and among seven others.

    Single rows begin at position 40, behind those that are there, and pass the edge of a page.
    """
    tokens = models[name].expected["float32"]["tokens"][:65]
    whole = _feed(f16[name], tokens, [64])[0]
    for size, first in ((1, 40), (7, 0), (64, 0)):
        for others in (0, 7):
            for start in range(first, len(tokens), size):
                part = tokens[start : start + size]
                chunks = [
                    Chunk(tokens[start + n : start + n + 1], (start - first) // size, [2 + 2 * n, 3 + 2 * n])
                    for n in range(others)
                    if start + n < len(tokens)
                ]
                chunks.insert(len(chunks) // 2, Chunk(part, start, [0, 1], (len(part) - 1,)))
                logits = f16[name].run(Batch(tuple(chunks)))[0]
            np.testing.assert_array_equal(logits, whole, f"chunks of {size} among {others}")
