"""What is copied from one region to another, in numbers."""

from __future__ import annotations

import pytest

from tierd.backends.resident.regions import copies
from tierd.models.formats import KV_CODECS
from tierd.models.plan import RowStore

STORE = RowStore(layer=0, heads=2, head_size=64)


@pytest.mark.parametrize(("codec", "widths"), [("f16", [128, 128]), ("q8_0", [64, 64, 4, 4])])
def test_copies_are_rows_of_each_head(codec: str, widths: list[int]) -> None:
    """widths: bytes of a row of a head, by plane; keys come by strips of 32."""
    whole = list(copies(STORE, KV_CODECS[codec], (3, 64), source=1, target=2, positions=33))
    rows = [64, 33] * (len(whole) // 4)
    assert [size for _, _, size in whole] == [
        rows[plane] * width for plane, width in enumerate(widths) for _ in range(STORE.heads)
    ]
    start = 0
    for plane, width in enumerate(widths):
        for head, (source, target, _) in enumerate(whole[2 * plane : 2 * plane + 2]):
            assert source == start + (1 * 2 + head) * 64 * width
            assert target == start + (2 * 2 + head) * 64 * width
        start += 3 * 2 * 64 * width


@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
def test_no_rows_are_no_copies(codec: str) -> None:
    assert list(copies(STORE, KV_CODECS[codec], (3, 64), source=0, target=1, positions=0)) == []
    assert len(list(copies(STORE, KV_CODECS[codec], (3, 64), source=0, target=1, positions=1))) >= 4
