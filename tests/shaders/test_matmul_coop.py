"""Products on cooperative matrices. They have no bits to keep to, but bounds, and must write nothing else.

Debian 12's llvmpipe has no such matrices; that of Mesa 25 and later does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from device_matmul import FLOAT_LAYOUTS, FORMATS, Case, Quantised
from gpu import Gpu
from tierd.backends.resident.matmuls import form_of
from tierd.backends.vkapi import Device

# Of the spread of all results: what rounding factors to 16-bit floats may put one off by, and on average.
MOST, MEAN = 5e-3, 5e-4
ROWS = 264


@pytest.fixture(scope="module")
def matrices() -> Iterator[Gpu]:
    """A device that uses its cooperative matrices."""
    gpu = Gpu(Device.open(allow_software=True, validate=True, cooperative_matrix=True))
    decline = gpu.device.matrix_decline
    if decline:
        gpu.close()
        pytest.skip(f"not run: {gpu.device.facts.name} {decline}")
    yield gpu
    gpu.close()
    assert gpu.device.messages == []


def check(gpu: Gpu, case: Case, **bounds: float) -> None:
    layout = case.weights.layout
    terms = 0 if layout in FLOAT_LAYOUTS else case.terms
    form = form_of(gpu.device.facts, layout, terms=terms, blocks=case.weights.blocks, rows=ROWS)
    assert form.kernel == "matmul_coop"
    off = np.abs(case.run(gpu, form) - case.expected) / case.expected.std()
    assert off.max() < bounds.get("most", MOST)
    assert off.mean() < bounds.get("mean", MEAN)


@pytest.mark.parametrize("layout", FORMATS)
def test_every_layout_comes_near(matrices: Gpu, layout: str) -> None:
    check(matrices, Case.random(layout, 300, 768, 70, added=True))
    check(matrices, Case.random(layout, 33, 256, 9, added=False))


@pytest.mark.parametrize("layout", ["q4", "q6"])
def test_rows_of_two_terms_come_near(matrices: Gpu, layout: str) -> None:
    check(matrices, Case.random(layout, 200, 512, 65, added=True, terms=2))


def test_tiles_are_shared_among_subgroups_as_on_other_devices(matrices: Gpu) -> None:
    own = matrices.device.facts
    facts = replace(own, limits=replace(own.limits, subgroup=32))
    case = Case.random("q4", 200, 512, 65, added=True)
    form = form_of(facts, "q4", terms=1, blocks=case.weights.blocks, rows=ROWS)
    # As many subgroups, of this device's lanes.
    lanes = dict(form.constants)["LANES"] // 32 * own.limits.subgroup
    form = replace(form, constants=(*form.constants, ("LANES", lanes)), subgroup=own.limits.subgroup)
    off = np.abs(case.run(matrices, form) - case.expected) / case.expected.std()
    assert off.max() < MOST


@pytest.mark.parametrize("size", [1e-20, 1e12])
@pytest.mark.parametrize("layout", ["q4", "f32"])
def test_rows_of_any_size_come_as_near(matrices: Gpu, layout: str, size: float) -> None:
    case = Case.random(layout, 64, 512, 20, added=False)
    factor = np.where(np.arange(20) % 2, size, 1.0).astype(np.float32)[:, None]
    x = replace(case.x, scale=case.x.scale * factor) if isinstance(case.x, Quantised) else case.x * factor
    form = form_of(
        matrices.device.facts, layout, terms=isinstance(x, Quantised), blocks=case.weights.blocks, rows=ROWS
    )
    result = replace(case, x=x).run(matrices, form) / factor
    off = np.abs(result - case.expected) / case.expected.std()
    assert off.max() < MOST


def test_rows_of_zeros_and_weights_past_the_range_stay_finite(matrices: Gpu) -> None:
    case = Case.random("f32", 40, 64, 12, added=False)
    assert not isinstance(case.x, Quantised)
    case.x[3] = 0.0
    case.weights.planes.quants.view("<f4")[:] *= np.float32(1e6)
    form = form_of(matrices.device.facts, "f32", terms=0, blocks=2, rows=ROWS)
    result = case.run(matrices, form)
    assert np.isfinite(result).all()
    assert (result[3] == 0).all()
