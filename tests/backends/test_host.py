"""The host backend: every op against plain numpy, whole models too, and the same bits in any company."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tiny
from reference.plan_forward import plan_forward
from tierd.backends.host import PAGE_POSITIONS, HostExecutor, ThreadPool, compile_plan, page_bytes
from tierd.core import Batch, Chunk
from tierd.errors import ExecutorError, UnsupportedModelError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS, WEIGHT_FORMATS
from tierd.models.plan import BlobStore, Plan, SelectRows, StoreRows

QUANTISED = [entry.name for entry in WEIGHT_FORMATS.values() if entry.elements > 1]
TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 300, 150)]
Compile = Callable[..., HostExecutor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, ThreadPool]]:
    pools = {threads: ThreadPool(threads) for threads in (1, 2, 3)}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def compiled(pools: dict[int, ThreadPool]) -> Iterator[Compile]:
    """Compile a plan; whatever was compiled is closed at the end."""
    executors = []

    def compile_it(
        file: GGUFFile, plan: Plan | None = None, *, codec: str = "f16", threads: int = 2, pages: int = 40
    ) -> HostExecutor:
        executor = compile_plan(
            plan or build_plan(file),
            file,
            codec=KV_CODECS[codec],
            pages=pages,
            max_rows=256,
            pool=pools[threads],
        )
        executors.append(executor)
        return executor

    yield compile_it
    for executor in executors:
        executor.close()


def _whole(executor: HostExecutor, tokens: Sequence[int], pages: Sequence[int] = (7, 2, 9)) -> np.ndarray:
    chunk = Chunk(tokens, 0, pages, tuple(range(len(tokens))))
    return executor.run(Batch((chunk,))).copy()


def _llama(folder: Path, **options: object) -> GGUFFile:
    name = "-".join(f"{key}{value}" for key, value in sorted(options.items()))
    return GGUFFile.open(tiny.write_llama(folder / f"llama{name}.gguf", **options))


def _gemma3(folder: Path, **options: object) -> GGUFFile:
    name = "-".join(f"{key}{value}" for key, value in sorted(options.items()))
    return GGUFFile.open(tiny.write_gemma3(folder / f"gemma3{name}.gguf", **options))


@pytest.mark.parametrize("write", [_llama, _gemma3])
def test_float_models_equal_numpy(write: Callable[..., GGUFFile], folder: Path, compiled: Compile) -> None:
    """Odd sizes (vocabulary not a multiple of 16, heads of 40, 3 to 1) and a window of 8: within 2e-5."""
    with write(folder) as file:
        expected = plan_forward(build_plan(file), file, TOKENS, dtype=np.float64)
        ours = _whole(compiled(file, codec="f32"), TOKENS)
        assert np.abs(ours - expected).max() <= 2e-5 * np.abs(expected).max()
        halved = _whole(compiled(file, codec="f16"), TOKENS)
        assert np.abs(halved - expected).max() <= 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    "options",
    [
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_context_length": 128,
            }
        },
        {"rope_factors": [1.0 + 0.4 * i for i in range(20)]},
        {"tied": False, "biases": True},
        {"rope_dimensions": 24},
    ],
    ids=["linear", "yarn", "llama3", "untied-biases", "partial"],
)
def test_llama_variants_equal_numpy(options: dict[str, object], tmp_path: Path, compiled: Compile) -> None:
    with GGUFFile.open(tiny.write_llama(tmp_path / "variant.gguf", **options)) as file:
        expected = plan_forward(build_plan(file), file, TOKENS[:70], dtype=np.float64)
        ours = _whole(compiled(file, codec="f32"), TOKENS[:70])
        assert np.abs(ours - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("write", [_llama, _gemma3])
def test_every_op_equals_numpy(write: Callable[..., GGUFFile], folder: Path, compiled: Compile) -> None:
    """The plan cut behind each op in turn, with what the op wrote as the result."""
    with write(folder) as file:
        plan = build_plan(file)
        tokens = TOKENS[:20]
        checked = 0
        for end, op in enumerate(plan.ops, start=1):
            if isinstance(op, StoreRows):
                continue
            out = op.buffer if hasattr(op, "buffer") else op.out
            ops, width = plan.ops[:end], plan.buffers[out]
            if out != plan.logits:
                ops = (*ops, SelectRows(out, "probe"))
            cut = dataclasses.replace(
                plan,
                ops=ops,
                buffers={**plan.buffers, "probe": width},
                logits="probe" if out != plan.logits else out,
                vocabulary=width,
            )
            if any(isinstance(earlier, SelectRows) for earlier in plan.ops[:end]) and out != plan.logits:
                continue
            expected = plan_forward(cut, file, tokens)
            ours = _whole(compiled(file, cut, codec="f32", threads=1, pages=10), tokens)
            assert np.abs(ours - expected).max() <= 2e-5 * np.abs(expected).max(), (end, op)
            checked += 1
        assert checked > 20


@pytest.mark.parametrize("name", QUANTISED)
def test_every_weight_format_in_a_model(name: str, folder: Path, compiled: Compile) -> None:
    """8-bit activations disturb logits, in every format by as little."""
    with _llama(folder, format=name, n_embd=256, heads=4, kv_heads=2, head_size=64, ff=512) as file:
        expected = plan_forward(build_plan(file), file, TOKENS[:40])
        ours = _whole(compiled(file), TOKENS[:40])
        error = np.linalg.norm(ours - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert error.max() < 0.05
        assert error.mean() < 0.025


@pytest.mark.parametrize(("codec", "bound"), [("q8_0", 0.01), ("tq4", 0.12)])
def test_lossy_codecs_in_a_model(codec: str, bound: float, folder: Path, compiled: Compile) -> None:
    with _gemma3(folder, head_size=64) as file:
        expected = plan_forward(build_plan(file), file, TOKENS)
        ours = _whole(compiled(file, codec=codec), TOKENS)
        error = np.linalg.norm(ours - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert 0.0 < error.mean() < bound


# ---- The same bits, whatever the company --------------------------------------------------------------

MODELS = {
    "llama-f32": _llama,
    "gemma3-f32": _gemma3,
    "llama-q4_k": lambda folder: _llama(
        folder, format="Q4_K", n_embd=256, heads=4, kv_heads=1, head_size=64, ff=256
    ),
    "gemma3-q5_0": lambda folder: _gemma3(folder, format="Q5_0", n_embd=64, head_size=32, ff=64),
}
SEQUENCE = TOKENS[:140]
# Chunks, by threads: one thread has fed the whole, and single rows among others are fed by two.
SIZES = {1: (1, 64), 2: (7, len(SEQUENCE)), 3: (1, 7, 64, len(SEQUENCE))}


@pytest.mark.parametrize(
    ("model", "codec"),
    [
        ("llama-f32", "f16"),
        ("gemma3-f32", "f16"),
        ("llama-q4_k", "f16"),
        ("llama-q4_k", "tq4"),
        ("gemma3-q5_0", "f16"),
        ("gemma3-q5_0", "q8_0"),
    ],
)
def test_bits_do_not_depend_on_chunks_threads_or_others(
    model: str, codec: str, folder: Path, compiled: Compile
) -> None:
    with MODELS[model](folder) as file:
        expected = _whole(compiled(file, codec=codec, threads=1), SEQUENCE)
        for threads, sizes in SIZES.items():
            executor = compiled(file, codec=codec, threads=threads)
            for size in sizes:
                alone = _in_chunks(executor, SEQUENCE, size, ())
                np.testing.assert_array_equal(alone, expected, f"{threads} threads, chunks of {size}")
        executor = compiled(file, codec=codec, threads=2)
        for size in (1, 7, 20):
            amid = _in_chunks(executor, SEQUENCE, size, _others(7))
            np.testing.assert_array_equal(amid, expected, f"among seven, chunks of {size}")


def _others(count: int) -> list[list[int]]:
    random = np.random.default_rng(1)
    return [random.integers(0, 300, 10 + 17 * number).tolist() for number in range(count)]


def _in_chunks(
    executor: HostExecutor, tokens: list[int], size: int, others: Sequence[list[int]]
) -> np.ndarray:
    """Feed `tokens` chunk by chunk, in the middle of a batch with the others, and return all logits."""
    pages = [[4 * number + offset for offset in (3, 1, 2, 0)] for number in range(len(others) + 1)]
    rows = []
    for turn, start in enumerate(range(0, len(tokens), size)):
        part = tokens[start : start + size]
        chunks = [Chunk(part, start, pages[0], tuple(range(len(part))))]
        for number, other in enumerate(others, start=1):
            step = 1 + number
            fed = other[turn * step : (turn + 1) * step]
            if fed:
                chunk = Chunk(fed, turn * step, pages[number], (len(fed) - 1,) if number % 2 else ())
                chunks.insert(0 if number % 3 else len(chunks), chunk)
        before = 0
        for chunk in chunks:
            if chunk.tokens is part:
                break
            before += len(chunk.logit_rows)
        rows.append(executor.run(Batch(tuple(chunks)))[before : before + len(part)].copy())
    return np.concatenate(rows)


# ---- What cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (Chunk([1], 64, [3]), "positions 64 to 64 do not lie in 1 pages"),
        (Chunk([1], -1, [3]), "positions -1"),
        (Chunk([301], 0, [3]), "token id"),
        (Chunk([-1], 0, [3]), "token id"),
        (Chunk([1], 0, [40]), "page id"),
        (Chunk([1], 0, [3], (1,)), "row 1 is wanted"),
        (Chunk([1] * 257, 0, [0, 1, 2, 3, 4]), "257 rows"),
        (Chunk([], 0, [0]), "0 rows"),
    ],
)
def test_bad_batches_are_refused(chunk: Chunk, message: str, folder: Path, compiled: Compile) -> None:
    with _llama(folder) as file:
        executor = compiled(file)
        with pytest.raises(ExecutorError, match=message):
            executor.run(Batch((chunk,)))
        assert executor.run(Batch((Chunk([1], 0, [3], (0,)),))).shape == (1, 301)


def test_closed_executor_refuses(folder: Path, compiled: Compile) -> None:
    with _llama(folder) as file:
        executor = compiled(file)
        executor.close()
        executor.close()
        with pytest.raises(ExecutorError, match="closed"):
            executor.run(Batch((Chunk([1], 0, [3]),)))


def test_codec_that_does_not_fit_is_refused(folder: Path, compiled: Compile) -> None:
    with _llama(folder) as file:
        for codec in ("q8_0", "tq4"):
            with pytest.raises(UnsupportedModelError, match=f"{codec} needs a head size"):
                compiled(file, codec=codec)


def test_recurrent_state_is_refused(folder: Path, compiled: Compile) -> None:
    with _llama(folder) as file:
        plan = dataclasses.replace(build_plan(file), stores=(BlobStore(0, 64),))
        with pytest.raises(UnsupportedModelError, match="recurrent state"):
            compiled(file, plan)


def test_page_bytes_are_rows_of_all_layers(folder: Path) -> None:
    with _llama(folder) as file:
        plan = build_plan(file)
        assert page_bytes(plan, KV_CODECS["f16"]) == 2 * 2 * 40 * 2 * PAGE_POSITIONS
        assert page_bytes(plan, KV_CODECS["f32"]) == 2 * 2 * 40 * 4 * PAGE_POSITIONS
