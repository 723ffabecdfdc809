"""How large what is copied from one region to another is, in numbers."""

from __future__ import annotations

import pytest

from tierd.backends.resident.regions import RegionPlanes, strip_bytes
from tierd.models.formats import KV_CODECS
from tierd.models.plan import RowStore


@pytest.mark.parametrize(
    ("codec", "quants", "scales"),
    [("f16", 32 * 128, 0), ("q8_0", 32 * 64, 32 * 4), ("tq4", 32 * 32, 32 * 4)],
)
def test_a_strip_has_32_rows_of_one_head(codec: str, quants: int, scales: int) -> None:
    store = RowStore(layer=0, heads=3, head_size=64)
    assert strip_bytes(store, KV_CODECS[codec]) == RegionPlanes(quants, scales)


@pytest.mark.parametrize(("codec", "head_size"), [("f16", 8), ("f16", 40), ("q8_0", 32), ("tq4", 32)])
def test_planes_of_a_strip_are_whole_units(codec: str, head_size: int) -> None:
    """So that what is copied, in any plane, begins and ends with one."""
    strip = strip_bytes(RowStore(layer=0, heads=1, head_size=head_size), KV_CODECS[codec])
    assert strip.quants % 16 == strip.scales % 16 == 0
