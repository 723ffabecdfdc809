"""Hidden states from the host: against plain numpy, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import tiny
from reference.plan_forward import plan_forward
from tierd.backends.host import HostExecutor, ThreadPool, compile_plan
from tierd.core import Batch, Chunk
from tierd.errors import ExecutorError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 300, 100)]
PAGES = (7, 2)
MODELS = {
    "llama": tiny.write_llama,
    "gemma3": tiny.write_gemma3,
    "a width of no whole blocks": lambda path: tiny.write_llama(path, n_embd=72),
    "quantised": lambda path: tiny.write_llama(
        path, format="Q4_K", n_embd=256, heads=4, kv_heads=1, head_size=64, ff=256
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    with GGUFFile.open(MODELS[request.param](tmp_path_factory.mktemp("hidden") / "tiny.gguf")) as file:
        yield file


@pytest.fixture(scope="module")
def executor(file: GGUFFile) -> Iterator[HostExecutor]:
    pool = ThreadPool(2)
    executor = compile_plan(build_plan(file), file, codec=KV_CODECS["f32"], pages=20, max_rows=128, pool=pool)
    yield executor
    executor.close()
    pool.close()


def hidden(executor: HostExecutor, *chunks: Chunk) -> np.ndarray:
    executor.submit(Batch(chunks))
    return executor.collect().hidden.copy()


def whole(executor: HostExecutor) -> np.ndarray:
    return hidden(executor, Chunk(TOKENS, 0, PAGES, hidden_rows=range(len(TOKENS))))


def test_they_are_what_the_last_norm_leaves(file: GGUFFile, executor: HostExecutor) -> None:
    plan = build_plan(file)
    expected = plan_forward(replace(plan, logits=plan.hidden), file, TOKENS, dtype=np.float64)
    found = whole(executor)
    assert found.shape == expected.shape == (len(TOKENS), plan.buffers[plan.hidden])
    is_float = file.tensors["blk.0.attn_q.weight"].format.name == "F32"
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < (2e-5 if is_float else 0.05)


@pytest.mark.parametrize("size", [1, 7, 16])
def test_bits_do_not_depend_on_chunks_or_others(size: int, executor: HostExecutor) -> None:
    """Others want hidden states, logits or nothing, before and behind the rows that are looked at."""
    expected = whole(executor)
    found = []
    for turn, start in enumerate(range(0, len(TOKENS), size)):
        part = TOKENS[start : start + size]
        others = TOKENS[turn % 50 :]
        chunks = (
            Chunk(others[:3], 0, (4,), (0, 2), (1,)),
            Chunk(others[:2], 0, (5,), (1,)),
            Chunk(part, start, PAGES, hidden_rows=range(len(part))),
            Chunk(others[:5], 0, (6,), (), (0, 4)),
            Chunk(others[:9], 0, (8,)),
        )
        states = hidden(executor, *chunks)
        assert len(states) == 1 + len(part) + 2
        found.append(states[1:-2])
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_logits_are_the_same_beside_them(executor: HostExecutor) -> None:
    every = tuple(range(len(TOKENS)))
    expected = executor.run(Batch((Chunk(TOKENS, 0, PAGES, every),))).copy()
    odd = Chunk(TOKENS, 0, PAGES, every[1::2], every[::2])
    np.testing.assert_array_equal(executor.run(Batch((odd,))), expected[1::2])


REFUSED: list[tuple[Callable[[], Chunk], str]] = [
    (lambda: Chunk([1, 2], 0, (3,), hidden_rows=(2,)), "row 2 is wanted of a chunk of 2"),
    (lambda: Chunk([1, 2], 0, (3,), hidden_rows=(-1,)), "row -1 is wanted of a chunk of 2"),
    (lambda: Chunk([1, 2], 0, (3,), (1,), (1,)), "wanted more than once"),
]


@pytest.mark.parametrize(("chunk", "message"), REFUSED)
def test_rows_that_cannot_give_them_are_refused(
    chunk: Callable[[], Chunk], message: str, executor: HostExecutor
) -> None:
    with pytest.raises(ExecutorError, match=message):
        hidden(executor, chunk())
