"""A profiled step: the same result as any other, and times that add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
from tierd.backends.host import ThreadPool, compile_plan
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

BATCH = Batch((Chunk([3, 1, 4], 0, [0], (0, 2)), Chunk([1], 0, [1], (0,))))


@pytest.mark.parametrize("threads", [1, 3])
def test_times_add_up(tmp_path: Path, threads: int) -> None:
    pool = ThreadPool(threads)
    with GGUFFile.open(
        tiny.write_llama(tmp_path / "tiny.gguf", format="Q8_0", n_embd=96, head_size=32, ff=160)
    ) as file:
        plan = build_plan(file)
        executor = compile_plan(plan, file, codec=KV_CODECS["f16"], pages=2, max_rows=8, pool=pool)
        expected = executor.run(BATCH).copy()
        profile = executor.profile(BATCH)
        np.testing.assert_array_equal(profile.logits, expected)
        executor.close()
    pool.close()
    assert profile.wait.shape == profile.work.shape == (threads, len(profile.ops))
    assert profile.wait.min() >= 0
    assert profile.work.min() >= 0
    assert profile.work.sum(axis=1).min() > 0
    assert (profile.wait + profile.work).sum(axis=1).max() <= profile.step <= profile.call
    assert profile.before > 0


def test_ops_have_names(tmp_path: Path) -> None:
    pool = ThreadPool(1)
    with GGUFFile.open(
        tiny.write_llama(tmp_path / "tiny.gguf", format="Q8_0", n_embd=96, head_size=32, ff=160)
    ) as file:
        plan = build_plan(file)
        executor = compile_plan(plan, file, codec=KV_CODECS["f16"], pages=2, max_rows=8, pool=pool)
        ops = executor.profile(BATCH).ops
        executor.close()
    pool.close()
    assert (ops[0].kind, ops[0].tensor, ops[0].layer) == ("embed", "token_embd.weight", None)
    assert (ops[-1].kind, ops[-1].layer) == ("matmul", None)
    matmuls = {op.tensor for op in ops if op.kind == "matmul"}
    assert {"blk.0.attn_q.weight", "blk.1.ffn_down.weight"} <= matmuls
    for layer in {store.layer for store in plan.stores}:
        kinds = [op.kind for op in ops if op.layer == layer]
        assert kinds.count("matmul") == 7
        assert {"norm", "store", "attention", "gate"} <= set(kinds)
