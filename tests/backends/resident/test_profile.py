"""The time of a step, dispatch by dispatch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
from backends.resident.conftest import Opener
from tierd.core import Batch, Chunk, Draw
from tierd.errors import ExecutorError
from tierd.models import GGUFFile


def test_a_profiled_step_is_a_step(tmp_path: Path, opened: Opener) -> None:
    """It brings the same token, and a time for each of its dispatches."""
    path = tiny.write_llama(tmp_path / "q4.gguf", format="Q4_1", n_embd=96, head_size=32, ff=160)
    with GGUFFile.open(path) as file:
        executor = opened(file)
    feed = Batch((Chunk((5, 6, 7), 0, (0,), (2,)),), (Draw(),))
    executor.submit(feed)
    token = executor.collect().drawn(0)
    profile = executor.profile(feed)
    assert profile.result.drawn(0) == token
    program = executor.dispatches(3, 1)
    assert len(profile.names) == len(profile.seconds) == len(program)
    assert np.all(profile.seconds >= 0)
    assert profile.seconds.sum() > 0
    assert 0 < profile.barriers < len(program)
    kernels = [name.split()[0] for name in profile.names]
    assert kernels == [dispatch.shader.kernel for dispatch in program]
    assert any(name.endswith(" ffn_down") for name in profile.names)
    assert any(name.endswith(" ffn_gate+ffn_up") for name in profile.names)

    executor.submit(feed)
    with pytest.raises(ExecutorError, match="1 steps are in flight"):
        executor.profile(feed)
    executor.collect()


def test_a_step_without_logits_is_profiled(tmp_path: Path, opened: Opener) -> None:
    path = tiny.write_llama(tmp_path / "q4.gguf", format="Q4_1", n_embd=96, head_size=32, ff=160)
    with GGUFFile.open(path) as file:
        executor = opened(file)
    profile = executor.profile(Batch((Chunk((5, 6), 0, (0,), ()),)))
    assert len(profile.names) == len(executor.dispatches(2, 0))
    assert "draw" not in profile.names
