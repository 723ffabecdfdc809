"""Norm, rope, rotation, encoding and storing of heads, against float64 and the host's codecs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from device_rows import GPU_CODECS, Regions, codec_signs, rope_table, rotated, step_block
from gpu import Gpu, Placed
from hostkernels.calls import Bytes, Floats, encode
from tierd.backends.resident.shapes import shape_table
from tierd.backends.shaping import Shape
from tierd.models.formats import KV_CODECS, KVCodec

EPS = 1e-6
FILL = 0xA5
CONTEXT = 1024
REGION_POSITIONS = 320
ROWS = [(0, 1), (63, 0), (64, 2), (65, 1), (319, 0)]


@dataclass(frozen=True)
class Model:
    """The heads of a layer. pairs: of the rope, 0 for none."""

    codec: KVCodec
    head_size: int = 64
    heads: int = 6
    kv_heads: int = 2
    pairs: int = 0
    interleaved: bool = False
    norm: bool = False
    magnitude: float = 1.0

    @property
    def frequencies(self) -> npt.NDArray[np.float64]:
        return 10000.0 ** -(np.arange(self.pairs) / max(self.pairs, 1))

    def widths(self) -> dict[str, int]:
        return {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}


def _inputs(model: Model, rows: int, seed: int = 0) -> dict[str, Floats]:
    """Heads of q, k and v, shape (rows, heads, head size)."""
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal((rows, heads, model.head_size), np.float32) * 3
        for name, heads in model.widths().items()
    }


def _run(
    gpu: Gpu,
    model: Model,
    inputs: dict[str, Floats],
    rows: list[tuple[int, int]],
    regions: Regions,
    weights: dict[str, Floats] | None = None,
    lanes: int = 32,
) -> Floats:
    """Run the kernel for rows of (position, region) and return q. weights: by push field, or absent."""
    placed: dict[str, Placed] = {}
    push: dict[str, Any] = {}
    for name, heads in inputs.items():
        width = heads[0].size
        padded = np.zeros((len(rows), width + 32), np.float32)
        padded[:, :width] = heads.reshape(len(rows), width)
        placed[name] = gpu.place(padded)
        push |= {name: placed[name].address, f"{name}_stride": width + 32}
    for name in ("q_norm", "k_norm", "shape"):
        push[name] = gpu.place(weights[name]).address if weights and name in weights else 0
    table = rope_table(model.frequencies, CONTEXT, model.magnitude)
    gpu.run(
        "heads",
        model.codec.name,
        (model.heads + 2 * model.kv_heads, len(rows), 1),
        {
            "HEAD_SIZE": model.head_size,
            "LANES": lanes,
            "HEADS": model.heads,
            "KV_HEADS": model.kv_heads,
            "ROPE_PAIRS": model.pairs,
            "ROPE_INTERLEAVED": int(model.interleaved),
        },
        **push,
        **regions.push,
        rope=gpu.place(table).address if model.pairs else 0,
        step=gpu.place(step_block(rows)).address,
        positions=regions.positions,
        eps=EPS,
    )
    return placed["q"].values[:, :-32].reshape(inputs["q"].shape).copy()


def _regions(gpu: Gpu, model: Model) -> Regions:
    return Regions(
        gpu,
        model.codec,
        regions=3,
        heads=model.kv_heads,
        head_size=model.head_size,
        positions=REGION_POSITIONS,
        fill=FILL,
    )


def _turned(model: Model, heads: Floats, norm: Floats | None, position: int) -> npt.NDArray[np.float64]:
    """Normed and turned heads, shape (heads, head size)."""
    x = heads.astype(np.float64)
    if norm is not None:
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * norm
    if model.pairs:
        turn = model.magnitude * np.exp(1j * position * model.frequencies)
        n = 2 * model.pairs
        first = slice(0, n, 2) if model.interleaved else slice(0, model.pairs)
        second = slice(1, n, 2) if model.interleaved else slice(model.pairs, n)
        pairs = (x[:, first] + 1j * x[:, second]) * turn
        x[:, first], x[:, second] = pairs.real, pairs.imag
    return x


def _steps(codec: KVCodec, row: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """A row's quantised values, and its scales."""
    blocks = row.reshape(-1, codec.bytes)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    quants = blocks[:, 2:]
    if codec.name == "tq4":
        return np.concatenate([quants & 15, quants >> 4], axis=1).astype(np.int64), scales
    return quants.view(np.int8).astype(np.int64), scales


def _check_stored(codec: KVCodec, stored: list[Bytes], expected: list[Bytes]) -> None:
    """Equal, but for few values a step apart where the codec rotates: devices may divide in their own way."""
    if codec.name == "f16":
        np.testing.assert_array_equal(stored, expected)
        return
    pairs = [(_steps(codec, a), _steps(codec, b)) for a, b in zip(stored, expected, strict=True)]
    apart = np.concatenate([np.abs(a[0] - b[0]).ravel() for a, b in pairs])
    assert apart.max() <= 1
    assert (apart > 0).mean() <= 0.002
    np.testing.assert_allclose([a[1] for a, _ in pairs], [b[1] for _, b in pairs], rtol=1e-3)


@pytest.mark.parametrize("codec", [KV_CODECS[name] for name in GPU_CODECS], ids=lambda codec: codec.name)
@pytest.mark.parametrize("head_size", [32, 64, 256])
def test_stores_what_the_host_would_where_the_row_belongs_and_nowhere_else(
    gpu: Gpu, codec: KVCodec, head_size: int
) -> None:
    model = Model(codec, head_size)
    inputs = _inputs(model, len(ROWS))
    inputs["k"][1, 0] = 0.0
    inputs["v"][2, 1] *= 1e-6
    inputs["v"][3, 0, 5] = 300.0
    regions = _regions(gpu, model)
    _run(gpu, model, inputs, ROWS, regions)
    stored, expected = [], []
    for row, (position, region) in enumerate(ROWS):
        for which in ("k", "v"):
            for head in range(model.kv_heads):
                stored.append(regions.row(which, region, head, position))
                expected.append(encode(codec, inputs[which][row, head]))
                regions.put(which, region, head, position, np.full_like(expected[-1], FILL))
    _check_stored(codec, stored, expected)
    assert all((plane == FILL).all() for plane in regions.copy())


@pytest.mark.parametrize(
    "model",
    [
        Model(KV_CODECS["f16"], pairs=32),
        Model(KV_CODECS["f16"], 40, pairs=12, interleaved=True, norm=True),
        Model(KV_CODECS["q8_0"], 96, pairs=48, interleaved=True, magnitude=1.3),
        Model(KV_CODECS["tq4"], 128, pairs=16, norm=True),
    ],
    ids=lambda model: f"{model.codec.name}-{model.head_size}",
)
def test_norms_turns_and_rotates(gpu: Gpu, model: Model) -> None:
    inputs = _inputs(model, len(ROWS))
    random = np.random.default_rng(1)
    weights = {
        name: (random.standard_normal(model.head_size) * 0.2 + 1).astype(np.float32)
        for name in ("q_norm", "k_norm")
    }
    regions = _regions(gpu, model)
    q = _run(gpu, model, inputs, ROWS, regions, weights if model.norm else None)
    stored, expected = [], []
    for row, (position, region) in enumerate(ROWS):
        turned = {
            name: _turned(model, inputs[name][row], weights[f"{name}_norm"] if model.norm else None, position)
            for name in ("q", "k")
        }
        reference = rotated(model.codec, turned["q"], codec_signs(model.head_size))
        np.testing.assert_allclose(q[row], reference, atol=1e-5 * np.abs(reference).max())
        for head in range(model.kv_heads):
            row_bytes = regions.row("k", region, head, position)
            host = encode(model.codec, turned["k"][head].astype(np.float32))
            if model.codec.name == "f16":
                stored.append(row_bytes.view(np.float16).astype(np.float64))
                expected.append(host.view(np.float16).astype(np.float64))
            else:
                (a, a_scale), (b, b_scale) = _steps(model.codec, row_bytes), _steps(model.codec, host)
                stored.append((a * a_scale).ravel())
                expected.append((b * b_scale).ravel())
                assert np.abs(a - b).max() <= 1
                assert (a != b).mean() < 0.05
    if model.codec.name == "f16":
        np.testing.assert_allclose(stored, expected, rtol=1e-3, atol=1e-5)


def test_lanes_change_no_bit(gpu: Gpu) -> None:
    model = Model(KV_CODECS["tq4"], 128, pairs=16)
    inputs, one = _inputs(model, len(ROWS)), np.ones(model.head_size, np.float32)
    found = []
    for lanes in (8, 32):
        regions = _regions(gpu, model)
        q = _run(gpu, model, inputs, ROWS, regions, {"q_norm": one, "k_norm": one}, lanes)
        found.append([q, *regions.copy()])
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("lanes", [8, 32])
def test_shapes_keys_as_the_host_does(gpu: Gpu, lanes: int) -> None:
    model = Model(KV_CODECS["tq4"])
    inputs = _inputs(model, len(ROWS))
    random = np.random.default_rng(2)
    size = model.head_size
    shape = Shape(
        random.uniform(0.5, 2.0, (model.kv_heads, size)).astype(np.float32),
        (random.standard_normal((model.kv_heads, size * (size - 1) // 2)) * 0.1).astype(np.float32),
    )
    regions = _regions(gpu, model)
    q = _run(gpu, model, inputs, ROWS, regions, {"shape": shape_table(shape)}, lanes)
    of_query = np.repeat(1 / shape.key_scale, model.heads // model.kv_heads, axis=0)
    reference = rotated(model.codec, inputs["q"].astype(np.float64), of_query * codec_signs(size))
    np.testing.assert_allclose(q, reference, atol=1e-5 * np.abs(reference).max())
    for row, (position, region) in enumerate(ROWS):
        for head in range(model.kv_heads):
            scale, feedback = shape.key_scale[head], shape.key_feedback[head]
            for which, expected in (
                ("k", encode(model.codec, inputs["k"][row, head], scale=scale, feedback=feedback)),
                ("v", encode(model.codec, inputs["v"][row, head])),
            ):
                np.testing.assert_array_equal(regions.row(which, region, head, position), expected)


@pytest.mark.parametrize("codec", [KV_CODECS[name] for name in GPU_CODECS], ids=lambda codec: codec.name)
def test_a_row_is_the_same_alone_and_among_others(gpu: Gpu, codec: KVCodec) -> None:
    model = Model(codec, pairs=32, norm=True)
    inputs = _inputs(model, len(ROWS))
    weights = {name: np.full(model.head_size, 1.25, np.float32) for name in ("q_norm", "k_norm")}
    together = _regions(gpu, model)
    q = _run(gpu, model, inputs, ROWS, together, weights)
    for row, (position, region) in enumerate(ROWS):
        alone = _regions(gpu, model)
        mine = {name: heads[row : row + 1] for name, heads in inputs.items()}
        own = _run(gpu, model, mine, [(position, region)], alone, weights)
        np.testing.assert_array_equal(own[0].view(np.uint32), q[row].view(np.uint32))
        for which in ("k", "v"):
            for head in range(model.kv_heads):
                place = (which, region, head, position)
                np.testing.assert_array_equal(alone.row(*place), together.row(*place))
