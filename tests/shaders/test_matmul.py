from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from backends.vkapi.devices import AMD_RESIZABLE_BAR, LAVAPIPE_26, NVIDIA_RESIZABLE_BAR, device
from device_matmul import FLOAT_LAYOUTS, FORMATS, Case, Quantised
from gpu import Gpu
from tierd.backends.resident.matmuls import Form, form_of
from tierd.backends.vkapi import DeviceFacts
from tierd.backends.vkapi.facts import SUBGROUP_SHUFFLE, without_matrices


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
    software = replace(slow, type="software", features=features | {SUBGROUP_SHUFFLE})
    plain = replace(software, features=features - {SUBGROUP_SHUFFLE, *dot})
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


@pytest.mark.parametrize(
    "facts",
    [
        NVIDIA_RESIZABLE_BAR,
        AMD_RESIZABLE_BAR,
        LAVAPIPE_26,
        device("narrow", heaps=[], types=[], subgroup=8, matrices=((16, 16, 16),)),
        device("half as wide", heaps=[], types=[], subgroup=16, matrices=((8, 16, 16),)),
    ],
    ids=lambda facts: facts.name,
)
@pytest.mark.parametrize(("layout", "terms"), [("q4", 1), ("q6", 2), ("bf16", 0)])
def test_all_tiles_are_on_cooperative_matrices_once_they_are_used(
    facts: DeviceFacts, layout: str, terms: int
) -> None:
    exact = without_matrices(facts)
    for rows in range(1, 9):
        form = form_of(facts, layout, terms=terms, blocks=8, rows=rows)
        assert form == form_of(exact, layout, terms=terms, blocks=8, rows=rows)
    forms = {form_of(facts, layout, terms=terms, blocks=8, rows=rows) for rows in (9, 64, 65, 264, 4096)}
    (form,) = forms
    assert (form.kernel, form.variant) == ("matmul_coop", f"{layout}.coop")
    assert form.subgroup == facts.limits.subgroup
    assert form_of(exact, layout, terms=terms, blocks=8, rows=9).kernel == "matmul"
    constants = dict(form.constants)
    assert constants["TERMS"] == max(terms, 1)
    teams = constants["LANES"] // form.subgroup
    assert constants["TEAM_ROWS"] * constants["TEAM_OUTPUTS"] * teams == form.rows * form.outputs
    assert form.rows % constants["TEAM_ROWS"] == constants["TEAM_ROWS"] % constants["M"] == 0
    assert form.outputs % constants["TEAM_OUTPUTS"] == constants["TEAM_OUTPUTS"] % constants["N"] == 0
    assert 32 % constants["K"] == 0
    units = 2 * (form.rows + form.outputs) * 5  # of 16 bytes: two copies of a tile, which sums leave through
    assert units * 16 + form.rows * 4 <= 32 << 10
    assert teams * constants["M"] * (constants["N"] // 4 + 1) <= units


@pytest.mark.parametrize("blocks", [3, 4, 8, 18, 20, 48, 64, 77, 344])
def test_teams_of_unrolled_code_have_equal_shares(gpu: Gpu, blocks: int) -> None:
    facts = replace(gpu.device.facts, type="software")
    for rows in (1, 4):
        constants = dict(form_of(facts, "q4", terms=1, blocks=blocks, rows=rows).constants)
        if "BLOCKS" in constants:
            assert constants["BLOCKS"] == blocks
            assert blocks % constants["TEAMS"] == 0
            assert rows * blocks <= 64 * constants["TEAMS"]
