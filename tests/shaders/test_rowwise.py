"""The kernels that work row by row: against float64, and against the quantisation written in numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu import Gpu, Placed

Floats = npt.NDArray[np.float32]
BLOCK = 32
UNTOUCHED = np.float32(-7.0)


def _rows(values: npt.NDArray[Any], more: int = 0) -> Floats:
    """Lay rows out as a float buffer does, `more` blocks apart; nothing may read what lies past the width."""
    rows, width = values.shape
    padded = np.full((rows, (-(-width // BLOCK) + more) * BLOCK), 1e30, np.float32)
    padded[:, :width] = values
    return padded


def _random(rows: int, width: int, seed: int = 0) -> Floats:
    """Return random rows; each seed has a stride of its own."""
    return _rows(10 * np.random.default_rng(seed).standard_normal((rows, width)), more=seed)


def _room(rows: int, width: int, more: int = 5) -> Floats:
    return np.full((rows, (-(-width // BLOCK) + more) * BLOCK), UNTOUCHED)


def _quantised(x: Floats) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint32]]:
    """Return the quants and the scales plane of rows, shapes (rows, blocks, 32) and (rows, blocks, 2)."""
    rows, width = x.shape
    blocks = np.zeros((rows, -(-width // BLOCK) * BLOCK), np.float32)
    blocks[:, :width] = x
    blocks = blocks.reshape(rows, -1, BLOCK)
    most = np.abs(np.nan_to_num(blocks, nan=0.0, posinf=np.inf, neginf=-np.inf)).max(axis=-1)
    with np.errstate(all="ignore"):
        inverse = np.where(most > 0, np.float32(127) / most, np.float32(0))
        scaled = blocks * inverse[..., None]
        quants = np.rint(np.where(np.abs(scaled) <= 127.5, scaled, 0)).astype(np.int8)
    sums = quants.reshape(rows, -1, 2, BLOCK // 2).sum(axis=-1, dtype=np.int16)
    scales = np.stack([(most / np.float32(127)).view(np.uint32), sums.view(np.uint32)[..., 0]], axis=-1)
    return quants, scales


def _in_terms(x: Floats, terms: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint32]]:
    """Return what rows quantise to in so many terms each, one below the other."""
    rows, width = x.shape
    found = []
    for _ in range(terms):
        quants, scales = _quantised(x)
        found.append((quants, scales))
        with np.errstate(invalid="ignore"):
            values = scales[..., :1].view(np.float32) * quants
            x = x - values.reshape(rows, -1)[:, :width]
    quants, scales = (np.stack(planes, axis=1) for planes in zip(*found, strict=True))
    return quants.reshape(rows * terms, -1, BLOCK), scales.reshape(rows * terms, -1, 2)


class Planes:
    """Room for quantised rows on the device, of so many terms each."""

    def __init__(self, gpu: Gpu, rows: int, width: int, terms: int = 1) -> None:
        blocks = -(-width // BLOCK)
        self.terms = terms
        self.quants = gpu.place(np.full((rows * terms, blocks, BLOCK), 99, np.int8))
        self.scales = gpu.place(np.full((rows * terms, blocks, 2), 99, np.uint32))

    @property
    def push(self) -> dict[str, int]:
        return {"quants": self.quants.address, "scales": self.scales.address}

    def check(self, x: Floats) -> None:
        """They hold what `x` quantises to, bit for bit."""
        quants, scales = _in_terms(x, self.terms)
        np.testing.assert_array_equal(self.quants.values, quants)
        np.testing.assert_array_equal(self.scales.values, scales)


def _quantise(gpu: Gpu, x: Floats, width: int, terms: int = 1) -> Planes:
    rows, stride = x.shape
    planes = Planes(gpu, rows, width, terms)
    push = {"x": gpu.place(x).address, "width": width, "x_stride": stride, **planes.push}
    gpu.run("quantise", "plain", (-(-width // 256), rows, 1), {"TERMS": terms}, **push)
    return planes


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize(("rows", "width"), [(1, 32), (3, 250), (4, 1057), (2, 4096)])
def test_quantises_rows_exactly(gpu: Gpu, rows: int, width: int, terms: int) -> None:
    x = _random(rows, width)
    _quantise(gpu, x, width, terms).check(x[:, :width])


def test_two_terms_keep_fifteen_bits(gpu: Gpu) -> None:
    x = _random(3, 256)
    planes = _quantise(gpu, x, 256, 2)
    scales = planes.scales.values[..., :1].view(np.float32).astype(np.float64)
    values = (scales * planes.quants.values).reshape(3, 2, 8, BLOCK).sum(axis=1)
    blocks = x.reshape(3, 8, BLOCK)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    assert (np.abs(values - blocks) <= most * 2.0**-15.9).all()


def test_quantises_what_is_at_the_limits(gpu: Gpu) -> None:
    """Halves go to even; a block of zeros has scale 0; what is not finite becomes 0."""
    x = np.zeros((5, BLOCK), np.float32)
    x[0] = np.arange(BLOCK) - 15.5
    x[0, 0] = 127
    x[2] = np.linspace(-127.5, 127.5, BLOCK)
    x[3] = np.arange(BLOCK)
    x[3, [3, 17]] = np.nan
    x[4, 1:4] = [np.inf, -np.inf, 5]
    planes = _quantise(gpu, x, BLOCK)
    np.testing.assert_array_equal(planes.quants.values[0, 0, 14:18], [-2, 0, 0, 2])
    assert planes.scales.values[1].tolist() == [[0, 0]]
    assert planes.scales.values.view(np.float32)[4, 0, 0] == np.inf
    planes.check(x)
    both = _quantise(gpu, x, BLOCK, 2)
    assert (both.quants.values[9] == 0).all()
    assert both.scales.values[9].tolist() == [[0, 0]]
    both.check(x)


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize(("rows", "width"), [(1, 96), (3, 1001)])
def test_gates(gpu: Gpu, activation: int, rows: int, width: int) -> None:
    gate, up = _random(rows, width), _random(rows, width, seed=1)
    gate[0, :4] = [0, -0.0, 90, -90]
    results = []
    for floats, quantised in ((True, True), (True, False), (False, True)):
        out, planes = gpu.place(_room(rows, width)), Planes(gpu, rows, width)
        gpu.run(
            "gate",
            "plain",
            (-(-width // 256), rows, 1),
            {"ACTIVATION": activation, "OUT_FLOAT": floats, "OUT_QUANTISED": quantised},
            gate=gpu.place(gate).address,
            up=gpu.place(up).address,
            out=out.address,
            width=width,
            gate_stride=gate.shape[1],
            up_stride=up.shape[1],
            out_stride=out.values.shape[1],
            **planes.push,
        )
        results.append((out.values, planes))
    (both, planes), (alone, untouched), (nothing, quantised_alone) = results
    x = gate[:, :width].astype(np.float64)
    inner = np.sqrt(8 / np.pi) * (x + 0.044715 * x**3) if activation else x
    with np.errstate(over="ignore"):
        expected = x / (1 + np.exp(-inner)) * up[:, :width]
    np.testing.assert_allclose(both[:, :width], expected, rtol=3e-6, atol=1e-6)
    planes.check(both[:, :width])
    np.testing.assert_array_equal(alone[:, :width], both[:, :width])
    assert (both[:, width + 4 :] == UNTOUCHED).all()
    assert (untouched.quants.values == 99).all()
    assert (nothing == UNTOUCHED).all()
    quantised_alone.check(both[:, :width])


FLAGS = ("POST", "ADD", "NORM", "OUT_FLOAT", "TERMS")


class Norm:
    """One dispatch of `norm` over random rows. src, residual, total: what is there before it."""

    def __init__(self, gpu: Gpu, rows: int, width: int) -> None:
        self.gpu, self.rows, self.width = gpu, rows, width
        self.src, self.residual = _random(rows, width), _random(rows, width, seed=1)
        self.weight, self.post_weight = (_random(1, width, seed=seed) for seed in (2, 3))
        self.eps, self.post_eps = 1e-5, 2e-2

    def run(
        self, flags: tuple[int, ...], src: Placed, residual: Placed, total: Placed
    ) -> tuple[Floats, Planes]:
        """Return the floats and the quantised planes that come out."""
        out = self.gpu.place(_room(self.rows, self.width))
        planes = Planes(self.gpu, self.rows, self.width, max(flags[-1], 1))
        self.gpu.run(
            "norm",
            "plain",
            (1, self.rows, 1),
            dict(zip(FLAGS, flags, strict=True)),
            src=src.address,
            post_weight=self.gpu.place(self.post_weight).address,
            residual=residual.address,
            sum_out=total.address,
            weight=self.gpu.place(self.weight).address,
            out=out.address,
            width=self.width,
            src_stride=src.values.shape[1],
            residual_stride=residual.values.shape[1],
            sum_stride=total.values.shape[1],
            out_stride=out.values.shape[1],
            post_eps=self.post_eps,
            eps=self.eps,
            **planes.push,
        )
        return out.values, planes

    def expected(self, flags: tuple[bool, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the sum and the result in float64."""
        post, add, norm = flags[:3]
        width = self.width
        v = self.src[:, :width].astype(np.float64)
        if post:
            v = v / np.sqrt((v * v).mean(1, keepdims=True) + self.post_eps) * self.post_weight[:, :width]
        if add:
            v = v + self.residual[:, :width]
        y = v / np.sqrt((v * v).mean(1, keepdims=True) + self.eps) * self.weight[:, :width] if norm else v
        return v, y


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 1102), (2, 2304)])
@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=3)))
def test_norms_and_sums(gpu: Gpu, rows: int, width: int, flags: tuple[bool, ...]) -> None:
    case = Norm(gpu, rows, width)
    total = gpu.place(_room(rows, width, more=3))
    out, planes = case.run((*flags, True, True), gpu.place(case.src), gpu.place(case.residual), total)
    v, y = case.expected(flags)
    np.testing.assert_allclose(out[:, :width], y, rtol=3e-6, atol=2e-5)
    planes.check(out[:, :width])
    if flags[0] or flags[1]:
        np.testing.assert_allclose(total.values[:, :width], v, rtol=3e-6, atol=2e-5)
    else:
        assert (total.values == UNTOUCHED).all()
    assert (out[:, width + 4 :] == UNTOUCHED).all()


def test_a_norm_writes_its_sum_over_what_it_reads(gpu: Gpu) -> None:
    case = Norm(gpu, 2, 1056)
    flags = (True, True, True, True, True)
    total = gpu.place(np.zeros_like(case.src))
    out, _ = case.run(flags, gpu.place(case.src), gpu.place(case.residual), total)
    for over_src in (True, False):
        src, residual = gpu.place(case.src), gpu.place(case.residual)
        again, planes = case.run(flags, src, residual, src if over_src else residual)
        np.testing.assert_array_equal(again[:, :1056], out[:, :1056])
        written = (src if over_src else residual).values
        np.testing.assert_array_equal(written[:, :1056], total.values[:, :1056])
        planes.check(out[:, :1056])


@pytest.mark.parametrize("outputs", [(True, False), (False, True), (False, False)])
def test_a_norm_writes_what_is_wanted_only(gpu: Gpu, outputs: tuple[bool, bool]) -> None:
    case = Norm(gpu, 2, 96)
    total = gpu.place(np.zeros_like(case.src))
    out, planes = case.run(
        (False, True, True, *outputs), gpu.place(case.src), gpu.place(case.residual), total
    )
    whole, _ = case.run((False, True, True, True, True), gpu.place(case.src), gpu.place(case.residual), total)
    if outputs[0]:
        np.testing.assert_array_equal(out[:, :96], whole[:, :96])
    else:
        assert (out == UNTOUCHED).all()
    if outputs[1]:
        planes.check(whole[:, :96])
    else:
        assert (planes.quants.values == 99).all()


def test_a_norm_writes_two_terms(gpu: Gpu) -> None:
    case = Norm(gpu, 3, 1102)
    total = gpu.place(np.zeros_like(case.src))
    out, planes = case.run((1, 1, 1, 1, 2), gpu.place(case.src), gpu.place(case.residual), total)
    planes.check(out[:, :1102])


def test_a_row_is_the_same_alone_and_among_others(gpu: Gpu) -> None:
    case = Norm(gpu, 5, 1102)
    flags = (True, True, True, True, True)
    total = gpu.place(np.zeros_like(case.src))
    together, _ = case.run(flags, gpu.place(case.src), gpu.place(case.residual), total)
    alone = Norm(gpu, 1, 1102)
    alone.src, alone.residual = case.src[3:4], case.residual[3:4]
    out, planes = alone.run(flags, gpu.place(alone.src), gpu.place(alone.residual), total)
    np.testing.assert_array_equal(out[0], together[3])
    planes.check(together[3:4, :1102])


@pytest.mark.parametrize("width", [32, 250, 1056])
def test_selects_rows(gpu: Gpu, width: int) -> None:
    src, chosen = _random(5, width), np.array([4, 0, 4], np.uint32)
    out = gpu.place(_room(3, width))
    gpu.run(
        "select",
        "plain",
        (-(-width // 256), 3, 1),
        src=gpu.place(src).address,
        selection=gpu.place(chosen).address,
        out=out.address,
        width=width,
        src_stride=src.shape[1],
        out_stride=out.values.shape[1],
    )
    np.testing.assert_array_equal(out.values[:, :width], src[chosen, :width])
    assert (out.values[:, width + 4 :] == UNTOUCHED).all()
