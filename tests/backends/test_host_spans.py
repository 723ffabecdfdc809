"""Long contexts are gathered by spans, by several threads where a row is alone: the bits are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import tiny
from tierd.backends.host import HostExecutor, ThreadPool, compile_plan
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

# Spans are of 512 positions: the end sees three; in a window, the first rows of the last chunk see one more
# than its last rows.
LENGTH, ALONE, WINDOW = 1200, 6, 650
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, 300, LENGTH)]
PAGES = [3, *range(5, 5 + LENGTH // 64)]
CHUNK = 250


def _llama(path: Path) -> Path:
    return tiny.write_llama(path, context=2048, head_size=32, kv_heads=2, heads=6)


def _windowed(path: Path) -> Path:
    return tiny.write_gemma3(path, context=2048, window=WINDOW, head_size=64, layers=6)


@contextmanager
def _compiled(path: Path, codec: str, threads: int) -> Iterator[HostExecutor]:
    pool = ThreadPool(threads)
    with GGUFFile.open(path) as file:
        executor = compile_plan(
            build_plan(file), file, codec=KV_CODECS[codec], pages=max(PAGES) + 1, max_rows=CHUNK, pool=pool
        )
        yield executor
        executor.close()
    pool.close()


def _feed(executor: HostExecutor, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Feed some tokens of the sequence; return the logits of all, but for those that are ALONE at most."""
    rows = tuple(row for row in range(stop - start) if start + row >= LENGTH - ALONE)
    return executor.run(Batch((Chunk(TOKENS[start:stop], start, PAGES, rows),))).copy()


def _prompt(executor: HostExecutor, stop: int) -> npt.NDArray[np.float32]:
    found = [_feed(executor, start, min(stop, start + CHUNK)) for start in range(0, stop, CHUNK)]
    return found[-1]


@pytest.mark.parametrize(
    ("write", "codec"), [(_llama, "f16"), (_llama, "tq4"), (_windowed, "f16"), (_windowed, "q8_0")]
)
def test_a_row_alone_is_the_row_in_its_prompt(
    write: Callable[[Path], Path], codec: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "model.gguf")
    with _compiled(path, codec, 1) as executor:
        expected = _prompt(executor, LENGTH)
    for threads in (1, 3):
        with _compiled(path, codec, threads) as executor:
            _prompt(executor, LENGTH - ALONE)
            alone = [_feed(executor, at, at + 1) for at in range(LENGTH - ALONE, LENGTH)]
            np.testing.assert_array_equal(np.concatenate(alone), expected, f"{threads} threads")


def test_more_rows_than_have_spans_of_their_own(tmp_path: Path) -> None:
    """Each of these rows has three spans of two heads; 512 are shared at most."""
    path = _llama(tmp_path / "model.gguf")
    last = Chunk(TOKENS[-1:], LENGTH - 1, PAGES, (0,))
    with _compiled(path, "f16", 2) as executor:
        expected = _prompt(executor, LENGTH)[-1]
        for logits in executor.run(Batch((last,) * 100)):
            np.testing.assert_array_equal(logits, expected)
