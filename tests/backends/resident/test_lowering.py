"""From plans to the device's ops: what is fused, and what is declined in which words."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

import tiny
import tiny_variants
from tierd.backends.resident import ops
from tierd.backends.resident.lowering import Lowering
from tierd.errors import UnsupportedModelError
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import BlobStore, MatMul, Plan, Rope, StoreRows

WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512, "layers": 3}


def _lower(path: Path) -> tuple[Plan, Lowering]:
    with GGUFFile.open(path) as file:
        plan = build_plan(file)
        return plan, Lowering(plan, file)


def _kinds(lowered: list[ops.Op]) -> list[str]:
    return [type(op).__name__ for op in lowered]


def test_a_layer_of_llama_is_nine_ops(tmp_path: Path) -> None:
    _, lowering = _lower(tiny.write_llama(tmp_path / "m.gguf", format="Q4_1", **WIDE))
    layer = ["FusedNorm", "Product", "Heads", "Attend", "Product"]
    layer += ["FusedNorm", "Product", "Gated", "Product"]
    assert _kinds(lowering.body) == ["Lookup", *layer, *layer, *layer[:5]]
    assert _kinds(lowering.tail) == ["Select", *layer[5:], "FusedNorm"]
    assert _kinds(lowering.head) == ["Product"]
    _, _, joined, *_ = lowering.body
    assert isinstance(joined, ops.Product)
    assert joined.matrix.tensors == tuple(f"blk.0.attn_{part}.weight" for part in "qkv")
    assert joined.outs == ("q", "k", "v")


def test_a_layer_of_gemma3_is_ten_ops(tmp_path: Path) -> None:
    _, lowering = _lower(tiny.write_gemma3(tmp_path / "m.gguf", format="Q4_1", **WIDE))
    counts = Counter(_kinds(lowering.body[2:11]))
    assert counts == {"Product": 4, "FusedNorm": 2, "Heads": 1, "Attend": 1, "Gated": 1}
    (first, *_) = [op for op in lowering.body if isinstance(op, ops.FusedNorm) and op.post]
    assert first.residual == first.total == "x"
    assert first.norm is not None


def test_other_formats_are_not_joined(tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf", format="Q4_1", **{**WIDE, "kv_heads": 1, "head_size": 80})
    _, lowering = _lower(path)  # 80 rows of K do not end a group of 32
    products = [op.outs for op in lowering.body if isinstance(op, ops.Product)]
    assert products[:3] == [("q",), ("k",), ("v",)] or products[:2] == [("q", "k"), ("v",)]


def _terms(lowered: list[ops.Op]) -> list[tuple[str, int]]:
    counted = (ops.FusedNorm, ops.Product, ops.Quantise)
    return [(type(op).__name__, op.terms) for op in lowered if isinstance(op, counted)]


def test_the_classifier_reads_two_terms_others_one(tmp_path: Path) -> None:
    _, lowering = _lower(tiny.write_llama(tmp_path / "m.gguf", format="Q4_1", **WIDE))
    assert {terms for _, terms in _terms(lowering.body)} == {1}
    assert _terms([*lowering.tail, *lowering.head])[-2:] == [("FusedNorm", 2), ("Product", 2)]
    assert {terms for _, terms in _terms([*lowering.tail, *lowering.head])[:-2]} == {1}


def test_a_classifier_of_floats_reads_floats(tmp_path: Path) -> None:
    _, lowering = _lower(tiny.write_llama(tmp_path / "m.gguf", **WIDE))
    assert {terms for _, terms in _terms([*lowering.body, *lowering.tail, *lowering.head])} == {0}


def test_a_buffer_read_in_one_term_and_in_two_is_quantised_for_each(tmp_path: Path) -> None:
    with GGUFFile.open(tiny.write_llama(tmp_path / "m.gguf", format="Q4_1", **WIDE)) as file:
        plan = build_plan(file)
        *before, classifier = plan.ops
        assert isinstance(classifier, MatMul)
        other = MatMul(classifier.src, "blk.0.attn_output.weight", "other")
        buffers = {**plan.buffers, "other": 256}
        lowering = Lowering(
            dataclasses.replace(plan, ops=(*before, other, classifier), buffers=buffers), file
        )
    assert _terms([*lowering.tail, *lowering.head])[-5:] == [
        ("FusedNorm", 0), ("Quantise", 1), ("Product", 1), ("Quantise", 2), ("Product", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("name", tiny_variants.NAMES)
def test_every_op_of_a_plan_is_in_one_of_the_devices(name: str, tmp_path: Path) -> None:
    plan, lowering = _lower(tiny_variants.write(name, tmp_path))
    count = 0
    for op in (*lowering.body, *lowering.tail, *lowering.head):
        match op:
            case ops.FusedNorm():
                count += (op.norm is not None) + 2 * (op.post is not None)
            case ops.Product():
                count += len(op.matrix.tensors) + (op.residual is not None)
            case ops.Heads():
                count += (op.q_norm is not None) + (op.k_norm is not None) + 2 * (op.rope is not None) + 1
            case ops.Quantise():
                pass
            case _:
                count += 1
    assert count == len(plan.ops)


def test_a_recurrent_state_is_declined(tmp_path: Path) -> None:
    with GGUFFile.open(tiny.write_llama(tmp_path / "m.gguf")) as file:
        plan = dataclasses.replace(build_plan(file), stores=(BlobStore(0, 64),))
        with pytest.raises(UnsupportedModelError, match="recurrent state"):
            Lowering(plan, file)


def test_rows_turned_in_another_way_are_declined(tmp_path: Path) -> None:
    with GGUFFile.open(tiny.write_llama(tmp_path / "m.gguf")) as file:
        plan = build_plan(file)
        without = tuple(op for op in plan.ops if not (isinstance(op, Rope) and op.buffer == "q"))
        with pytest.raises(UnsupportedModelError, match="turned in another way"):
            Lowering(dataclasses.replace(plan, ops=without), file)


def test_a_store_without_its_attention_is_declined(tmp_path: Path) -> None:
    with GGUFFile.open(tiny.write_llama(tmp_path / "m.gguf")) as file:
        plan = build_plan(file)
        store = next(index for index, op in enumerate(plan.ops) if isinstance(op, StoreRows))
        with pytest.raises(UnsupportedModelError, match="not followed by the attention"):
            Lowering(dataclasses.replace(plan, ops=plan.ops[: store + 1]), file)
