from __future__ import annotations

import pytest

from tierd import __version__
from tierd.kv.origin import origin_of, place_of, strangeness

FILE = "0" * 64
OURS = origin_of(FILE, "f16", "cpu avx2")


def test_an_origin_names_all_that_bits_depend_on() -> None:
    assert f"tierd {__version__}; file {FILE}; codec f16; cpu avx2" == OURS
    assert place_of(OURS) == "cpu avx2"
    assert place_of(origin_of(FILE, "f16", "a device; of two parts")) == "a device; of two parts"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (OURS, ""),
        (origin_of(FILE, "f16", "cpu portable"), ""),
        (origin_of(FILE, "f16", "a device; of two parts"), ""),
        (origin_of(FILE, "q8_0", "cpu avx2"), "another codec"),
        (origin_of("1" * 64, "f16", "cpu avx2"), "another model file"),
        (origin_of("1" * 64, "q8_0", "cpu avx2"), "another model file"),
        (OURS.replace(__version__, "0.0.1"), "another tierd"),
        ("", "another tierd"),
        (OURS[:30], "another model file"),
    ],
)
def test_rows_are_strange_whose_place_is_not_all_that_differs(rows: str, says: str) -> None:
    assert strangeness(rows, OURS) == says
