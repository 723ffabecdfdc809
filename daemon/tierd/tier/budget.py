"""Which models get room on a device, and how long their streams may be: decisions on numbers, all pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tierd.backends.resident.regions import TILE
from tierd.kv.sizing import mib, pages_for

# A context that nobody has asked for is not cut to fewer positions than these.
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

    trained: positions it was trained for. asked: its context, 0 for as much as fits. regions: one a stream.
    bytes_at, largest_at: of everything, and of the largest piece.
    """

    trained: int
    asked: int
    regions: int
    bytes_at: Callable[[int], int]
    largest_at: Callable[[int], int]

    def at(self, context: int) -> Placement:
        """Return what the model would take with a context."""
        positions = pages_for(context, TILE) * TILE
        return Placement(context=context, positions=positions, bytes=self.bytes_at(positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a model gets: context of a stream, positions of a region (whole tiles), bytes in all."""

    context: int
    positions: int
    bytes: int


def share_out(needs: Mapping[str, Need], room: Room) -> dict[str, Placement | str]:
    """Return what each model gets of a device, or why it gets nothing.

    In their order, models get the context that they ask for or the least one. Those that did not ask share
    what is left then, alike, but for some head-room.
    """
    shares: dict[str, Placement | str] = {}
    free = room.free
    for model, need in needs.items():
        smallest = need.at(need.asked or min(LEAST_CONTEXT, need.trained))
        if _fits(need, smallest, free, room):
            shares[model] = smallest
            free -= smallest.bytes
        else:
            shares[model] = _reason(need, smallest, free, room)
    free = max(0, free - room.total // _HEAD_ROOM)
    growing = [model for model, share in shares.items() if not isinstance(share, str)]
    growing = [model for model in growing if not needs[model].asked]
    for rest, model in zip(range(len(growing), 0, -1), growing, strict=True):
        share = shares[model]
        assert isinstance(share, Placement)
        grown = _longest(needs[model], share.bytes + free // rest, room, needs[model].trained) or share
        free -= grown.bytes - share.bytes
        shares[model] = grown
    return shares


def shrink(need: Need, placement: Placement, room: Room) -> Placement | None:
    """Return a placement of fewer bytes, for one that did not fit in pieces; None where there is none."""
    shorter = _longest(need, placement.bytes * 7 // 8, room, placement.context)
    if need.asked or shorter is None or shorter.context < min(LEAST_CONTEXT, need.trained):
        return None
    return shorter


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
    largest = need.largest_at(placement.positions)
    if largest > room.allocation:
        what = f"the device allocates {mib(room.allocation)} in one piece and {mib(largest)} are needed"
    else:
        streams = f"{need.regions} stream{'s' if need.regions > 1 else ''}"
        there = f", of which {mib(free)} are free" if free < room.total else ""
        what = (
            f"weights and {streams} at context {placement.context} need {mib(placement.bytes)} of the "
            f"device's {mib(room.total)}{there}"
        )
    shorter = _longest(need, free, room, placement.context)
    if shorter is not None:
        return f"{what}; it would fit with context = {shorter.context}"
    return f"{what}; lower streams, or choose a smaller kv_dtype or model"
