from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierd.tier.budget import Need, Placement, Room, share_out, shrink

MIB = 1 << 20


def need(
    *,
    asked: int = 0,
    strict: bool = True,
    trained: int = 8192,
    fixed: int = 100,
    row: int = 1,
    regions: int = 8,
    scratch: int = 0,
    codec_asked: bool = False,
    pinned: bool = False,
) -> Need:
    """A model of `fixed` MiB of weights and `row` KiB for each position of a region; K/V in one piece."""
    rows = (regions + scratch) * row << 10
    return Need(
        trained=trained,
        asked=asked,
        strict=strict,
        pinned=pinned,
        regions=regions,
        scratch=scratch,
        codec_asked=codec_asked,
        weights=fixed * MIB,
        bytes_at=lambda positions: fixed * MIB + positions * rows,
        largest_at=lambda positions: max(fixed * MIB // 10, positions * rows),
    )


def room(total: int, *, taken: int = 0, pinned: int = 0, allocation: int = 4096) -> Room:
    return Room(total=total * MIB, taken=taken * MIB, pinned=pinned * MIB, allocation=allocation * MIB)


def placements(*needs: Need, there: Room) -> list[Placement]:
    shares = share_out(dict(zip("abcde", needs, strict=False)), there)
    assert list(shares) == list("abcde"[: len(needs)])
    found = [share for share in shares.values() if isinstance(share, Placement)]
    assert len(found) == len(needs), shares
    return found


def test_a_model_that_fits_gets_the_context_it_was_trained_for() -> None:
    (share,) = share_out({"m": need(trained=8000)}, room(200)).values()
    assert share == Placement(context=8000, positions=8000, bytes=100 * MIB + 8000 * 8 * 1024)


def test_a_region_is_whole_tiles() -> None:
    (share,) = share_out({"m": need(trained=8001)}, room(200)).values()
    assert isinstance(share, Placement)
    assert (share.context, share.positions) == (8001, 8064)


def test_a_context_that_nobody_asked_for_shrinks_to_fifteen_sixteenths_of_the_device() -> None:
    (share,) = share_out({"m": need(fixed=100)}, room(144)).values()
    assert isinstance(share, Placement)
    assert (share.context, share.bytes) == (4480, 135 * MIB)
    (share,) = share_out({"m": need(fixed=100)}, room(144, taken=1)).values()
    assert isinstance(share, Placement)
    assert (share.context, share.bytes) == (4352, 134 * MIB)


def test_it_shrinks_to_what_is_allocated_in_one_piece_too() -> None:
    (share,) = share_out({"m": need()}, room(1000, allocation=16)).values()
    assert isinstance(share, Placement)
    assert share.context == 2048


def test_a_context_that_was_asked_for_is_kept_or_declined_with_what_would_fit() -> None:
    (share,) = share_out({"m": need(asked=100)}, room(132)).values()
    assert isinstance(share, Placement)
    assert (share.context, share.positions) == (100, 128)
    assert share_out({"m": need(asked=8192)}, room(132)) == {
        "m": "weights and 8 regions at context 8192 need 164.0 MiB of the device's 132.0 MiB; "
        "it would fit with context = 4096"
    }


def test_less_than_the_least_context_is_declined() -> None:
    assert share_out({"m": need(regions=1, row=100)}, room(149)) == {
        "m": "weights and 1 region at context 512 need 150.0 MiB of the device's 149.0 MiB; "
        "it would fit with context = 448"
    }


def test_a_short_model_has_a_shorter_least_context() -> None:
    (share,) = share_out({"m": need(trained=128)}, room(101)).values()
    assert isinstance(share, Placement)
    assert share.context == 128


def test_weights_alone_may_be_too_much() -> None:
    assert share_out({"m": need(fixed=300)}, room(200)) == {
        "m": "weights alone need 300.0 MiB of the device's 200.0 MiB; choose a smaller model"
    }


def test_a_piece_may_be_too_much() -> None:
    assert share_out({"m": need(fixed=300)}, room(400, allocation=20)) == {
        "m": "the device allocates 20.0 MiB in one piece and 30.0 MiB are needed; "
        "lower regions, or choose a smaller kv_dtype or model"
    }


def test_what_never_leaves_is_not_there() -> None:
    assert share_out({"m": need()}, room(200, taken=100, pinned=100)) == {
        "m": "weights and 8 regions at context 512 need 104.0 MiB of the device's 200.0 MiB, of which "
        "100.0 MiB are free; lower regions, or choose a smaller kv_dtype or model"
    }


def test_what_would_help_is_what_can_be_changed() -> None:
    alone = need(regions=1, scratch=1, codec_asked=True)
    assert share_out({"m": alone}, room(200, taken=100, pinned=100)) == {
        "m": "weights, 1 region and a scratch region at context 512 need 101.0 MiB of the device's "
        "200.0 MiB, of which 100.0 MiB are free; choose a smaller model"
    }


def test_one_that_does_not_fit_beside_the_others_takes_turns_with_them() -> None:
    (share,) = placements(need(asked=1024), there=room(200, taken=100))
    assert (share.context, share.turns) == (1024, True)
    first, second = placements(need(asked=1024), need(asked=2048), there=room(200))
    assert (first.context, first.turns, second.context, second.turns) == (1024, False, 2048, True)


def test_a_model_takes_turns_rather_than_be_cut_where_it_fits_alone() -> None:
    first, second = placements(need(asked=2048), need(asked=4096, strict=False), there=room(240))
    assert (first.context, first.turns, second.context, second.turns) == (2048, False, 4096, True)
    first, second = placements(need(asked=2048), need(asked=1 << 16, strict=False), there=room(240))
    assert (first.context, first.turns, second.turns) == (2048, False, False)
    assert 512 <= second.context < 1 << 16


def test_who_takes_turns_has_what_is_there_without_the_others() -> None:
    first, second, third = placements(need(), need(), need(trained=1024), there=room(160))
    assert (first.turns, second.turns, third.turns) == (False, True, True)
    assert first.bytes == second.bytes == 150 * MIB  # but for the head-room
    assert third.context == 1024
    (shorter,) = placements(need(asked=8192, strict=False), there=room(160, taken=100, pinned=50))
    assert (shorter.context, shorter.turns) == (512, True)
    (late,) = placements(need(pinned=True), there=room(160, taken=100))
    assert (late.context, late.turns, late.pinned) == (512, True, True)


def test_pinned_models_come_first_and_leave_room_for_those_that_take_turns() -> None:
    first, pinned = placements(need(), need(pinned=True), there=room(256))
    assert (first.turns, pinned.turns, pinned.pinned) == (False, False, True)
    assert first.context == pinned.context == 2560

    first, pinned, third = placements(need(), need(pinned=True), need(fixed=90), there=room(224))
    assert (first.turns, pinned.turns, third.turns) == (False, False, True)
    assert pinned.context == 640
    assert first.bytes == third.bytes == (224 - 14) * MIB - pinned.bytes

    shares = share_out({"a": need(pinned=True), "b": need(pinned=True), "c": need(fixed=10)}, room(160))
    assert shares["b"] == (
        "weights alone need 100.0 MiB of the device's 160.0 MiB, of which 56.0 MiB are free; "
        "choose a smaller model"
    )
    assert isinstance(shares["c"], Placement)
    assert not shares["c"].turns


def test_a_context_that_was_asked_for_is_shortened_where_that_may_be() -> None:
    """The room that is left is shared with those who did not ask; nobody gets more than asked for."""
    (share,) = share_out({"m": need(asked=8192, strict=False)}, room(144)).values()
    assert isinstance(share, Placement)
    assert (share.context, share.positions) == (4480, 4480)
    (share,) = share_out({"m": need(asked=4096, strict=False)}, room(132)).values()
    assert isinstance(share, Placement)
    assert share.context == 4096  # as it fits: no head-room is kept
    first, second = share_out({"a": need(asked=3000, strict=False), "b": need()}, room(256)).values()
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert (first.context, second.context) == (3000, 2112)


def test_a_context_is_not_shortened_under_the_floor() -> None:
    short = need(asked=2048, strict=False, regions=1, row=100)
    assert share_out({"m": short}, room(149)) == {
        "m": "weights and 1 region at context 512 need 150.0 MiB of the device's 149.0 MiB; "
        "it would fit with context = 448"
    }
    (share,) = share_out({"m": need(asked=100, strict=False, regions=1, row=100)}, room(149)).values()
    assert isinstance(share, Placement)
    assert share.context == 100


def test_models_get_room_in_their_order_and_share_the_rest_alike() -> None:
    first, second, third = share_out(
        {"a": need(), "b": need(fixed=500), "c": need(asked=1024)}, room(256)
    ).values()
    assert isinstance(first, Placement)
    assert isinstance(third, Placement)
    assert second == ("weights alone need 500.0 MiB of the device's 256.0 MiB; choose a smaller model")
    assert (first.context, third.context) == (4096, 1024)

    first, second = share_out({"a": need(), "b": need()}, room(256)).values()
    assert isinstance(first, Placement)
    assert first == second
    assert first.context == 2560

    first, second = share_out({"a": need(trained=1024), "b": need()}, room(256)).values()
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert (first.context, second.context) == (1024, 4096)


@given(
    st.lists(
        st.builds(
            need,
            asked=st.sampled_from([0, 0, 100, 640]),
            strict=st.booleans(),
            scratch=st.integers(0, 1),
            trained=st.integers(640, 100_000),
            fixed=st.integers(1, 300),
            row=st.integers(1, 16),
            regions=st.integers(1, 16),
            pinned=st.sampled_from([False, False, True]),
        ),
        max_size=5,
    ),
    st.integers(0, 2000),
    st.integers(0, 2000),
)
def test_nobody_gets_what_is_not_there(needs: list[Need], total: int, allocation: int) -> None:
    there = room(total, taken=total // 3, pinned=total // 6, allocation=allocation)
    shares = share_out(dict(zip("abcde", needs, strict=False)), there)
    placed = [(share, each) for share, each in zip(shares.values(), needs, strict=True) if share]
    assert len(placed) == len(needs)
    got = [(share, each) for share, each in placed if isinstance(share, Placement)]
    assert sum(share.bytes for share, _ in got if not share.turns) <= there.free
    pinned = sum(share.bytes for share, _ in got if share.pinned)
    assert all(pinned + share.bytes <= there.alone for share, _ in got if share.turns and not share.pinned)
    assert pinned <= there.alone
    for share, each in got:
        assert each.largest_at(share.positions) <= there.allocation
        assert share.bytes == each.bytes_at(share.positions)
        if each.asked and each.strict:
            assert share.context == each.asked
        else:
            assert min(512, each.asked or each.trained) <= share.context <= (each.asked or each.trained)


def test_what_does_not_fit_in_pieces_shrinks_by_an_eighth() -> None:
    there = room(1000)
    turning = Placement(context=8192, positions=8192, bytes=64 * MIB, pinned=True, turns=True)
    shorter = shrink(need(fixed=0, pinned=True), turning, there)
    assert shorter is not None
    assert (shorter.pinned, shorter.turns) == (True, True)
    shorter = shrink(need(fixed=0), Placement(context=8192, positions=8192, bytes=64 * MIB), there)
    assert shorter is not None
    assert (shorter.context, shorter.bytes) == (7168, 56 * MIB)


@pytest.mark.parametrize(
    ("each", "context"), [(need(asked=4096), 4096), (need(fixed=0), 512), (need(fixed=100), 1024)]
)
def test_what_was_asked_for_and_what_is_least_does_not_shrink(each: Need, context: int) -> None:
    assert shrink(each, each.at(context), room(1000)) is None
