"""Rows of the null device as bytes: one layer, in which a row is its token."""

from __future__ import annotations

import numpy as np
import pytest

from row_moves import read, same, write
from tierd.backends.null import NullExecutor
from tierd.core import Batch, Chunk, Draw
from tierd.errors import ExecutorError


def feed(executor: NullExecutor, *chunks: Chunk) -> np.ndarray:
    return executor.run(Batch(chunks)).copy()


def rows_of(*tokens: int) -> list[np.ndarray]:
    return [np.array(tokens, np.int64).view(np.uint8).reshape(len(tokens), 8)]


def test_rows_stand_for_the_same_history_elsewhere() -> None:
    executor = NullExecutor(pages=8)
    whole = feed(executor, Chunk((1, 2, 3, 4, 5, 6, 7), 0, (0, 1), (6,)))
    rows = read(executor, [0, 1], 0, 3, 6)
    same(rows, rows_of(1, 2, 3, 4, 5, 6))
    write(executor, [5, 2], rows, 0, 5, 6)
    assert np.array_equal(feed(executor, Chunk((7,), 6, (5, 2), (0,))), whole)
    other = NullExecutor(pages=1, page_positions=16)
    write(other, [0], rows, 0, 6)
    assert np.array_equal(feed(other, Chunk((7,), 6, (0,), (0,))), whole)


def test_rows_are_read_behind_steps_that_nobody_has_collected() -> None:
    executor = NullExecutor(pages=2, page_positions=8, depth=2)
    executor.submit(Batch((Chunk((1, 2), 0, (0,), (1,)),), (Draw(),)))
    executor.submit(Batch((Chunk((-1,), 2, (0,), (0,)),), (Draw(),)))
    (rows,) = read(executor, [0], 0, 3)
    drawn = executor.collect().drawn(0)
    same([rows], rows_of(1, 2, drawn or 0))
    write(executor, [1], rows_of(9), 0, 1)
    assert np.isfinite(executor.collect().logits(0)).all()


def test_what_a_step_fails_with_is_told_when_it_is_collected() -> None:
    def fail(batch: Batch) -> None:
        raise ExecutorError("a fault")

    executor = NullExecutor(pages=2, before_step=fail)
    write(executor, [1], rows_of(5), 0, 1)
    executor.submit(Batch((Chunk((1, 2), 0, (0,)),)))
    same(read(executor, [1], 0, 1), rows_of(5))
    with pytest.raises(ExecutorError, match="position 0 was never fed"):
        read(executor, [0], 0, 1)
    with pytest.raises(ExecutorError, match="a fault"):
        executor.collect()


def test_rows_that_were_never_fed_are_a_fault() -> None:
    executor = NullExecutor(pages=2)
    feed(executor, Chunk((1, 2, 3), 0, (0,)))
    same(read(executor, [0], 1, 3), rows_of(2, 3))
    with pytest.raises(ExecutorError, match="position 3 was never fed"):
        read(executor, [0], 1, 4)


@pytest.mark.parametrize("token", [-1, 258])
def test_bytes_that_are_no_token_are_a_fault(token: int) -> None:
    with pytest.raises(ExecutorError, match="rows 1 to 2 are not those of 258 tokens"):
        write(NullExecutor(pages=1), [0], rows_of(0, token), 1, 3)


def test_what_does_not_fit_or_comes_too_late_is_refused() -> None:
    executor = NullExecutor(pages=1)
    with pytest.raises(ExecutorError, match="positions 0 to 4 do not lie in 1 pages of 4"):
        write(executor, [0], rows_of(1, 2, 3, 4, 5), 0, 5)
    executor.close()
    with pytest.raises(ExecutorError, match="after the executor was closed"):
        write(executor, [0], rows_of(1), 0, 1)


def test_a_device_that_cannot_continue_a_prompt_notices() -> None:
    executor = NullExecutor(pages=2, page_positions=16, prefill_continues=False)
    feed(executor, Chunk((1, 2, 3), 0, (0,)))
    feed(executor, Chunk((4,), 3, (0,)))
    with pytest.raises(ExecutorError, match="position 4 continues a prompt"):
        feed(executor, Chunk((5, 6), 4, (0,)))
    feed(executor, Chunk((5, 6), 0, (0,)))


def test_a_device_that_cannot_rewind_notices() -> None:
    executor = NullExecutor(pages=4, page_positions=16, rewinds=False)
    feed(executor, Chunk((1, 2, 3, 4), 0, (0,)))
    with pytest.raises(ExecutorError, match="position 3 was passed already"):
        feed(executor, Chunk((9,), 3, (0,)))
    executor.copy_rows(0, 1, 3)
    feed(executor, Chunk((9,), 3, (1,)))
    write(executor, [2], read(executor, [0], 0, 4), 0, 4)
    with pytest.raises(ExecutorError, match="position 2 was passed already"):
        feed(executor, Chunk((9, 9), 2, (2,)))
    feed(executor, Chunk((9, 9), 0, (2,)))
    feed(executor, Chunk((9,), 2, (2,)))
