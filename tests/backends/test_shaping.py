"""What shapes the errors of stored keys: moments, scales and feedback."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tiny
from hostkernels.calls import decode, encode
from tierd.backends import shaping
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan, Rope, RopeSpec

TQ4 = KV_CODECS["tq4"]
POSITIONS = 512


def _llama(folder: Path, **options: object) -> GGUFFile:
    return GGUFFile.open(tiny.write_llama(folder / "llama.gguf", head_size=32, ff=64, **options))


@pytest.fixture(params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GGUFFile]:
    if request.param == "llama":
        file = _llama(tmp_path, n_embd=64, heads=4, kv_heads=2, biases=True)
    else:
        file = GGUFFile.open(tiny.write_gemma3(tmp_path / "gemma3.gguf", head_size=64))
    with file:
        yield file


def _second_moments(rows: np.ndarray) -> np.ndarray:
    """(heads, rows, n) -> (heads, n, n)."""
    return rows.swapaxes(1, 2) @ rows / rows.shape[1]


def _turn(heads: np.ndarray, spec: RopeSpec, position: int) -> np.ndarray:
    pairs = len(spec.frequencies)
    cos, sin = (f(position * np.asarray(spec.frequencies)) for f in (np.cos, np.sin))
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        if spec.interleaved
        else (slice(0, pairs), slice(pairs, 2 * pairs))
    )
    turned = heads.copy()
    turned[..., first] = heads[..., first] * cos - heads[..., second] * sin
    turned[..., second] = heads[..., first] * sin + heads[..., second] * cos
    return turned


def test_other_codecs_are_not_shaped(model: GGUFFile) -> None:
    for codec in ("f32", "f16", "q8_0"):
        assert shaping.shapes(build_plan(model), model, KV_CODECS[codec]) == {}


def _keys_and_queries(plan: Plan, file: GGUFFile, layer: int) -> tuple[np.ndarray, np.ndarray, RopeSpec]:
    """Keys (kv heads, rows, n) and queries (heads, rows, n) of random rows, unturned; the layer's rope."""
    spread = np.square(shaping.floats(file, "token_embd.weight")).mean(axis=0)
    random = np.random.default_rng(0)
    x = random.standard_normal((20_000, spread.size)) * spread / spread.mean()
    x *= shaping.floats(file, f"blk.{layer}.attn_norm.weight")
    store = plan.stores[layer]
    parts = []
    for name in ("k", "q"):
        rows = x @ shaping.floats(file, f"blk.{layer}.attn_{name}.weight").T
        if f"blk.{layer}.attn_{name}.bias" in file.tensors:
            rows += shaping.floats(file, f"blk.{layer}.attn_{name}.bias")
        heads = rows.reshape(len(rows), -1, store.head_size).swapaxes(0, 1)
        if f"blk.{layer}.attn_{name}_norm.weight" in file.tensors:
            heads = heads / np.sqrt(np.square(heads).mean(axis=(1, 2), keepdims=True))
            heads *= shaping.floats(file, f"blk.{layer}.attn_{name}_norm.weight")
        parts.append(heads)
    ropes = [op.spec for op in plan.ops if isinstance(op, Rope)]
    return parts[0], parts[1], ropes[2 * layer]


def _true_moments(plan: Plan, file: GGUFFile, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Second moments (kv heads, n, n) of turned keys, and of the queries that meet them."""
    keys, queries, rope = _keys_and_queries(plan, file, layer)
    of_keys, of_queries = (
        sum(_second_moments(_turn(rows[:, at::POSITIONS], rope, at)) for at in range(POSITIONS))
        for rows in (keys, queries)
    )
    return of_keys, of_queries.reshape(len(keys), -1, *of_keys.shape[1:]).sum(axis=1)


def test_scales_even_out_what_errors_cost(model: GGUFFile) -> None:
    """In every layer, with its rope, head norms and biases: s^2 = rms(q) / rms(k), times any factor."""
    plan = build_plan(model)
    found = shaping.shapes(plan, model, TQ4)
    assert set(found) == {store.layer for store in plan.stores}
    for layer, shape in found.items():
        keys, queries = (np.einsum("hii->hi", moments) for moments in _true_moments(plan, model, layer))
        off = np.log(np.sqrt(queries / keys)) / 2 - np.log(shape.key_scale)
        assert np.abs(off - off.mean(axis=1, keepdims=True)).max() < 0.1


def test_feedback_makes_errors_cost_less(tmp_path: Path) -> None:
    """Where hardly anything is turned, queries favour some directions."""
    with _llama(tmp_path, n_embd=32, heads=2, kv_heads=2, rope_dimensions=2) as file:
        plan = build_plan(file)
        for layer, shape in shaping.shapes(plan, file, TQ4).items():
            of_keys, of_queries = _true_moments(plan, file, layer)
            for head, (scale, feedback) in enumerate(zip(shape.key_scale, shape.key_feedback, strict=True)):
                keys = np.random.default_rng(1).multivariate_normal(np.zeros(scale.size), of_keys[head], 100)
                costs = []
                for chosen in (None, feedback):
                    stored = [encode(TQ4, key, scale=scale, feedback=chosen) for key in np.float32(keys)]
                    errors = np.stack([decode(TQ4, row, scale.size, scale=scale) for row in stored]) - keys
                    costs.append(np.einsum("ni,ij,nj->", errors, of_queries[head], errors))
                assert costs[1] < 0.75 * costs[0]


def test_weights_out_of_range_leave_keys_plain(model: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    floats = shaping.floats
    monkeypatch.setattr(shaping, "floats", lambda *arguments: floats(*arguments) * np.float32(1e30))
    assert shaping.shapes(build_plan(model), model, TQ4) == {}


def test_keys_that_come_otherwise_are_left_plain(tmp_path: Path) -> None:
    """Here: q and k of the last of two layers, without the norm before their matrices."""
    with _llama(tmp_path) as file:
        plan = build_plan(file)
        ops = tuple(op for op in plan.ops if getattr(op, "weight", "") != "blk.1.attn_norm.weight")
        assert set(shaping.shapes(dataclasses.replace(plan, ops=ops), file, TQ4)) == {0}
