from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest

from tierd.errors import ModelError, ModelFileError
from tierd.models import GGUFFile, build_plan
from tierd.models.check import check_plan
from tierd.models.plan import (
    Activation,
    Add,
    Attention,
    BlobStore,
    Embed,
    Gate,
    MatMul,
    Norm,
    Rope,
    RopeSpec,
    RowStore,
    SelectRows,
    StoreRows,
)
from tiny import write_llama


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with GGUFFile.open(write_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", layers=1)) as file:
        yield file


@pytest.fixture(scope="module")
def sound(file):
    return build_plan(file)


def place(plan, kind, number=0):
    return [index for index, op in enumerate(plan.ops) if isinstance(op, kind)][number]


def with_op(plan, kind, number=0, **changes):
    """The plan with one field of one op changed."""
    at = place(plan, kind, number)
    return replace(plan, ops=(*plan.ops[:at], replace(plan.ops[at], **changes), *plan.ops[at + 1 :]))


def without_op(plan, kind, number=0):
    at = place(plan, kind, number)
    return replace(plan, ops=plan.ops[:at] + plan.ops[at + 1 :])


def after_end(plan, op):
    return replace(plan, ops=(*plan.ops, op))


def widened(plan, buffer, width):
    return replace(plan, buffers={**plan.buffers, buffer: width})


SPEC = RopeSpec((1.0,) * 20)

WRONG_PLANS = {
    "undeclared buffer": (lambda p: with_op(p, Embed, out="nowhere"), "buffer nowhere is not declared"),
    "empty buffer": (lambda p: widened(p, "spare", 0), "buffer spare is 0 wide"),
    "read first": (lambda p: without_op(p, Embed), "Norm.*buffer x is read before"),
    "read after SelectRows": (
        lambda p: with_op(p, Norm, 1, src="x"),
        "Norm.*buffer x is read before",
    ),
    "embed scale": (lambda p: with_op(p, Embed, scale=float("nan")), "Embed.*scale nan"),
    "norm width": (lambda p: with_op(p, Norm, out="q"), "Norm.*widths 96, 120 differ"),
    "norm heads": (lambda p: with_op(p, Norm, heads=7), "Norm.*7 heads do not divide a width of 96"),
    "no norm heads": (lambda p: with_op(p, Norm, heads=0), "Norm.*0 heads do not divide"),
    "norm eps": (lambda p: with_op(p, Norm, eps=0.0), "Norm.*eps 0.0"),
    "matmul in place": (lambda p: with_op(p, MatMul, 3, src="h", out="h"), "MatMul.*writes h while"),
    "rope heads": (lambda p: with_op(p, Rope, heads=7), "Rope.*7 heads do not divide"),
    "rope too wide": (
        lambda p: with_op(p, Rope, spec=RopeSpec((1.0,) * 21)),
        "turns 42 elements of heads of 40",
    ),
    "rope of nothing": (lambda p: with_op(p, Rope, spec=RopeSpec(())), "turns 0 elements"),
    "rope number": (lambda p: with_op(p, Rope, spec=RopeSpec((float("inf"),))), "not finite"),
    "rope magnitude": (lambda p: with_op(p, Rope, spec=replace(SPEC, magnitude=float("nan"))), "not finite"),
    "store missing": (lambda p: replace(p, stores=()), "StoreRows.*layer 0 has no row store"),
    "store is a blob": (
        lambda p: replace(p, stores=(BlobStore(0, 8),)),
        "StoreRows.*layer 0 has no row store",
    ),
    "store twice": (lambda p: replace(p, stores=p.stores * 2), "two stores belong to the same layer"),
    "store empty": (lambda p: replace(p, stores=(RowStore(0, 0, 40),)), "store of layer 0 is empty"),
    "store width": (
        lambda p: replace(p, stores=(RowStore(0, 2, 40),)),
        "StoreRows.*widths 40, 40, 80 differ",
    ),
    "store unused": (
        lambda p: replace(p, stores=(*p.stores, RowStore(1, 1, 40))),
        "layer 1 was never written",
    ),
    "stored twice": (
        lambda p: replace(p, ops=tuple(op for op in p.ops for _ in range(1 + isinstance(op, StoreRows)))),
        "a second time",
    ),
    "attention first": (lambda p: without_op(p, StoreRows), "Attention.*before it is written"),
    "attention in place": (lambda p: with_op(p, Attention, out="q"), "Attention.*writes q while"),
    "attention heads": (lambda p: with_op(p, Attention, heads=4), "Attention.*widths 120, 120, 160 differ"),
    "attention no heads": (lambda p: with_op(p, Attention, heads=0), "Attention.*0 heads over 1"),
    "attention scale": (lambda p: with_op(p, Attention, scale=0.0), "Attention.*scale 0.0"),
    "attention window": (lambda p: with_op(p, Attention, window=-1), "Attention.*window -1"),
    "gate width": (lambda p: with_op(p, Gate, up="wanted"), "Gate.*widths 160, 96, 160 differ"),
    "add width": (lambda p: with_op(p, Add, b="q"), "Add.*widths 96, 120, 96 differ"),
    "select in place": (lambda p: with_op(p, SelectRows, out="x"), "SelectRows.*writes x while"),
    "select width": (lambda p: with_op(p, SelectRows, out="q"), "SelectRows.*widths 96, 120 differ"),
    "never selected": (
        lambda p: with_op(without_op(p, SelectRows), Add, 1, a="x", out="x"),
        "wanted is read",
    ),
    "selected twice": (lambda p: after_end(p, SelectRows("h", "x")), "stands after another SelectRows"),
    "late embed": (lambda p: after_end(p, Embed("token_embd.weight", "x")), "Embed.*stands after SelectRows"),
    "late rope": (lambda p: after_end(p, Rope("h", 2, SPEC)), "Rope.*stands after SelectRows"),
    "late store": (lambda p: after_end(p, StoreRows("k", "v", 0)), "StoreRows.*stands after SelectRows"),
    "late attention": (
        lambda p: after_end(p, Attention("q", "attended", 0, 3, 1.0)),
        "Attention.*stands after SelectRows",
    ),
    "logits elsewhere": (lambda p: replace(p, logits="h"), "widths 96, 301 differ"),
    "no context": (lambda p: replace(p, context=0), "context is 0"),
}

WRONG_WEIGHTS = {
    "missing": (lambda p: with_op(p, MatMul, weight="blk.7.x"), "tensor blk.7.x is missing"),
    "matmul": (
        lambda p: with_op(p, MatMul, weight="blk.0.attn_k.weight"),
        r"attn_k.weight has shape \(40, 96\), llama needs \(120, 96\) for op 2 \(MatMul\)",
    ),
    "matmul of a vector": (
        lambda p: with_op(p, MatMul, weight="output_norm.weight"),
        r"output_norm.weight has shape \(96,\), llama needs \(120, 96\)",
    ),
    "bias": (
        lambda p: with_op(p, MatMul, bias="output_norm.weight"),
        r"output_norm.weight has shape \(96,\), llama needs \(120,\)",
    ),
    "norm": (
        lambda p: with_op(p, Norm, heads=2),
        r"attn_norm.weight has shape \(96,\), llama needs \(48,\)",
    ),
    "vocabulary": (
        lambda p: replace(p, vocabulary=300),
        r"token_embd.weight has shape \(301, 96\), llama needs \(300, 96\)",
    ),
}


def test_a_sound_plan_passes(file, sound):
    check_plan(sound, file)


@pytest.mark.parametrize("case", WRONG_PLANS)
def test_wrong_plans(file, sound, case):
    change, message = WRONG_PLANS[case]
    with pytest.raises(ModelError, match=f"plan of llama is wrong at .*{message}") as caught:
        check_plan(change(sound), file)
    assert not isinstance(caught.value, ModelFileError)


@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_wrong_weights(file, sound, case):
    change, message = WRONG_WEIGHTS[case]
    with pytest.raises(ModelFileError, match=message):
        check_plan(change(sound), file)


def test_a_plan_without_select_rows(file, sound):
    at = place(sound, SelectRows)
    renamed = {"wanted": "x"}
    ops = tuple(
        replace(op, **{name: renamed.get(value, value) for name, value in fields.items()})
        for op in sound.ops[:at] + sound.ops[at + 1 :]
        for fields in [{name: getattr(op, name) for name in ("src", "out", "a", "b") if hasattr(op, name)}]
    )
    with pytest.raises(ModelError, match="no SelectRows has been seen"):
        check_plan(replace(sound, ops=ops), file)


def test_activations_do_not_matter(file, sound):
    check_plan(with_op(sound, Gate, activation=Activation.GELU), file)


def test_a_quantised_norm_is_refused(tmp_path, sound):
    path = tmp_path / "norm.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    with GGUFFile.open(write_llama(tmp_path / "tiny.gguf", layers=1)) as tiny:
        for name, tensor in tiny.tensors.items():
            values = tiny.data(name).view(np.float32).reshape(tensor.shape)
            quantised = name == "output_norm.weight"
            kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError, match=r"output_norm\.weight is in Q8_0"):
        check_plan(sound, file)
