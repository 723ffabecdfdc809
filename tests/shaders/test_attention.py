"""Attention over regions of encoded rows, against float64 over the same rows as the host decodes them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from device_rows import GPU_CODECS, Regions, codec_signs, rotated, step_block
from gpu import Gpu
from hostkernels.calls import Floats, decode, encode
from tierd.models.formats import KV_CODECS, KVCodec

TILE = 64
REGION_POSITIONS = 256
REGIONS = 2
# Around the edges of tiles, in both regions, two of them one behind the other.
ROWS = [(0, 0), (63, 1), (64, 0), (65, 0), (127, 1), (200, 1)]
SENTINEL = 0x7FC0BEEF


@dataclass(frozen=True)
class Model:
    """A layer's attention, and how its kernel is made. queries: 0 for the whole group. units: 0 for none."""

    codec: KVCodec
    head_size: int = 64
    group: int = 3
    kv_heads: int = 2
    window: int = 0
    queries: int = 0
    lanes: int = 64
    query_rows: int = 1
    units: int = 2
    held: int = 0

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    def scale(self) -> float:
        return float(self.head_size**-0.5)

    @property
    def vectors(self) -> int:
        return (self.queries or self.group) * self.query_rows

    def tile_bytes(self) -> int:
        """Of partials, by shaders/attention.comp."""
        quads = self.head_size // 4
        sharers, lane_quads = max(self.lanes // quads, 1), -(-quads // self.lanes)
        return 16 * (-(-self.vectors // sharers) * lane_quads * self.lanes + self.vectors)


class Layer:
    """Rows of K and V in every position of every region; the host's reading of them in float64."""

    def __init__(self, gpu: Gpu, model: Model) -> None:
        random = np.random.default_rng(7)
        self.gpu = gpu
        shape = (2, REGIONS, model.kv_heads, REGION_POSITIONS, model.head_size)
        rows = random.standard_normal(shape, np.float32)
        # Few directions stand out, so that some scores do.
        rows += 2 * random.standard_normal((2, REGIONS, model.kv_heads, 1, model.head_size), np.float32)
        self.read = np.empty(shape)
        self.regions = Regions(
            gpu,
            model.codec,
            regions=REGIONS,
            heads=model.kv_heads,
            head_size=model.head_size,
            positions=REGION_POSITIONS,
        )
        for index in np.ndindex(*shape[:-1]):
            stored = encode(model.codec, rows[index])
            self.read[index] = decode(model.codec, stored, model.head_size)
            self.regions.put("kv"[index[0]], *index[1:], stored)

    def run(
        self,
        model: Model,
        q: Floats,
        rows: list[tuple[int, int]],
        splits: int = 1,
        quantised: bool = False,
    ) -> npt.NDArray[np.uint32]:
        """Return the output's words, shape (rows, width); for quantised ones (rows, quants, then scales)."""
        gpu, queries = self.gpu, model.queries or model.group
        width = model.heads * model.head_size
        groups = (model.kv_heads * -(-model.group // queries), len(rows), splits)
        basis = rotated(
            model.codec,
            q.reshape(len(rows), model.heads, model.head_size).astype(np.float64),
            codec_signs(model.head_size),
        )
        out = gpu.place(np.full((len(rows) + 1, width), SENTINEL, np.uint32))
        scales = gpu.place(np.full((len(rows) + 1, width // 32 * 2), SENTINEL, np.uint32))
        tiles = REGION_POSITIONS // TILE
        counters = gpu.place(np.zeros(groups[0] * groups[1], np.uint32))
        partials = gpu.place(np.full(groups[0] * groups[1] * tiles * model.tile_bytes(), 0xFF, np.uint8))
        gpu.run(
            "attention",
            model.codec.name,
            groups,
            {
                "HEAD_SIZE": model.head_size,
                "LANES": model.lanes,
                "GROUP": model.group,
                "QUERIES": queries,
                "QUERY_ROWS": model.query_rows,
                "OUT_QUANTISED": int(quantised),
                "HELD": model.held or model.vectors,
                "SCORED": -(-model.vectors // max(model.lanes // TILE, 1)),
                "UNITS": model.units,
            },
            q=gpu.place(basis.reshape(len(rows), width).astype(np.float32)).address,
            **self.regions.push,
            step=gpu.place(step_block(rows)).address,
            out=out.address,
            out_scales=scales.address,
            partials=partials.address,
            counters=counters.address,
            q_stride=width,
            out_stride=width,
            kv_heads=model.kv_heads,
            positions=REGION_POSITIONS,
            window=model.window,
            partial_tiles=tiles,
            scale=model.scale(),
        )
        assert not counters.values.any()
        if not quantised:
            assert (out.values[-1] == SENTINEL).all()
            return out.values[:-1].copy()
        quants = out.values.reshape(-1)[: len(rows) * width // 4].reshape(len(rows), -1)
        return np.concatenate([quants, scales.values[:-1]], axis=1)

    def reference(self, model: Model, q: Floats, rows: list[tuple[int, int]]) -> npt.NDArray[np.float64]:
        """Return what attention is, shape (rows, width)."""
        out = np.empty((len(rows), model.heads, model.head_size))
        queries = q.reshape(out.shape).astype(np.float64)
        for row, (position, region) in enumerate(rows):
            first = max(0, position + 1 - model.window) if model.window else 0
            for head in range(model.heads):
                keys, values = self.read[:, region, head // model.group, first : position + 1]
                scores = keys @ queries[row, head] * model.scale()
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ values / weights.sum()
        return out.reshape(len(rows), -1)


@functools.cache
def _layer(gpu: Gpu, codec: str, head_size: int, kv_heads: int) -> Layer:
    return Layer(gpu, Model(KV_CODECS[codec], head_size, kv_heads=kv_heads))


def layer_of(gpu: Gpu, model: Model) -> Layer:
    return _layer(gpu, model.codec.name, model.head_size, model.kv_heads)


def _queries(model: Model, rows: int) -> Floats:
    return np.random.default_rng(rows).standard_normal((rows, model.heads * model.head_size), np.float32)


F16, Q8_0, TQ4 = (KV_CODECS[name] for name in GPU_CODECS)
# Those of which all lanes read for themselves are as software devices take them.
DEAR = {"lanes": 8, "units": 0}
MODELS = [
    Model(F16),
    Model(F16, **DEAR),
    Model(F16, 32, group=8, window=64),
    Model(F16, 40, group=1),
    Model(F16, 256, group=4, kv_heads=1, window=70, lanes=128, units=1),
    Model(F16, 128, group=8, kv_heads=1, queries=3, lanes=32, units=0),
    Model(F16, 1024, group=1, kv_heads=1, units=8),
    Model(Q8_0, 64, group=3, window=1),
    Model(Q8_0, 96, group=4, kv_heads=1, **DEAR),
    Model(Q8_0, 256, group=1, kv_heads=1, lanes=192, units=1),
    Model(TQ4, 64, group=3),
    Model(TQ4, 128, group=4, kv_heads=1, window=130, **DEAR),
    Model(TQ4, 256, group=5, kv_heads=1, queries=3),
]
# Of many query heads to a K/V head.
WIDE_MODELS = [
    Model(F16, 32, group=16, kv_heads=1, **DEAR),
    Model(Q8_0, 32, group=17, kv_heads=1, lanes=192, units=1, held=4),
    Model(TQ4, 32, group=16, kv_heads=1),
]


def _name(model: Model) -> str:
    form = f"lanes{model.lanes}-units{model.units}-rows{model.query_rows}"
    return f"{model.codec.name}-{model.head_size}x{model.group}-window{model.window}-{form}"


@pytest.mark.parametrize("model", [*MODELS, *WIDE_MODELS], ids=_name)
def test_is_attention(gpu: Gpu, model: Model) -> None:
    layer, q = layer_of(gpu, model), _queries(model, len(ROWS))
    out = layer.run(model, q, ROWS).view(np.float32)
    np.testing.assert_allclose(out, layer.reference(model, q, ROWS), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("model", [MODELS[0], MODELS[9], MODELS[12]], ids=_name)
def test_splits_change_no_bit(gpu: Gpu, model: Model) -> None:
    layer, q = layer_of(gpu, model), _queries(model, len(ROWS))
    whole = layer.run(model, q, ROWS)
    for splits in (3, 7):
        np.testing.assert_array_equal(layer.run(model, q, ROWS, splits), whole)


@pytest.mark.parametrize(
    ("model", "other"),
    [
        (MODELS[0], MODELS[1]),
        (MODELS[3], Model(F16, 40, group=1, lanes=16, units=0)),
        (MODELS[8], Model(Q8_0, 96, group=4, kv_heads=1)),
        (MODELS[11], Model(TQ4, 128, group=4, kv_heads=1, window=130, queries=3, lanes=128)),
    ],
    ids=_name,
)
def test_forms_change_no_bit(gpu: Gpu, model: Model, other: Model) -> None:
    layer, q = layer_of(gpu, model), _queries(model, len(ROWS))
    np.testing.assert_array_equal(layer.run(other, q, ROWS), layer.run(model, q, ROWS))


@pytest.mark.parametrize("model", [MODELS[0], MODELS[8], MODELS[10]], ids=_name)
def test_a_row_is_the_same_alone_and_among_others(gpu: Gpu, model: Model) -> None:
    layer, q = layer_of(gpu, model), _queries(model, len(ROWS))
    together = layer.run(model, q, ROWS)
    for row, place in enumerate(ROWS):
        np.testing.assert_array_equal(layer.run(model, q[row : row + 1], [place])[0], together[row])


@pytest.mark.parametrize(
    "model",
    [
        Model(F16, query_rows=4, **DEAR),
        Model(F16, window=70, query_rows=8, lanes=128),
        Model(Q8_0, query_rows=6),
        Model(TQ4, query_rows=4, units=8),
        Model(Q8_0, 96, group=4, kv_heads=1, window=3, query_rows=3, **DEAR),
        Model(TQ4, 256, group=5, kv_heads=1, queries=3, lanes=128, query_rows=2),
    ],
    ids=_name,
)
def test_rows_that_share_what_is_read_are_the_same(gpu: Gpu, model: Model) -> None:
    """Chunks of two sequences, the first over the edge of a tile, a row of the other's between them."""
    rows = [
        *((position, 0) for position in range(58, 71)),
        (127, 1),
        *((position, 1) for position in range(5)),
    ]
    rows += [(position, 0) for position in range(71, 75)]
    layer, q = layer_of(gpu, model), _queries(model, len(rows))
    expected = layer.run(replace(model, query_rows=1, lanes=64, units=2), q, rows)
    np.testing.assert_array_equal(layer.run(model, q, rows), expected)
    reference = layer.reference(model, q, rows)
    np.testing.assert_allclose(expected.view(np.float32), reference, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(
    "model",
    [
        Model(F16, kv_heads=1, window=64, **DEAR),
        Model(F16, kv_heads=1, window=64, query_rows=4, **DEAR),
        Model(F16, kv_heads=1, window=64, query_rows=4),
    ],
    ids=_name,
)
def test_what_a_row_does_not_see_may_be_anything(gpu: Gpu, model: Model) -> None:
    layer, rows = Layer(gpu, model), [(position, 0) for position in range(70, 78)]
    q = _queries(model, len(rows))
    before = layer.run(model, q, rows)
    nothing = np.full(2 * model.head_size, 0xFF, np.uint8)
    infinite = np.full(model.head_size, np.inf, np.float16).view(np.uint8)
    for which in "kv":
        # The first row sees neither; the others see the second, and what comes of that is theirs.
        for position in (*range(7), *range(78, 128)):
            layer.regions.put(which, 0, 0, position, nothing)
        layer.regions.put(which, 0, 0, 71, infinite)
    after = layer.run(model, q, rows)
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.isfinite(after[1:].view(np.float32)).all()


@pytest.mark.parametrize("model", [MODELS[4], replace(MODELS[10], query_rows=2, **DEAR)], ids=_name)
def test_quantises_its_output(gpu: Gpu, model: Model) -> None:
    layer, q = layer_of(gpu, model), _queries(model, len(ROWS))
    floats = layer.run(model, q, ROWS).view(np.float32).reshape(len(ROWS), -1, 32)
    words = layer.run(model, q, ROWS, quantised=True)
    quants = words[:, : floats[0].size // 4].copy().view(np.int8).reshape(floats.shape)
    scales = words[:, floats[0].size // 4 :].reshape(len(ROWS), -1, 2)
    most = np.abs(floats).max(axis=-1, keepdims=True)
    np.testing.assert_array_equal(scales[..., :1].copy().view(np.float32), most / np.float32(127))
    np.testing.assert_allclose(quants, floats * (127 / most), atol=0.5001)
    sums = quants.reshape(len(ROWS), -1, 2, 16).sum(axis=-1, dtype=np.int16)
    np.testing.assert_array_equal(scales[..., 1:].copy().view(np.int16), sums)
