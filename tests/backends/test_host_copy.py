"""Rows of one page copied into another on the host: exactly those, in every store, in every codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tiny
from tierd.backends.host import PAGE_POSITIONS, HostExecutor, ThreadPool, compile_plan
from tierd.core import Batch, Chunk
from tierd.errors import ExecutorError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

PAGES = 4
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 300, 2 * PAGE_POSITIONS)]
OTHERS = [int(token) for token in np.random.default_rng(4).integers(0, 300, 2 * PAGE_POSITIONS)]
WRITERS: dict[str, Callable[..., Path]] = {"llama": tiny.write_llama, "gemma3": tiny.write_gemma3}


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(2)
    yield pool
    pool.close()


@contextmanager
def compiled(name: str, codec: str, folder: Path, pool: ThreadPool) -> Iterator[HostExecutor]:
    path = WRITERS[name](folder / f"{name}.gguf", head_size=32, kv_heads=2, heads=4)
    with GGUFFile.open(path) as file:
        executor = compile_plan(
            build_plan(file), file, codec=KV_CODECS[codec], pages=PAGES, max_rows=256, pool=pool
        )
        yield executor
        executor.close()


@pytest.fixture(
    scope="module", params=[(name, codec) for name in WRITERS for codec in KV_CODECS], ids="-".join
)
def executor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pool: ThreadPool
) -> Iterator[HostExecutor]:
    with compiled(*request.param, tmp_path_factory.mktemp("copy"), pool) as executor:
        yield executor


def feed(executor: HostExecutor, tokens: list[int], start: int, pages: list[int]) -> np.ndarray:
    """Feed tokens from position `start` on and return the logits of each."""
    return executor.run(Batch((Chunk(tokens, start, pages, tuple(range(len(tokens)))),))).copy()


@pytest.mark.parametrize("positions", [0, 1, 31, 63, 64])
def test_a_copy_is_as_good_as_the_rows(executor: HostExecutor, positions: int) -> None:
    """The last page is the target, so a copy of too much would run over the end of the memory."""
    start = PAGE_POSITIONS + positions
    rest = [*TOKENS[start:], 7]
    pages = [2, 0]
    expected = feed(executor, [*TOKENS, 7][: 2 * PAGE_POSITIONS], 0, pages)[start:]
    feed(executor, OTHERS, 0, [1, 3])
    executor.copy_rows(0, 3, positions)
    if positions < PAGE_POSITIONS:
        np.testing.assert_array_equal(feed(executor, rest[:-1], start, [2, 3]), expected)
    else:
        last = feed(executor, TOKENS[-1:], start - 1, [2, 0])
        np.testing.assert_array_equal(feed(executor, TOKENS[-1:], start - 1, [2, 3]), last)


@pytest.mark.parametrize("positions", [0, 1, 40, 63])
def test_no_other_row_is_touched(executor: HostExecutor, positions: int) -> None:
    """What lies behind the copied rows, in the source, and in every other page is the same as before."""
    feed(executor, TOKENS, 0, [2, 0])
    expected = feed(executor, OTHERS, 0, [1, 3])
    executor.copy_rows(0, 3, positions)
    # Only the copied rows are fed again; those behind them are read as they lie.
    head = OTHERS[PAGE_POSITIONS : PAGE_POSITIONS + positions]
    if head:
        feed(executor, head, PAGE_POSITIONS, [1, 3])
    again = feed(executor, OTHERS[-1:], 2 * PAGE_POSITIONS - 1, [1, 3])
    np.testing.assert_array_equal(again, expected[-1:])
    source = feed(executor, TOKENS[-1:], 2 * PAGE_POSITIONS - 1, [2, 0])
    np.testing.assert_array_equal(source, feed(executor, TOKENS, 0, [2, 0])[-1:])


@pytest.mark.parametrize(
    ("source", "target", "positions", "fault"),
    [
        (-1, 0, 1, "page id"),
        (0, PAGES, 1, "page id"),
        (1, 1, 1, "1 rows cannot be copied from page 1 to page 1"),
        (0, 1, PAGE_POSITIONS + 1, "65 rows cannot be copied"),
        (0, 1, -1, "-1 rows cannot be copied"),
    ],
)
def test_faulty_copies_are_refused(
    executor: HostExecutor, source: int, target: int, positions: int, fault: str
) -> None:
    with pytest.raises(ExecutorError, match=fault):
        executor.copy_rows(source, target, positions)


def test_a_closed_executor_copies_nothing(tmp_path: Path, pool: ThreadPool) -> None:
    with compiled("llama", "f16", tmp_path, pool) as executor:
        executor.close()
        with pytest.raises(ExecutorError, match="closed"):
            executor.copy_rows(0, 1, 1)
