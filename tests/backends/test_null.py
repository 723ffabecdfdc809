from __future__ import annotations

import threading

import numpy as np
import pytest

from tierd.backends.null import NullExecutor
from tierd.core import Batch, Chunk
from tierd.errors import ExecutorError


def feed(executor: NullExecutor, *chunks: Chunk) -> np.ndarray:
    return executor.run(Batch(chunks)).copy()


def test_logits_depend_on_the_history_alone() -> None:
    executor = NullExecutor(pages=8)
    whole = feed(executor, Chunk(range(10, 16), 0, (0, 1), (0, 5)))
    feed(executor, Chunk((10, 11, 12), 0, (7, 2)))
    other = Chunk((9, 9), 0, (4,), (1,))
    rest = Chunk((13, 14, 15), 3, (7, 2), (2,))
    mixed = feed(executor, other, rest)
    assert whole.shape == (2, 258)
    assert np.array_equal(whole[1], mixed[1])
    assert not np.array_equal(whole[0], whole[1])
    assert not np.array_equal(whole[1], mixed[0])


def test_a_page_that_two_sequences_own_shows() -> None:
    executor = NullExecutor(pages=4)
    alone = feed(executor, Chunk((1, 2, 3, 4), 0, (0,)), Chunk((5,), 0, (1,)))
    feed(executor, Chunk((7,), 0, (0,)))
    after = feed(executor, Chunk((5,), 4, (0, 2), (0,)))
    assert alone.shape == (0, 258)
    good = feed(NullExecutor(pages=4), Chunk((1, 2, 3, 4, 5), 0, (0, 2), (4,)))
    assert not np.array_equal(after, good)


@pytest.mark.parametrize(
    ("chunk", "fault"),
    [
        (Chunk((1,), 0, (4,)), "page 4 does not exist"),
        (Chunk((1,), 0, (-1,)), "page -1 does not exist"),
        (Chunk((1, 2, 3, 4, 5), 0, (0,)), "positions 0 to 4 are not covered by 1 pages"),
        (Chunk((1,), -1, (0,)), "positions -1 to -1 are not covered"),
        (Chunk((258,), 0, (0,)), "token 258 does not exist"),
        (Chunk((1,), 0, (0,), (1,)), "logit rows"),
        (Chunk((1,), 3, (1,), (0,)), "position 0 was never fed"),
        (Chunk((), 0, (0,)), "a batch of 0 rows"),
        (Chunk((1,) * 9, 0, (0, 1, 2)), "a batch of 9 rows; 1 to 8 are possible"),
    ],
)
def test_faults_of_the_engine_are_refused(chunk: Chunk, fault: str) -> None:
    with pytest.raises(ExecutorError, match=fault):
        NullExecutor(pages=4, max_rows=8).run(Batch((chunk,)))


def test_copied_rows_stand_for_the_same_history() -> None:
    executor = NullExecutor(pages=4)
    whole = feed(executor, Chunk((1, 2, 3, 4, 5, 6, 7), 0, (0, 1), (6,)))
    executor.copy_rows(1, 3, 2)
    assert np.array_equal(feed(executor, Chunk((7,), 6, (0, 3), (0,))), whole)
    other = feed(executor, Chunk((8,), 6, (0, 3), (0,)))
    assert not np.array_equal(other, whole)
    assert np.array_equal(feed(executor, Chunk((7,), 6, (0, 1), (0,))), whole)


@pytest.mark.parametrize(
    ("source", "target", "positions", "fault"),
    [
        (4, 0, 1, "page 4 does not exist"),
        (0, -1, 1, "page -1 does not exist"),
        (0, 0, 1, "1 rows cannot be copied from page 0 to page 0"),
        (0, 1, 5, "5 rows cannot be copied"),
        (1, 2, 2, "2 rows cannot be copied"),  # but one was fed
    ],
)
def test_faulty_copies_are_refused(source: int, target: int, positions: int, fault: str) -> None:
    executor = NullExecutor(pages=4)
    feed(executor, Chunk((1, 2, 3, 4, 5), 0, (0, 1)))
    with pytest.raises(ExecutorError, match=fault):
        executor.copy_rows(source, target, positions)


def test_a_result_is_gone_with_the_next_step() -> None:
    executor = NullExecutor(pages=1)
    first = executor.run(Batch((Chunk((1,), 0, (0,), (0,)),)))
    assert np.isfinite(first).all()
    executor.run(Batch((Chunk((2,), 1, (0,), (0,)),)))
    assert np.isnan(first).all()


def test_steps_do_not_overlap() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(batch: Batch) -> None:
        inside.set()
        assert go_on.wait(10)

    executor = NullExecutor(pages=1, before_step=wait)
    batch = Batch((Chunk((1,), 0, (0,)),))
    thread = threading.Thread(target=executor.run, args=(batch,))
    thread.start()
    assert inside.wait(10)
    with pytest.raises(ExecutorError, match="submitted while 1 are in flight"):
        executor.run(batch)
    with pytest.raises(ExecutorError, match="copied while a step is in flight"):
        executor.copy_rows(0, 0, 1)
    with pytest.raises(ExecutorError, match="closed while a step is in flight"):
        executor.close()
    go_on.set()
    thread.join()
    executor.close()
    executor.close()
    with pytest.raises(ExecutorError, match="after the executor was closed"):
        executor.run(batch)
