from __future__ import annotations

import pytest

from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import Activation, Attention, Embed, Gate, MatMul, Rope, RowStore, SelectRows
from tiny import write_llama


@pytest.fixture
def plan_of(tmp_path):
    def open_and_plan(**arguments):
        with GGUFFile.open(write_llama(tmp_path / "tiny.gguf", **arguments)) as file:
            return build_plan(file)

    return open_and_plan


def ops(plan, kind):
    return [op for op in plan.ops if isinstance(op, kind)]


def test_smollm2(smollm2_path):
    with GGUFFile.open(smollm2_path) as file:
        plan = build_plan(file)
    assert plan.architecture == "llama"
    assert (plan.vocabulary, plan.context) == (49_152, 8192)
    assert plan.stores == tuple(RowStore(layer, 3, 64) for layer in range(30))
    assert {op.scale for op in ops(plan, Attention)} == {0.125}
    assert {op.window for op in ops(plan, Attention)} == {0}
    assert {op.activation for op in ops(plan, Gate)} == {Activation.SILU}
    (spec,) = {op.spec for op in ops(plan, Rope)}
    assert spec.interleaved
    assert spec.magnitude == 1.0
    assert len(spec.frequencies) == 32
    assert spec.frequencies[1] == pytest.approx(100_000 ** (-1 / 32))
    assert ops(plan, Embed)[0].scale == 1.0


def test_output_is_tied_or_separate(plan_of):
    assert ops(plan_of(), MatMul)[-1].weight == "token_embd.weight"
    assert ops(plan_of(tied=False), MatMul)[-1].weight == "output.weight"


def test_biases_are_used_where_the_file_has_them(plan_of):
    assert {op.bias for op in ops(plan_of(), MatMul)} == {None}
    biased = ops(plan_of(biases=True), MatMul)
    assert biased[0].bias == "blk.0.attn_q.bias"
    assert biased[-1].bias is None


def test_rows_are_selected_before_the_last_feed_forward(plan_of):
    kinds = [type(op) for op in plan_of(layers=2).ops]
    assert kinds.count(SelectRows) == 1
    at = kinds.index(SelectRows)
    assert kinds[:at].count(Gate) == 1
    assert kinds[at:].count(Gate) == 1
    assert Attention not in kinds[at:]


def test_attention_scale_of_the_file(plan_of):
    plan = plan_of(extra={"llama.attention.scale": 0.25})
    assert {op.scale for op in ops(plan, Attention)} == {0.25}


@pytest.mark.parametrize(
    ("key", "value"),
    [("expert_count", 8), ("attention.sliding_window", 4096), ("attention.causal", False)],
)
def test_features_that_are_refused(plan_of, key, value):
    with pytest.raises(UnsupportedModelError, match=f"key llama.{key} is {value}"):
        plan_of(extra={f"llama.{key}": value})


def test_refused_features_at_their_neutral_values(plan_of):
    plan_of(extra={"llama.expert_count": 0, "llama.attention.causal": True})


@pytest.mark.parametrize(
    ("factors", "message"),
    [([1.0] * 8, r"rope_freqs.weight has shape \(8,\) in F32; \(20,\)"), ([0.0] * 20, "not above zero"),
     ([float("nan")] * 20, "not above zero")],
)  # fmt: skip
def test_rope_factors_that_cannot_be(plan_of, factors, message):
    with pytest.raises(ModelFileError, match=message):
        plan_of(rope_factors=factors)
