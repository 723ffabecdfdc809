"""Which models get room on a device, and how long their streams may be: decisions on numbers, all pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tierd.backends.resident.regions import TILE
from tierd.kv.sizing import mib, pages_for

# A region is not cut to fewer positions than these.
LEAST_CONTEXT = 512
# Contexts grow until one in so many bytes of a device is left: buffers do not fill allocations to the brim,
# and where the device's memory is the machine's, what the host writes lies there, too.
_HEAD_ROOM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A device's memory, in bytes. total: of it. taken: promised to others. allocation: most in one piece."""

    total: int
    taken: int
    allocation: int

    @property
    def free(self) -> int:
        """Bytes that nobody has yet."""
        return max(0, self.total - self.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a model needs, by the positions of a region.

    trained: positions it was trained for. asked: its context, 0 for as much as fits. strict: no less than
    what is asked will do. regions: of streams, and besides them those for scratch. codec_asked: whether
    somebody chose how rows are kept. weights: their bytes. bytes_at, largest_at: of everything, and of the
    largest piece.
    """

    trained: int
    asked: int
    strict: bool = False
    regions: int
    scratch: int = 0
    codec_asked: bool = False
    weights: int
    bytes_at: Callable[[int], int]
    largest_at: Callable[[int], int]

    @property
    def most(self) -> int:
        """The longest context that is of use."""
        return self.asked or self.trained

    @property
    def least(self) -> int:
        """The shortest context that will do."""
        return self.asked if self.asked and self.strict else min(LEAST_CONTEXT, self.most)

    def at(self, context: int) -> Placement:
        """Return what the model would take with a context."""
        positions = pages_for(context, TILE) * TILE
        return Placement(context=context, positions=positions, bytes=self.bytes_at(positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a model gets: context that a region holds, its positions (whole tiles), bytes in all."""

    context: int
    positions: int
    bytes: int


def share_out(needs: Mapping[str, Need], room: Room) -> dict[str, Placement | str]:
    """Return what each model gets of a device, or why it gets nothing.

    In their order, models get the context that they ask for, or the least one where that does not fit or
    they ask for none. Those with less than they could use share what is left then, alike, but for some
    head-room.
    """
    shares: dict[str, Placement | str] = {}
    free = room.free
    for model, need in needs.items():
        share = need.at(need.least)
        if need.asked and _fits(need, need.at(need.asked), free, room):
            share = need.at(need.asked)
        if _fits(need, share, free, room):
            shares[model] = share
            free -= share.bytes
        else:
            shares[model] = _reason(need, share, free, room)
    free = max(0, free - room.total // _HEAD_ROOM)
    growing = {model: share for model, share in shares.items() if isinstance(share, Placement)}
    growing = {model: share for model, share in growing.items() if share.context < needs[model].most}
    for rest, (model, share) in zip(range(len(growing), 0, -1), growing.items(), strict=True):
        grown = _longest(needs[model], share.bytes + free // rest, room, needs[model].most) or share
        free -= grown.bytes - share.bytes
        shares[model] = grown
    return shares


def shrink(need: Need, placement: Placement, room: Room) -> Placement | None:
    """Return a placement of fewer bytes, for one that did not fit in pieces; None where there is none."""
    shorter = _longest(need, placement.bytes * 7 // 8, room, placement.context)
    return None if shorter is None or shorter.context < need.least else shorter


def _fits(need: Need, placement: Placement, free: int, room: Room) -> bool:
    return placement.bytes <= free and need.largest_at(placement.positions) <= room.allocation


def _longest(need: Need, free: int, room: Room, most: int) -> Placement | None:
    """Return a longest context, `most` or whole tiles below it, that fits; None when a tile does not."""
    longest = need.at(most)
    if _fits(need, longest, free, room):
        return longest
    low, high = 0, pages_for(most, TILE)
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(need, need.at(middle * TILE), free, room):
            low = middle
        else:
            high = middle
    return need.at(low * TILE) if low else None


def _reason(need: Need, placement: Placement, free: int, room: Room) -> str:
    """Say with numbers why a placement does not fit."""
    there = f"the device's {mib(room.total)}"
    if free < room.total:
        there += f", of which {mib(free)} are free"
    if need.weights > free:
        return f"weights alone need {mib(need.weights)} of {there}; choose a smaller model"
    largest = need.largest_at(placement.positions)
    if largest > room.allocation:
        what = f"the device allocates {mib(room.allocation)} in one piece and {mib(largest)} are needed"
    else:
        what = f"{_parts(need)} at context {placement.context} need {mib(placement.bytes)} of {there}"
    shorter = _longest(need, free, room, placement.context)
    if shorter is not None:
        return f"{what}; it would fit with context = {shorter.context}"
    fewer = "lower regions, or " if need.regions > 1 else ""
    return f"{what}; {fewer}choose a smaller {'' if need.codec_asked else 'kv_dtype or '}model"


def _parts(need: Need) -> str:
    """Say what it is that does not fit."""
    regions = f"{need.regions} region{'s' if need.regions > 1 else ''}"
    return f"weights, {regions} and a scratch region" if need.scratch else f"weights and {regions}"
