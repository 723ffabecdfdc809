"""What a step costs: calls from Python, dispatches, barriers, and the bytes that the device must read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import tiny
from backends.resident import reads
from backends.resident.conftest import Opener, taken_for_gpu
from tierd.backends.resident import manifest
from tierd.backends.resident.assembly import Dispatch
from tierd.backends.resident.memory import Shape
from tierd.core import Batch, Chunk, Draw, TokenMask
from tierd.models import GGUFFile

LAYERS = 4
WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512, "layers": LAYERS}


@pytest.fixture(scope="module")
def q4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tiny.write_llama(tmp_path_factory.mktemp("tiny") / "q4.gguf", format="Q4_1", **WIDE)
    with GGUFFile.open(path) as file:
        yield file


@pytest.mark.parametrize(
    "draw",
    [Draw(), Draw(allowed=TokenMask.of(range(2, 300), 301), top_logprobs=0), Draw(top_logprobs=20)],
    ids=["greedy", "masked", "scored"],
)
def test_steady_decode_takes_two_calls_a_step(draw: Draw, q4: GGUFFile, opened: Opener) -> None:
    executor, device = opened(q4), opened.backend.device
    draws = (draw,) * 4
    executor.submit(Batch(tuple(Chunk([5], 0, (n,), (0,)) for n in range(4)), draws))
    before, used = device.calls, device.used
    for position in range(1, 21):
        executor.submit(Batch(tuple(Chunk((-1 - n,), position, (n,), (0,)) for n in range(4)), draws))
        assert executor.collect().rows_read == 0
    assert device.calls - before == 2 * 20  # vkQueueSubmit and vkWaitSemaphores
    assert device.used == used
    executor.collect()


def test_a_layer_takes_nine_dispatches(q4: GGUFFile, opened: Opener) -> None:
    program = opened(q4).dispatches(rows=1, scored=1)
    assert len(program) == 1 + 9 * LAYERS + 1 + 2 + 2  # embed; select, norm, classifier; two to draw
    layer = program[1:10]
    assert sum(dispatch.weights > 0 for dispatch in layer) == 4
    assert [dispatch.shader.kernel for dispatch in layer if not dispatch.weights] == [
        "norm", "heads", "attention", "norm", "gate",
    ]  # fmt: skip


def test_the_classifier_reads_two_terms(q4: GGUFFile, opened: Opener) -> None:
    program = opened(q4).dispatches(rows=4, scored=4)
    terms = [dict(dispatch.shader.constants).get("TERMS", 1) for dispatch in program]
    *others, norm, classifier, _, _ = terms
    assert norm == classifier == 2
    assert set(others) == {1}


def test_products_write_no_more_rows_than_there_are(q4: GGUFFile, opened: Opener) -> None:
    executor = opened(q4, shape=Shape(regions=3, positions=256, max_rows=32, selected=3))
    products = [dispatch for dispatch in executor.dispatches(3, 3) if dispatch.weights]
    rows = [dict(zip(*_fields(dispatch), strict=True))["rows"] for dispatch in products]
    assert rows == [32] * (len(rows) - 1) + [3]  # that is the classifier


def _fields(dispatch: Dispatch) -> tuple[list[str], tuple[float, ...]]:
    """Return the names and the values of what a dispatch is told."""
    kernel = manifest.kernel(dispatch.shader.kernel)
    return [name for name, _ in kernel.push], kernel.layout.unpack(dispatch.push)


@pytest.mark.parametrize(
    ("group", "codec"),
    [(1, "f16"), (4, "q8_0"), (8, "tq4"), (16, "f16"), (24, "q8_0")],
)
def test_a_step_reads_weights_and_rows_once(group: int, codec: str, opened: Opener, tmp_path: Path) -> None:
    """At most 1.1 times the weights, and the K and V of each row, whatever device it is recorded for."""
    heads = {"head_size": 32, "heads": group, "kv_heads": 1, "layers": 1}
    path = tiny.write_llama(tmp_path / "m.gguf", format="Q4_1", n_embd=256, ff=256, **heads)
    with GGUFFile.open(path) as file:
        weights = sum(tensor.nbytes for tensor in file.tensors.values() if tensor.format.name == "Q4_1")
        for device in ("software", "gpu"):
            with taken_for_gpu(opened.backend.device, dot=True) if device == "gpu" else nullcontext():
                executor = opened(file, codec, Shape(regions=8, positions=256, max_rows=64, selected=8))
                position_bytes = executor.page_bytes // executor.page_positions
                programs = {rows: executor.dispatches(rows, min(rows, 8)) for rows in (1, 2, 4, 8, 64)}
            for count, program in programs.items():
                for rows in (
                    [(200, row % 8) for row in range(count)],
                    [(190 - count + row, 0) for row in range(count)],
                ):
                    seen = position_bytes * sum(position + 1 for position, _ in rows)
                    read = reads.row_bytes(program, rows)
                    if count <= 8:
                        assert weights <= reads.weight_bytes(program, count) <= 1.1 * weights
                        assert seen <= read <= 1.1 * seen
                    else:
                        assert read <= 1.1 * seen


def test_rows_of_a_chunk_share_what_they_read(q4: GGUFFile, opened: Opener) -> None:
    with taken_for_gpu(opened.backend.device, dot=True):
        executor = opened(q4, shape=Shape(regions=1, positions=512, max_rows=64, selected=1))
        program = executor.dispatches(64, 1)
    position_bytes = executor.page_bytes // executor.page_positions
    last = [15 + 16 * n for n in range(4)]
    read = reads.row_bytes(program, [(256 + row, 0) for row in range(64)])
    assert read == position_bytes * sum(257 + row for row in last)
