from __future__ import annotations

import numpy as np
import pytest

from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import Activation, Attention, Embed, Gate, Norm, Rope, RowStore
from tiny import write_gemma3


@pytest.fixture
def plan_of(tmp_path):
    def open_and_plan(**arguments):
        with GGUFFile.open(write_gemma3(tmp_path / "tiny.gguf", **arguments)) as file:
            return build_plan(file)

    return open_and_plan


def ops(plan, kind):
    return [op for op in plan.ops if isinstance(op, kind)]


def windows(plan):
    return [op.window for op in ops(plan, Attention)]


def bases(plan):
    """Each layer's rotary base, from the second frequency."""
    return [round(op.spec.frequencies[1] ** -len(op.spec.frequencies)) for op in ops(plan, Rope)[::2]]


def test_gemma3_270m(gemma3_path):
    with GGUFFile.open(gemma3_path) as file:
        plan = build_plan(file)
    assert (plan.vocabulary, plan.context) == (262_144, 32_768)
    assert plan.stores == tuple(RowStore(layer, 1, 256) for layer in range(18))
    assert windows(plan) == ([512] * 5 + [0]) * 3
    assert bases(plan) == ([10_000] * 5 + [1_000_000]) * 3
    assert {op.spec.interleaved for op in ops(plan, Rope)} == {False}
    assert {op.scale for op in ops(plan, Attention)} == {1 / 16}
    assert {op.activation for op in ops(plan, Gate)} == {Activation.GELU}
    assert ops(plan, Embed)[0].scale == np.sqrt(np.float32(640))
    assert [op.heads for op in ops(plan, Norm)[:6]] == [1, 4, 1, 1, 1, 1]


def test_pattern_and_local_base_of_the_file(plan_of):
    extra = {"gemma3.attention.sliding_window_pattern": 3, "gemma3.rope.freq_base_swa": 5000.0}
    plan = plan_of(extra=extra)
    assert windows(plan) == [8, 8, 0, 8, 8, 0, 8]
    assert bases(plan) == [5000, 5000, 1_000_000, 5000, 5000, 1_000_000, 5000]


def test_pattern_as_a_list(plan_of):
    pattern = "gemma3.attention.sliding_window_pattern"
    assert windows(plan_of(layers=3, extra={pattern: [True, False, True]})) == [8, 0, 8]
    with pytest.raises(ModelFileError, match="sliding_window_pattern lists 2 layers of 3"):
        plan_of(layers=3, extra={pattern: [True, False]})


def test_no_window_means_all_layers_are_global(plan_of):
    plan = plan_of(window=0)
    assert windows(plan) == [0] * 7
    assert set(bases(plan)) == {1_000_000}


def test_linear_scaling_is_for_global_layers(plan_of):
    plan = plan_of(rope_scaling={"type": "linear", "factor": 8.0})
    assert [op.spec.frequencies[0] for op in ops(plan, Rope)[::2]] == [1.0] * 5 + [1 / 8, 1.0]


def test_attention_scale_of_27b(plan_of):
    plan = plan_of(layers=62, n_embd=8, heads=2, head_size=16, ff=8)
    assert {op.scale for op in ops(plan, Attention)} == {0.5}


@pytest.mark.parametrize("key", ["final_logit_softcapping", "attn_logit_softcapping"])
def test_soft_capping_is_refused(plan_of, key):
    with pytest.raises(UnsupportedModelError, match=f"key gemma3.{key} is 30.0"):
        plan_of(extra={f"gemma3.{key}": 30.0})
