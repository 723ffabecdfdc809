from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from device_matmul import FLOAT_LAYOUTS, FORMATS, Quantised, Weights, product
from gpu import Gpu
from hostkernels.calls import Floats
from tierd.backends.resident.matmuls import Form, form_of

BEYOND = np.float32(-7.0)


@dataclass(frozen=True)
class Case:
    """A product, with what is added to it, and what must come out."""

    weights: Weights
    x: Quantised | Floats
    bias: Floats | None
    residual: Floats | None
    expected: Floats
    terms: int = 1

    @classmethod
    def random(
        cls, layout: str, outputs: int, columns: int, rows: int, *, added: bool, terms: int = 1
    ) -> Case:
        weights = Weights.random(layout, outputs, columns, seed=outputs)
        random = np.random.default_rng(rows)
        x: Quantised | Floats
        if layout in FLOAT_LAYOUTS:
            x = random.standard_normal((rows, weights.blocks * 32), np.float32)
        else:
            x = Quantised.random(rows * terms, weights.blocks, seed=rows)
        expected = product(weights, x, terms)
        bias = residual = None
        if added:
            bias = random.standard_normal(outputs, np.float32)
            residual = random.standard_normal((rows, outputs + 8), np.float32)
            expected = expected + bias + residual[:, :outputs]
        return cls(weights, x, bias, residual, expected, terms)

    @property
    def rows(self) -> int:
        return len(self.expected)

    def run(self, gpu: Gpu, form: Form) -> Floats:
        """Return what a form computes, after a check that it writes nothing else."""
        rows, outputs = self.expected.shape
        x = self.x
        if isinstance(x, Quantised):
            x_quants, x_scales, x_stride = gpu.place(x.q), gpu.place(x.plane).address, 0
        else:
            wider = np.full((rows, x.shape[1] + 32), np.float32(np.nan))
            wider[:, : x.shape[1]] = x
            x_quants, x_scales, x_stride = gpu.place(wider), 0, wider.shape[1]
        quants, high, scales = (
            gpu.place(plane).address if plane.size else 0 for plane in self.weights.planes
        )
        out = gpu.place(np.full((rows + 1, outputs + 32), BEYOND))
        gpu.run(
            form.kernel,
            form.variant,
            (-(-outputs // form.outputs), -(-rows // form.rows), 1),
            dict(form.constants),
            quants=quants,
            high=high,
            scales=scales,
            x_quants=x_quants.address,
            x_scales=x_scales,
            bias=0 if self.bias is None else gpu.place(self.bias).address,
            residual=0 if self.residual is None else gpu.place(self.residual).address,
            out=out.address,
            blocks=self.weights.blocks,
            outputs=outputs,
            x_stride=x_stride,
            out_stride=outputs + 32,
            residual_stride=0 if self.residual is None else self.residual.shape[1],
            rows=rows,
        )
        assert (out.values[rows:] == BEYOND).all()
        assert (out.values[:, outputs:] == BEYOND).all()
        return out.values[:rows, :outputs].copy()


def forms(gpu: Gpu, case: Case) -> Iterator[Form]:
    """Every variant of every kernel, with small tiles."""
    layout, blocks = case.weights.layout, case.weights.blocks
    products = [""] if layout in FLOAT_LAYOUTS else [".dot", ".nodot"]
    subgroup = ("SUBGROUP", gpu.device.facts.limits.subgroup)
    terms = ("TERMS", case.terms)
    tile = (("TEAMS", 2), ("WIDTH", 2), ("ROWS", 1), subgroup, terms)
    for variant in products:
        yield Form("matvec", layout + variant, (("ROWS", 2), ("AHEAD", 2), terms), 32, 2)
        yield Form("matmul", layout + variant, tile, 64, 2)
    one_team = (("TEAMS", 1), ("WIDTH", 1), ("ROWS", 3), subgroup, terms)
    yield Form("matmul", f"{layout}.shuffle", one_team, 32, 3)
    teams = ("TEAMS", next(teams for teams in (4, 2, 1) if blocks % teams == 0))
    unrolled = (teams, ("WIDTH", 1), ("ROWS", 2), subgroup, ("BLOCKS", blocks), terms)
    yield Form("matvec_unrolled", f"{layout}.shuffle", unrolled, 32, 2)


@pytest.mark.parametrize("layout", FORMATS)
def test_every_form_gives_the_bits_of_the_one_definition(gpu: Gpu, layout: str) -> None:
    # Some formats have whole blocks of 256 columns, those of floats any number of columns.
    columns = 512 if layout in ("q6", "q3", "q2") else 340 if layout in FLOAT_LAYOUTS else 352
    case = Case.random(layout, 75, columns, 5, added=True)
    for form in forms(gpu, case):
        np.testing.assert_array_equal(case.run(gpu, form), case.expected, err_msg=str(form))


@pytest.mark.parametrize("layout", ["q4", "f32"])
def test_segments_may_be_empty_and_nothing_be_added(gpu: Gpu, layout: str) -> None:
    case = Case.random(layout, 33, 96, 4, added=False)
    for form in forms(gpu, case):
        np.testing.assert_array_equal(case.run(gpu, form), case.expected, err_msg=str(form))


@pytest.mark.parametrize("layout", [layout for layout in FORMATS if layout not in FLOAT_LAYOUTS])
def test_rows_of_two_terms_are_added_block_by_block(gpu: Gpu, layout: str) -> None:
    case = Case.random(layout, 75, 512, 5, added=True, terms=2)
    for form in forms(gpu, case):
        np.testing.assert_array_equal(case.run(gpu, form), case.expected, err_msg=str(form))


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("type", ["discrete", "software"])
def test_any_number_of_rows_gives_the_same_bits(gpu: Gpu, type: str, terms: int) -> None:
    facts = replace(gpu.device.facts, type=type)
    most = Case.random("q4", 200, 576, 41, added=True, terms=terms)
    assert isinstance(most.x, Quantised)
    assert most.residual is not None
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 33, 41):
        x = Quantised(most.x.q[: rows * terms], most.x.scale[: rows * terms])
        case = replace(most, x=x, residual=most.residual[:rows], expected=most.expected[:rows])
        form = form_of(facts, "q4", terms=terms, blocks=18, rows=rows)
        np.testing.assert_array_equal(case.run(gpu, form), case.expected, err_msg=str(form))


def test_few_rows_are_computed_at_once(gpu: Gpu) -> None:
    for type in ("discrete", "software"):
        facts = replace(gpu.device.facts, type=type)
        for terms in (0, 1, 2):
            layout = "q4" if terms else "f16"
            forms = [form_of(facts, layout, terms=terms, blocks=8, rows=rows) for rows in range(1, 9)]
            assert [form.rows for form in forms] == [1, 2, 4, 4, 8, 8, 8, 8]


def test_the_form_follows_the_device(gpu: Gpu) -> None:
    features = gpu.device.facts.features
    dot = {"shaderIntegerDotProduct", "integerDotProduct4x8BitPackedSignedAccelerated"}
    fast = replace(gpu.device.facts, type="discrete", features=features | dot)
    slow = replace(fast, features=features - dot)
    software = replace(slow, type="software", features=features | {"subgroupShuffle"})
    plain = replace(software, features=features - {"subgroupShuffle", *dot})
    names = {
        (form.kernel, form.variant)
        for facts in (fast, slow, software, plain)
        for rows in (1, 8, 9)
        for form in [form_of(facts, "q6", terms=1, blocks=18, rows=rows)]
    }
    assert names == {
        ("matvec", "q6.dot"),
        ("matmul", "q6.dot"),
        ("matvec", "q6.nodot"),
        ("matmul", "q6.nodot"),
        ("matvec_unrolled", "q6.shuffle"),
        ("matmul", "q6.shuffle"),
    }
    assert form_of(slow, "bf16", terms=0, blocks=1, rows=1).variant == "bf16"


@pytest.mark.parametrize("blocks", [3, 4, 8, 18, 20, 48, 64, 77, 344])
def test_teams_of_unrolled_code_have_equal_shares(gpu: Gpu, blocks: int) -> None:
    facts = replace(gpu.device.facts, type="software")
    for rows in (1, 4):
        constants = dict(form_of(facts, "q4", terms=1, blocks=blocks, rows=rows).constants)
        if "BLOCKS" in constants:
            assert constants["BLOCKS"] == blocks
            assert blocks % constants["TEAMS"] == 0
            assert rows * blocks <= 64 * constants["TEAMS"]
