from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tierd.tier.regions import Claim, Match, Regions


@dataclass(eq=False)
class Stream:
    """What regions know of a session."""

    tokens: list[int] = field(default_factory=list)
    fed: int = 0
    owner: str = ""


def parked(regions: Regions[Stream], tokens: list[int]) -> Claim:
    """Park a conversation with the rows of these tokens."""
    stream = Stream(tokens, len(tokens))
    regions.open(stream)
    claim = regions.park(stream, tokens)
    assert claim is not None
    return claim


def numbers(regions: Regions[Stream]) -> tuple[int, int, int, int]:
    return regions.free, regions.live, regions.parked, regions.leaving


def test_the_lowest_region_is_opened_first() -> None:
    regions = Regions[Stream](2)
    first, second = Stream(), Stream()
    assert (regions.open(first), regions.open(second)) == (0, 1)
    assert (regions.region_of(first), regions.region_of(second), regions.region_of(Stream())) == (0, 1, None)
    assert numbers(regions) == (0, 2, 0, 0)
    with pytest.raises(ValueError, match="no region is free: 2 live, 0 parked of 2"):
        regions.open(Stream())


def test_a_session_has_one_region() -> None:
    regions = Regions[Stream](3)
    stream = Stream()
    claim = parked(regions, [1])
    regions.open(stream)
    for act in (
        lambda: regions.open(stream),
        lambda: regions.adopt(stream, claim, 1),
        lambda: regions.take(claim, stream),
    ):
        with pytest.raises(ValueError, match="the session has region 1 already"):
            act()
    assert numbers(regions) == (1, 1, 1, 0)


def test_parking_without_rows_frees_the_region() -> None:
    regions = Regions[Stream](1)
    stream = Stream([1, 2])
    regions.open(stream)
    assert regions.park(stream, ()) is None
    assert numbers(regions) == (1, 0, 0, 0)
    with pytest.raises(ValueError, match="has no region"):
        regions.park(stream, ())


def test_a_claim_is_spent_by_one_adoption() -> None:
    regions = Regions[Stream](1)
    claim = parked(regions, [1, 2, 3])
    assert regions.region_of(claim) == 0
    assert regions.tokens_of(claim) == [1, 2, 3]
    stream = Stream([1, 2, 4])
    assert regions.adopt(stream, claim, 2) == 0
    assert regions.region_of(stream) == 0
    assert regions.adopt(Stream(), claim, 2) is None
    assert regions.region_of(claim) is None
    assert numbers(regions) == (0, 1, 0, 0)


def test_no_more_is_adopted_than_there_is() -> None:
    regions = Regions[Stream](1)
    claim = parked(regions, [1, 2])
    for positions in (-1, 3):
        with pytest.raises(
            ValueError, match=f"cannot adopt {positions} positions of claim {claim}: it has 2"
        ):
            regions.adopt(Stream(), claim, positions)
    assert numbers(regions) == (0, 0, 1, 0)


def test_a_claim_dies_when_its_region_is_taken() -> None:
    regions = Regions[Stream](1)
    claim = parked(regions, [1])
    stream = Stream()
    assert regions.take(claim, stream) == 0
    assert regions.adopt(Stream(), claim, 1) is None
    regions.park(stream, [2])
    assert regions.adopt(Stream(), claim, 1) is None
    with pytest.raises(ValueError, match=f"claim {claim} is stale"):
        regions.take(claim, Stream())


def test_claims_are_never_used_twice_not_even_by_other_regions() -> None:
    first, second = Regions[Stream](1), Regions[Stream](1)
    claims = [parked(first, [1]), parked(second, [1])]
    assert len(set(claims)) == 2
    assert second.adopt(Stream(), claims[0], 1) is None


def test_the_least_recently_used_without_a_pin_is_the_oldest() -> None:
    regions = Regions[Stream](3)
    assert regions.oldest() is None
    first, second, third = parked(regions, [1]), parked(regions, [2]), parked(regions, [3])
    assert regions.claims() == [first, second, third]
    assert regions.oldest() == first
    regions.touch(first)
    assert regions.oldest() == second
    regions.pin(second)
    regions.pin(second)
    assert regions.oldest() == third
    regions.unpin(second)
    assert regions.oldest() == third
    regions.unpin(second)
    assert regions.oldest() == second


def test_a_pinned_region_is_not_taken() -> None:
    regions = Regions[Stream](1)
    claim = parked(regions, [1])
    regions.pin(claim)
    assert regions.oldest() is None
    for act in (lambda: regions.take(claim, Stream()), lambda: regions.leave(claim)):
        with pytest.raises(ValueError, match=f"claim {claim} is pinned"):
            act()
    regions.unpin(claim)
    with pytest.raises(ValueError, match=f"claim {claim} has no pin"):
        regions.unpin(claim)
    regions.pin(claim)
    assert regions.adopt(Stream(), claim, 1) == 0
    regions.unpin(claim)


def test_a_leaving_region_is_nobodys_until_it_is_released() -> None:
    regions = Regions[Stream](1)
    claim = parked(regions, [1, 2])
    region = regions.leave(claim)
    assert numbers(regions) == (0, 0, 0, 1)
    assert regions.find([1, 2]) is None
    assert regions.adopt(Stream(), claim, 1) is None
    with pytest.raises(ValueError, match="no region is free"):
        regions.open(Stream())
    regions.release(region)
    assert numbers(regions) == (1, 0, 0, 0)
    with pytest.raises(ValueError, match="cannot release region 0: it is not leaving"):
        regions.release(region)


def test_a_stale_claim_is_good_for_nothing() -> None:
    regions = Regions[Stream](1)
    claim = parked(regions, [1])
    regions.adopt(Stream(), claim, 1)
    for act in (regions.pin, regions.touch, regions.tokens_of, regions.leave):
        with pytest.raises(ValueError, match=f"claim {claim} is stale"):
            act(claim)
    regions.unpin(claim)


def test_all_that_happens_to_claims_is_counted_once() -> None:
    regions = Regions[Stream](3)
    before = regions.counts
    claim = parked(regions, [1, 2, 3])
    assert before == {}
    assert regions.counts == {"parked": 1}
    stream = Stream([1, 2, 3, 4], 3)
    regions.adopt(stream, claim, 3)
    regions.fork(stream)
    regions.withdraw(stream)
    regions.take(parked(regions, [5]), Stream())
    assert regions.counts == {"parked": 2, "adopted": 1, "forked": 1, "died": 1}
    parked(regions, [6])
    regions.lose()
    assert regions.counts == {"parked": 3, "adopted": 1, "forked": 1, "died": 2}
    assert numbers(regions) == (3, 0, 0, 0)
    with pytest.raises(ValueError, match="has no region"):
        regions.fork(claim)


def test_the_longest_opening_is_found_among_parked_and_live() -> None:
    regions = Regions[Stream](4)
    short, long = parked(regions, [1, 2]), parked(regions, [1, 2, 3, 4])
    live = Stream([1, 2, 3, 4, 5, 6], fed=5)
    regions.open(live)
    assert regions.find([1, 2, 9]) == Match(claim=short, region=0, positions=2)
    assert regions.find([1, 2, 3, 9]) == Match(claim=long, region=1, positions=3)
    assert regions.find([1, 2, 3, 4]) == Match(claim=long, region=1, positions=4)
    assert regions.find([1, 2, 3, 4, 5, 6, 7]) == Match(session=live, region=2, positions=5)
    assert regions.find([1, 2, 9], minimum=3) is None
    assert regions.find([9]) is None
    assert regions.find([]) is None


def test_of_a_live_session_only_what_was_fed_is_found() -> None:
    regions = Regions[Stream](1)
    live = Stream([1, 2, 3])
    regions.open(live)
    assert regions.find([1, 2, 3]) is None
    live.fed = 2
    assert regions.find([1, 2, 3]) == Match(session=live, region=0, positions=2)


def test_of_equals_the_one_used_last_is_found() -> None:
    regions = Regions[Stream](2)
    first, second = parked(regions, [1, 2]), parked(regions, [1, 3])
    assert regions.find([1]) == Match(claim=second, region=1, positions=1)
    regions.touch(first)
    assert regions.find([1]) == Match(claim=first, region=0, positions=1)


def test_all_regions_can_be_looked_at() -> None:
    regions = Regions[Stream](4)
    live = Stream([1, 2, 3], fed=2)
    going, claim = parked(regions, [5]), parked(regions, [6, 7])
    regions.open(live)
    regions.leave(going)
    regions.pin(claim)
    views = list(regions)
    assert [(view.region, view.state, view.positions, view.pins) for view in views] == [
        (0, "leaving", 0, 0),
        (1, "parked", 2, 1),
        (2, "live", 2, 0),
        (3, "free", 0, 0),
    ]
    assert [view.session for view in views] == [None, None, live, None]
    assert [view.claim for view in views] == [None, claim, None, None]
