from __future__ import annotations

import pytest

from tierd.tier.budget import Placement
from tierd.tier.dealing import all_fit


def share(size: int, *, pinned: bool = False, turns: bool = False) -> Placement:
    return Placement(context=64, positions=64, bytes=size, pinned=pinned, turns=turns)


@pytest.mark.parametrize(
    ("shares", "least"),
    [
        ([], 0),
        ([share(3), share(4)], 7),
        ([share(3), share(4, turns=True), share(5, turns=True)], 5),
        ([share(3, pinned=True), share(4, turns=True)], 7),
        ([share(3, pinned=True), share(6), share(4, turns=True)], 9),
        ([share(6), share(3, pinned=True, turns=True), share(5, turns=True)], 8),
    ],
)
def test_shares_can_be_had_elsewhere_if_each_can_be_there_in_its_turn(
    shares: list[Placement], least: int
) -> None:
    there = {"declined": "no room", **dict(zip("abc", shares, strict=False))}
    assert all_fit(there, least)
    assert not all_fit(there, least - 1)
