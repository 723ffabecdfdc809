"""Whole tiny models on the device: against numpy and the host, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tiny
import tiny_variants
from backends.resident.conftest import SMALL, TOKENS, WIDE, Opener, feed
from reference.plan_forward import plan_forward
from tierd.backends.host import ThreadPool, compile_plan
from tierd.backends.resident.memory import Shape
from tierd.core import Batch, Chunk, Draw, TokenMask
from tierd.errors import (
    ExecutorError,
    UnsupportedModelError,
)
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS, WEIGHT_FORMATS

QUANTISED = [entry.name for entry in WEIGHT_FORMATS.values() if entry.elements > 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def q4(folder: Path) -> Iterator[GGUFFile]:
    with GGUFFile.open(tiny.write_llama(folder / "q4.gguf", format="Q4_1", **WIDE)) as file:
        yield file


@pytest.mark.parametrize("name", tiny_variants.NAMES)
def test_float_models_equal_numpy(name: str, folder: Path, opened: Opener) -> None:
    with GGUFFile.open(tiny_variants.write(name, folder)) as file:
        expected = plan_forward(build_plan(file), file, TOKENS[:60], dtype=np.float64)
        found = feed(opened(file), TOKENS[:60])
    np.testing.assert_allclose(found, expected, atol=0.01, rtol=0)  # K and V are f16


@pytest.mark.parametrize("format", QUANTISED)
def test_quantised_models_agree_with_the_host(
    format: str, folder: Path, opened: Opener, pool: ThreadPool
) -> None:
    path = tiny.write_llama(folder / f"{format}.gguf", format=format, **WIDE)
    with GGUFFile.open(path) as file:
        host = compile_plan(build_plan(file), file, codec=KV_CODECS["f16"], pages=1, max_rows=32, pool=pool)
        expected = host.run(Batch((Chunk(TOKENS[:20], 0, (0,), tuple(range(20))),))).copy()
        host.close()
        found = feed(opened(file), TOKENS[:20])
    # A quantised activation may fall on the other side of a rounding edge, and so may those after it: more of
    # them where the host attends in 16-bit integers.
    assert np.abs(found - expected).mean() < 0.015 * expected.std()


@pytest.mark.parametrize("codec", ["q8_0", "tq4"])
def test_lossy_codecs_agree_with_the_host(codec: str, q4: GGUFFile, opened: Opener, pool: ThreadPool) -> None:
    host = compile_plan(build_plan(q4), q4, codec=KV_CODECS[codec], pages=2, max_rows=32, pool=pool)
    expected = np.concatenate(
        [
            host.run(Batch((Chunk(TOKENS[at : at + 32], at, (0, 1), tuple(range(32))),))).copy()
            for at in range(0, 96, 32)
        ]
    )
    host.close()
    found = feed(opened(q4, codec), TOKENS[:96])
    assert np.abs(found - expected).mean() < 0.03 * expected.std()


@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
def test_bits_do_not_depend_on_chunks_regions_or_others(codec: str, q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4, codec)
    tokens = TOKENS[:80]
    whole = feed(executor, tokens)
    for step, region in ((1, 3), (7, 5), (16, 7)):
        np.testing.assert_array_equal(feed(executor, tokens, region=region, step=step), whole)
    for at in range(len(tokens)):
        chunks = [
            Chunk(TOKENS[n + at : n + at + 1 + n % 3], at * (1 + n % 3), (n,), ())
            for n in range(1, 8)
            if (at + 1) * (1 + n % 3) <= SMALL.positions
        ]
        chunks.insert(at % 8, Chunk(tokens[at : at + 1], at, (0,), (0,)))
        np.testing.assert_array_equal(executor.run(Batch(tuple(chunks)))[0], whole[at])


def test_logits_of_as_many_rows_as_there_are(q4: GGUFFile, opened: Opener) -> None:
    """The classifier's activations, two quantised rows each, have room."""
    executor = opened(q4, shape=Shape(regions=2, positions=256, max_rows=24, selected=24))
    whole = feed(executor, TOKENS[:24], step=24)
    np.testing.assert_array_equal(feed(executor, TOKENS[:24], region=1, step=5), whole)


@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
def test_other_regions_are_left_alone(codec: str, q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4, codec)
    for region in (0, 1, 2):
        feed(executor, TOKENS[:70], region=region)
    continued = feed(executor, TOKENS[70:80], region=1, start=70)
    feed(executor, TOKENS[:120], region=0)
    feed(executor, TOKENS[40:150], region=2)
    np.testing.assert_array_equal(feed(executor, TOKENS[70:80], region=1, start=70), continued)


@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
@pytest.mark.parametrize("positions", [1, 33, 64, 70])
def test_copied_rows_go_on_as_their_source(codec: str, positions: int, q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4, codec)
    feed(executor, TOKENS[:70], region=2)
    feed(executor, TOKENS[80:150], region=5)
    executor.copy_rows(2, 5, positions)
    rest = TOKENS[positions : positions + 8]
    found = feed(executor, rest, region=5, start=positions)
    np.testing.assert_array_equal(found, feed(executor, TOKENS[: positions + 8])[positions:])


def test_mapped_memory_gives_the_same_bits(q4: GGUFFile, opened: Opener, opened_mapped: Opener) -> None:
    np.testing.assert_array_equal(feed(opened_mapped(q4), TOKENS[:40]), feed(opened(q4), TOKENS[:40]))


def test_greedy_tokens_feed_the_next_step_unseen(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    expected = list(TOKENS[:5])
    for _ in range(10):
        expected.append(int(feed(executor, expected, region=1)[-1].argmax()))

    executor.submit(Batch((Chunk(TOKENS[:5], 0, (0,), (4,)),), (Draw(),)))
    tokens = []
    for position in range(5, 14):
        executor.submit(Batch((Chunk((-1,), position, (0,), (0,)),), (Draw(),)))
        tokens.append(executor.collect().drawn(0))
    tokens.append(executor.collect().drawn(0))
    assert TOKENS[:5] + tokens == expected


def test_rows_of_the_step_before_are_told_apart(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    executor.submit(Batch(tuple(Chunk(TOKENS[n : n + 3], 0, (n,), (2,)) for n in range(3)), (Draw(),) * 3))
    executor.submit(Batch(tuple(Chunk((-1 - n,), 3, (n,), (0,)) for n in (2, 0, 1)), (Draw(),) * 3))
    first = [executor.collect().drawn(n) for n in range(1)]
    second = executor.collect()
    for row, n in enumerate((2, 0, 1)):
        best = int(feed(executor, TOKENS[n : n + 3], region=7)[-1].argmax())
        if n == 0:
            assert first == [best]
        assert second.drawn(row) == int(feed(executor, [best], region=7, start=3)[-1].argmax())


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (Chunk([1], 256, [3]), "positions 256 to 256 do not lie in a region of 256"),
        (Chunk([1], -1, [3]), "positions -1"),
        (Chunk([301], 0, [3]), "token ids 301 to 301"),
        (Chunk([-1], 0, [3]), "token ids -1 to -1"),
        (Chunk([1], 0, [8]), "regions \\[8\\]"),
        (Chunk([1], 0, [3, 4]), "regions \\[3, 4\\]"),
        (Chunk([1], 0, [3], (1,)), "row 1 is wanted"),
        (Chunk([1] * 33, 0, [0]), "33 rows"),
        (Chunk([], 0, [0]), "0 rows"),
    ],
)
def test_bad_batches_are_refused(chunk: Chunk, message: str, q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    with pytest.raises(ExecutorError, match=message):
        executor.run(Batch((chunk,)))
    assert executor.run(Batch((Chunk([1], 0, [3], (0,)),))).shape == (1, 301)


def test_no_more_steps_than_it_is_deep(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    batch = Batch((Chunk([1], 0, [3], (0,)),), (Draw(),))
    for _ in range(executor.depth):
        executor.submit(batch)
    with pytest.raises(ExecutorError, match="3 steps"):
        executor.submit(batch)
    first, second = executor.collect().drawn(0), executor.collect().drawn(0)
    assert first == second is not None


def test_draws_that_do_not_fit_are_refused(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    chunk = Chunk([1], 0, [3], (0,))
    with pytest.raises(ExecutorError, match="2 draws from 1 rows"):
        executor.submit(Batch((chunk,), (Draw(), Draw())))
    with pytest.raises(ExecutorError, match="a mask of 9 words; one of 301 ids has 10"):
        executor.submit(Batch((chunk,), (Draw(allowed=TokenMask.of([1], 288)),)))
    executor.submit(Batch((chunk,), (Draw(),)))
    assert executor.collect().drawn(0) is not None


def test_f32_rows_are_declined(q4: GGUFFile, opened: Opener) -> None:
    with pytest.raises(UnsupportedModelError, match="f32 is for the CPU only"):
        opened(q4, "f32")
