"""Rows out of the host's pages as bytes and back: exactly those, in every store, in every codec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tiny
from hostkernels.calls import encode
from row_moves import junk, read, same, write
from tierd.backends.host import HostExecutor, ThreadPool, compile_plan
from tierd.backends.protocol import MOVE_BYTES
from tierd.core import Batch, Chunk
from tierd.errors import ExecutorError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

PAGES = 8
LENGTH = 150
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 300, LENGTH)]


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(2)
    yield pool
    pool.close()


@contextmanager
def compiled(codec: str, folder: Path, pool: ThreadPool) -> Iterator[HostExecutor]:
    path = tiny.write_llama(folder / "llama.gguf", head_size=32, kv_heads=2, heads=4)
    with GGUFFile.open(path) as file:
        executor = compile_plan(
            build_plan(file), file, codec=KV_CODECS[codec], pages=PAGES, max_rows=256, pool=pool
        )
        yield executor
        executor.close()


@pytest.fixture(scope="module", params=KV_CODECS)
def executor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pool: ThreadPool
) -> Iterator[HostExecutor]:
    with compiled(request.param, tmp_path_factory.mktemp("rows"), pool) as executor:
        yield executor


def feed(executor: HostExecutor, tokens: list[int], start: int, pages: list[int]) -> np.ndarray:
    """Feed tokens from position `start` on and return the logits of each."""
    return executor.run(Batch((Chunk(tokens, start, pages, tuple(range(len(tokens)))),))).copy()


def test_rows_go_on_in_other_pages_as_if_they_had_been_fed_there(executor: HostExecutor) -> None:
    whole = feed(executor, TOKENS, 0, [5, 0, 7])
    write(executor, [1, 2, 6], read(executor, [5, 0, 7], 0, 7, 64, 101, 140), 0, 33, 130, 140)
    np.testing.assert_array_equal(feed(executor, TOKENS[140:], 140, [1, 2, 6]), whole[140:])


def test_no_other_row_is_touched(executor: HostExecutor) -> None:
    """Every row of every page is known; then some are written, from within strips, over a page's end."""
    everything = list(range(PAGES))
    expected = junk(executor, PAGES * 64, 1)
    write(executor, everything, expected, 0, PAGES * 64)
    same(read(executor, everything, 0, PAGES * 64), expected)
    rows = junk(executor, 70, 2)
    write(executor, [6, 3, 4], rows, 85, 155)
    for layer, new in zip(expected, rows, strict=True):
        layer[3 * 64 + 21 : 4 * 64] = new[:43]
        layer[4 * 64 : 4 * 64 + 27] = new[43:]
    same(read(executor, everything, 0, PAGES * 64), expected)
    same(read(executor, [6, 3, 4], 85, 86, 128, 155), rows)


def test_a_row_is_the_codecs_bytes_of_keys_then_of_values(tmp_path: Path, pool: ThreadPool) -> None:
    """What f32 rows hold are the heads themselves, which any codec encodes, values as they are."""
    with compiled("f32", tmp_path, pool) as plain:
        feed(plain, TOKENS[:20], 0, [0])
        (heads,) = (rows.view(np.float32).reshape(20, 2, 2, 32) for rows in read(plain, [0], 0, 20)[:1])
    for codec in ("f16", "q8_0"):
        with compiled(codec, tmp_path, pool) as executor:
            feed(executor, TOKENS[:20], 0, [0])
            rows = read(executor, [0], 0, 20)[0].reshape(20, 2, 2, -1)
        expected = [encode(KV_CODECS[codec], head) for head in heads.reshape(-1, 32)]
        np.testing.assert_array_equal(rows.reshape(len(expected), -1), expected)


@pytest.mark.parametrize(
    ("layer", "pages", "start", "stop", "rows", "fault"),
    [
        (2, [0], 0, 1, 1, "layer 2 does not exist; there are 2"),
        (-1, [0], 0, 1, 1, "layer -1 does not exist"),
        (0, [0], 63, 65, 2, "positions 63 to 64 do not lie in 1 pages of 64"),
        (0, [0], -1, 1, 2, "positions -1 to 0"),
        (0, [0], 3, 2, 1, "positions 3 to 1"),
        (0, [0, PAGES], 64, 65, 1, "page 8 does not exist; there are 8"),
        (0, [-1], 0, 1, 1, "page -1 does not exist"),
        (0, [0], 0, 2, 1, r"rows are uint8 of shape \(1, \d+\); dense uint8 of \(2, \d+\) is needed"),
    ],
)
def test_what_does_not_fit_is_refused(
    executor: HostExecutor, layer: int, pages: list[int], start: int, stop: int, rows: int, fault: str
) -> None:
    bytes_ = np.zeros((rows, executor.row_bytes[0]), np.uint8)
    for move in (executor.read_rows, executor.write_rows):
        with pytest.raises(ExecutorError, match=fault):
            move(layer, pages, start, stop, bytes_)


def test_rows_are_dense_bytes_and_not_too_many(executor: HostExecutor) -> None:
    width = executor.row_bytes[0]
    for rows in (np.zeros((4, width), np.int8), np.zeros((4, 2 * width), np.uint8)[:, ::2]):
        with pytest.raises(ExecutorError, match="dense uint8"):
            executor.read_rows(0, [0], 0, 4, rows)
    many = MOVE_BYTES // width + 1
    pages = [0] * (many // 64 + 1)
    with pytest.raises(ExecutorError, match=f"{many * width} bytes of rows are too many at once"):
        executor.read_rows(0, pages, 0, many, np.zeros((many, width), np.uint8))


def test_no_rows_are_nothing_to_move(executor: HostExecutor) -> None:
    for move in (executor.read_rows, executor.write_rows):
        move(0, [], 0, 0, np.zeros((0, executor.row_bytes[0]), np.uint8))


def test_a_closed_executor_moves_nothing(tmp_path: Path, pool: ThreadPool) -> None:
    with compiled("f16", tmp_path, pool) as executor:
        executor.close()
        with pytest.raises(ExecutorError, match="closed"):
            read(executor, [0], 0, 1)
