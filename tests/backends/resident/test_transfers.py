"""Rows between regions, the host's pages and bytes: every bit arrives, and nothing else changes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tiny
from backends.resident.conftest import SMALL, TOKENS, WIDE, Opener, feed
from row_moves import junk, read, same, write
from tierd.backends.host import HostExecutor, ThreadPool, compile_plan
from tierd.backends.resident.memory import Shape
from tierd.core import Batch, Chunk
from tierd.errors import ExecutorError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

CODECS = ("f16", "q8_0", "tq4")


@pytest.fixture(scope="module")
def q4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tmp_path_factory.mktemp("tiny") / "q4.gguf"
    with GGUFFile.open(tiny.write_llama(path, format="Q4_1", **WIDE)) as file:
        yield file


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on_host(file: GGUFFile, codec: str, pool: ThreadPool) -> HostExecutor:
    return compile_plan(build_plan(file), file, codec=KV_CODECS[codec], pages=6, max_rows=128, pool=pool)


def fed(host: HostExecutor, tokens: list[int], pages: list[int], start: int = 0) -> np.ndarray:
    return host.run(Batch((Chunk(tokens, start, pages, tuple(range(len(tokens)))),))).copy()


def test_decode_goes_on_in_another_region(codec: str, q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4, codec)
    whole = feed(executor, TOKENS[:90], region=2)
    feed(executor, TOKENS[60:], region=5)
    rows = read(executor, [2], 0, 1, 33, 64, 80)
    feed(executor, TOKENS[60:], region=2)
    write(executor, [5], rows, 0, 31, 32, 77, 80)
    np.testing.assert_array_equal(feed(executor, TOKENS[80:90], region=5, start=80, step=1), whole[80:])


def test_no_other_row_is_touched(codec: str, q4: GGUFFile, opened: Opener) -> None:
    """All rows of all regions are known; then some are written, from within a strip into another."""
    executor = opened(q4, codec)
    expected = [junk(executor, SMALL.positions, region) for region in range(SMALL.regions)]
    for region, rows in enumerate(expected):
        write(executor, [region], rows, 0, SMALL.positions)
    new = junk(executor, 40, 99)
    write(executor, [3], new, 45, 85)
    for layer, rows in zip(expected[3], new, strict=True):
        layer[45:85] = rows
    for region, rows in enumerate(expected):
        same(read(executor, [region], 0, SMALL.positions), rows)
    same(read(executor, [3], 45, 46, 85), new)


def test_rows_cross_to_the_host_and_back(codec: str, q4: GGUFFile, opened: Opener, pool: ThreadPool) -> None:
    executor, host = opened(q4, codec), on_host(q4, codec, pool)
    whole = feed(executor, TOKENS[:90])
    rows = read(executor, [0], 0, 80)
    write(host, [4, 1], rows, 0, 50, 80)
    back = read(host, [4, 1], 0, 64, 80)
    same(back, rows)
    write(executor, [6], back, 0, 80)
    np.testing.assert_array_equal(feed(executor, TOKENS[80:90], region=6, start=80), whole[80:])
    # They mean the same there: the host goes on as if it had computed them itself, but for roundings.
    own, found = fed(host, TOKENS[:90], [0, 2])[80:], fed(host, TOKENS[80:90], [4, 1], 80)
    assert np.abs(found - own).mean() < 0.03 * own.std()
    host.close()


def test_rows_cross_from_the_host_and_back(
    codec: str, q4: GGUFFile, opened: Opener, pool: ThreadPool
) -> None:
    executor, host = opened(q4, codec), on_host(q4, codec, pool)
    whole = fed(host, TOKENS[:90], [5, 3])
    rows = read(host, [5, 3], 0, 80)
    write(executor, [7], rows, 0, 80)
    back = read(executor, [7], 0, 80)
    same(back, rows)
    write(host, [0, 4], back, 0, 80)
    np.testing.assert_array_equal(fed(host, TOKENS[80:90], [0, 4], 80), whole[80:])
    own, found = feed(executor, TOKENS[:90])[80:], feed(executor, TOKENS[80:90], region=7, start=80)
    assert np.abs(found - own).mean() < 0.03 * own.std()
    host.close()


def test_the_host_sees_them_in_mapped_memory_too(q4: GGUFFile, opened_mapped: Opener) -> None:
    executor = opened_mapped(q4, "q8_0")
    rows = junk(executor, 70)
    write(executor, [1], rows, 3, 73)
    same(read(executor, [1], 3, 73), rows)


def test_rows_are_read_behind_steps_in_flight(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    feed(executor, TOKENS[:41], region=1)
    expected = read(executor, [1], 0, 41)
    executor.submit(Batch((Chunk(TOKENS[:20], 0, (0,)),)))
    executor.submit(Batch((Chunk(TOKENS[20:41], 20, (0,)),)))
    same(read(executor, [0], 0, 41), expected)
    executor.collect()
    executor.collect()


def test_rows_move_behind_copies(q4: GGUFFile, opened: Opener) -> None:
    """A copy that was asked for first has the rows as they were, and brings what is read next."""
    executor = opened(q4)
    old, new = junk(executor, 64, 0), junk(executor, 64, 1)
    write(executor, [0], old, 0, 64)
    executor.copy_rows(0, 1, 64)
    write(executor, [0], new, 0, 64)
    executor.copy_rows(1, 2, 64)
    same(read(executor, [2], 0, 64), old)
    same(read(executor, [0], 0, 64), new)


def test_a_chain_of_copies_is_made_in_order(codec: str, q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4, codec)
    rows = junk(executor, 100)
    write(executor, [0], rows, 0, 100)
    for region in range(3):
        executor.copy_rows(region, region + 1, 100)
    same(read(executor, [3], 0, 100), rows)


def test_a_copy_leaves_others_and_whole_strips_behind_it_alone(
    codec: str, q4: GGUFFile, opened: Opener
) -> None:
    executor = opened(q4, codec)
    before = [junk(executor, SMALL.positions, region) for region in range(3)]
    for region, rows in enumerate(before):
        write(executor, [region], rows, 0, SMALL.positions)
    executor.copy_rows(0, 1, 33)
    found = [read(executor, [region], 0, SMALL.positions) for region in range(3)]
    same(found[0], before[0])
    same(found[2], before[2])
    same([layer[:33] for layer in found[1]], [layer[:33] for layer in before[0]])
    same([layer[64:] for layer in found[1]], [layer[64:] for layer in before[1]])


def test_a_copy_costs_as_much_to_ask_for_in_many_layers_as_in_few(tmp_path: Path, opened: Opener) -> None:
    """Calls of Vulkan, which the engine thread makes: a step's with copies less a step's without."""
    costs = []
    for layers in (2, 12):
        with GGUFFile.open(tiny.write_llama(tmp_path / f"{layers}.gguf", layers=layers)) as file:
            executor = opened(file, shape=Shape(regions=4, positions=64, max_rows=1, selected=1))
        feed(executor, TOKENS[:20], step=1)
        calls = [executor.calls]
        for copies in (0, 1, 3):
            for target in range(1, copies + 1):
                executor.copy_rows(0, target, 20)
            executor.submit(Batch((Chunk(TOKENS[:1], 20, (0,)),)))
            calls.append(executor.calls)
            executor.collect()
        without, one, three = (after - before for before, after in itertools.pairwise(calls))
        costs.append((one - without, three - one))
    assert costs[0] == costs[1]
    assert max(costs[0]) <= 12


def test_moves_and_steps_of_two_threads(q4: GGUFFile, opened: Opener) -> None:
    """One thread submits steps and copies while the other, the runner, collects them and moves rows."""
    executor = opened(q4)
    whole = feed(executor, TOKENS[:30], region=7)
    rows, found = junk(executor, 40), []
    submitted = threading.Semaphore(0)
    room = threading.Semaphore(executor.depth)

    def run() -> None:
        for at in range(30):
            assert submitted.acquire(timeout=60)
            write(executor, [2], rows, at, at + 40)
            same(read(executor, [2], at, at + 40), rows)
            found.append(executor.collect().logits(0).copy())
            room.release()

    runner = threading.Thread(target=run)
    runner.start()
    for at in range(30):
        assert room.acquire(timeout=60)
        executor.copy_rows(0, 1, max(0, at - 1))
        executor.submit(Batch((Chunk(TOKENS[at : at + 1], at, (0,), (0,)),)))
        submitted.release()
    runner.join()
    np.testing.assert_array_equal(found, whole)
    same(read(executor, [1], 0, 28), read(executor, [0], 0, 28))


@pytest.mark.parametrize(
    ("pages", "start", "stop", "fault"),
    [
        ([0, 1], 0, 1, r"rows lie in regions \[0, 1\]; one is needed"),
        ([], 0, 0, r"rows lie in regions \[\]"),
        ([8], 0, 1, "page 8 does not exist; there are 8"),
        ([0], 256, 257, "positions 256 to 256 do not lie in 1 pages of 256"),
    ],
)
def test_what_does_not_fit_is_refused(
    pages: list[int], start: int, stop: int, fault: str, q4: GGUFFile, opened: Opener
) -> None:
    executor = opened(q4)
    rows = np.zeros((stop - start, executor.row_bytes[0]), np.uint8)
    for move in (executor.read_rows, executor.write_rows):
        with pytest.raises(ExecutorError, match=fault):
            move(0, pages, start, stop, rows)


def test_no_rows_are_nothing_to_move(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4)
    before = executor.calls
    for move in (executor.read_rows, executor.write_rows):
        move(0, [0], 9, 9, np.zeros((0, executor.row_bytes[0]), np.uint8))
    assert executor.calls == before
