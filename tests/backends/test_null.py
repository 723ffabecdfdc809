from __future__ import annotations

import threading

import numpy as np
import pytest

from tierd.backends.null import NullExecutor
from tierd.core import ADJUSTMENT, Batch, Chunk, Draw, TokenMask
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
        (Chunk((1,), 0, (0,), (1,)), "row 1 is wanted"),
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


def ahead(**options: object) -> NullExecutor:
    return NullExecutor(pages=8, depth=2, **options)  # type: ignore[arg-type]


FIRST = Batch((Chunk((1, 2), 0, (0,), (1,)), Chunk((3,), 0, (1,), (0,))), (Draw(), Draw()))
NEXT = Batch((Chunk((-2,), 1, (1,), (0,)), Chunk((-1,), 2, (0,), (0,))), (Draw(), Draw(temperature=1.0)))


def test_a_step_may_refer_to_what_is_drawn_in_the_one_before() -> None:
    executor = ahead()
    executor.submit(FIRST)
    executor.submit(NEXT)
    with pytest.raises(ExecutorError, match="submitted while 2 are in flight"):
        executor.submit(NEXT)
    first, second = executor.collect(), executor.collect()
    a, b = first.drawn(0), first.drawn(1)
    assert a is not None
    assert b is not None
    assert (a, b) == (int(np.argmax(first.logits(0))), int(np.argmax(first.logits(1))))
    plain = feed(NullExecutor(pages=2), Chunk((3, b), 0, (0,), (1,)), Chunk((1, 2, a), 0, (1,), (2,)))
    assert np.array_equal(second.logits(0), plain[0])
    assert np.array_equal(second.logits(1), plain[1])
    assert second.drawn(1) is None  # a random draw is left to others
    executor.submit(Batch((Chunk((5,), 0, (2,)),)))
    executor.collect()
    assert np.isnan(first.logits(0)).all()
    assert np.isfinite(second.logits(0)).all()


def test_it_draws_among_what_is_allowed() -> None:
    executor, mask = ahead(), TokenMask.of([7, 100, 200], 258)
    executor.submit(Batch(FIRST.chunks, (Draw(allowed=mask), Draw(temperature=1.0, allowed=mask))))
    result = executor.collect()
    assert result.drawn(0) == max((7, 100, 200), key=lambda id: result.logits(0)[id])
    assert result.drawn(1) is None


def test_what_was_not_drawn_is_junk_behind_it() -> None:
    executor = ahead()
    adjusted = Draw(adjustments=np.array([(1, 0.5, 1.0, 0.0)], ADJUSTMENT))
    executor.run(Batch(FIRST.chunks, (Draw(temperature=1.0), adjusted)))
    executor.run(NEXT)
    executor.copy_rows(1, 5, 1)
    with pytest.raises(ExecutorError, match="2 rows cannot be copied"):
        executor.copy_rows(1, 5, 2)


def test_a_failed_step_leaves_junk_and_the_one_behind_it_is_done() -> None:
    def fail(batch: Batch) -> None:
        if batch is FIRST:
            raise ExecutorError("a fault")

    executor = ahead(before_step=fail)
    executor.submit(FIRST)
    other = Chunk((9,), 0, (2,), (0,))
    executor.submit(Batch((*NEXT.chunks, other), (*NEXT.draws, Draw())))
    with pytest.raises(ExecutorError, match="a fault"):
        executor.collect()
    assert np.array_equal(
        executor.collect().logits(2), feed(NullExecutor(pages=1), Chunk((9,), 0, (0,), (0,)))[0]
    )
    with pytest.raises(ExecutorError, match="2 rows cannot be copied"):
        executor.copy_rows(0, 5, 2)


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        (Batch((Chunk((-3,), 1, (1,)),)), "token -3 does not exist"),
        (Batch((Chunk((-1, 5), 1, (1,)),)), "token -1 does not exist"),
        (Batch(FIRST.chunks, (Draw(),)), "1 draws from 2 rows"),
        (
            Batch(FIRST.chunks, (Draw(), Draw(allowed=TokenMask.of([1], 256)))),
            "a mask of 8 words; one of 258 ids has 9",
        ),
        (
            Batch(FIRST.chunks, (Draw(), Draw(allowed=TokenMask.of([258], 9 * 32)))),
            "a mask that allows ids which do not exist; the last is 257",
        ),
    ],
)
def test_a_step_that_does_not_fit_is_as_if_it_had_not_been(batch: Batch, fault: str) -> None:
    executor = ahead()
    executor.submit(FIRST)
    with pytest.raises(ExecutorError, match=fault):
        executor.submit(batch)
    executor.submit(NEXT)
    executor.collect()
    assert executor.collect().drawn(0) is not None


def test_pages_of_a_step_in_flight_are_not_copied() -> None:
    executor = ahead()
    executor.run(Batch((Chunk((1, 2, 3, 4, 5), 0, (3, 4)),)))
    executor.submit(Batch((Chunk((6,), 5, (3, 4, 5)),)))
    for source, target, positions in ((4, 7, 2), (3, 4, 1), (3, 5, 1)):
        with pytest.raises(ExecutorError, match="while a step works on one of them"):
            executor.copy_rows(source, target, positions)
    executor.copy_rows(3, 7, 4)  # it is read only
    executor.copy_rows(4, 6, 1)  # the step writes behind it
    executor.collect()
    executor.copy_rows(4, 6, 2)


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
