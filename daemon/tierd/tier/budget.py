"""Which models get room on a device, and how long their streams may be: decisions on numbers, all pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
    """A device's memory, in bytes.

    total: of it. taken: promised to others that may be there all at once. pinned: of that, to those that
    never leave. allocation: most in one piece.
    """

    total: int
    taken: int
    pinned: int = 0
    allocation: int

    @property
    def free(self) -> int:
        """Bytes that nobody has yet."""
        return max(0, self.total - self.taken)

    @property
    def alone(self) -> int:
        """Bytes for a model once all have left that may."""
        return max(0, self.total - self.pinned)

    @property
    def head_room(self) -> int:
        """Bytes that contexts do not grow into."""
        return self.total // _HEAD_ROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a model needs, by the positions of a region.

    trained: positions it was trained for. asked: its context, 0 for as much as fits. strict: no less than
    what is asked will do. pinned: it never leaves for others. regions: of streams, and besides them those for
    scratch. codec_asked: whether somebody chose how rows are kept. weights: their bytes. bytes_at,
    largest_at: of everything, and of the largest piece.
    """

    trained: int
    asked: int
    strict: bool = False
    pinned: bool = False
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
        size = self.bytes_at(positions)
        return Placement(context=context, positions=positions, bytes=size, pinned=self.pinned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a model gets: context that a region holds, its positions (whole tiles), bytes in all.

    pinned: see Need. turns: it is not promised to be there beside the others, only alone.
    """

    context: int
    positions: int
    bytes: int
    pinned: bool = False
    turns: bool = False


def share_out(needs: Mapping[str, Need], room: Room) -> dict[str, Placement | str]:
    """Return what each model gets of a device, or why it gets nothing.

    In their order, the pinned ones first, models get the context that they ask for, or the least one where
    they ask for none, or where not even alone it fits. Whoever does not fit beside those before it takes
    turns with them, if it fits beside the pinned ones. Those with less than they could use share what is left
    then, alike, but for some head-room; one that takes turns has all but what is pinned. Pinned ones do not
    grow into what they would have to take from others.
    """
    shares: dict[str, Placement | str] = {}
    free, alone = room.free, room.alone
    for model in sorted(needs, key=lambda model: not needs[model].pinned):
        need = needs[model]
        share = _first(need, alone, room)
        if not _fits(need, share, alone, room):
            shares[model] = _reason(need, share, alone, room)
            continue
        if _fits(need, share, free, room):
            free -= share.bytes
        else:
            share = _taking_turns(share)
        shares[model] = share
        if need.pinned:
            alone -= share.bytes
            free = min(free, alone)
    _grow(shares, needs, room, free, alone)
    return {model: shares[model] for model in needs}


def shrink(need: Need, placement: Placement, room: Room) -> Placement | None:
    """Return a placement of fewer bytes, for one that did not fit in pieces; None where there is none."""
    shorter = _longest(need, placement.bytes * 7 // 8, room, placement.context)
    if shorter is None or shorter.context < need.least:
        return None
    return _taking_turns(shorter) if placement.turns else shorter


def _first(need: Need, free: int, room: Room) -> Placement:
    """Return what is asked for where that fits, else the least."""
    asked = need.at(need.asked or need.least)
    return asked if _fits(need, asked, free, room) else need.at(need.least)


def _taking_turns(placement: Placement) -> Placement:
    return dataclasses.replace(placement, turns=True)


def _grow(
    shares: dict[str, Placement | str], needs: Mapping[str, Need], room: Room, free: int, alone: int
) -> None:
    """Let models have more of what is free: beside the others, and alone with the pinned ones."""
    placed = {model: share for model, share in shares.items() if isinstance(share, Placement)}
    turning = {model: share for model, share in placed.items() if share.turns}
    growing = [model for model, share in placed.items() if share.context < needs[model].most]
    beside = [model for model in growing if model not in turning]
    pinned = [model for model in beside if needs[model].pinned]

    def share_alike(models: Sequence[str], spare: int) -> int:
        """Let models grow by so many bytes in all; return how many they took."""
        left = spare
        for rest, model in zip(range(len(models), 0, -1), models, strict=True):
            share = placed[model]
            grown = _longest(needs[model], share.bytes + left // rest, room, needs[model].most) or share
            left -= grown.bytes - share.bytes
            placed[model] = grown
        return spare - left

    spare = max(0, free - room.head_room)
    if pinned:  # those that take turns must fit beside them still
        least = max((share.bytes for share in turning.values()), default=0)
        part = min(spare * len(pinned) // len(beside), alone - least - room.head_room)
        grown = share_alike(pinned, max(0, part))
        spare, alone = spare - grown, alone - grown
    share_alike([model for model in beside if model not in pinned], spare)
    for model, share in turning.items():
        if model in growing and not share.pinned:
            share_alike([model], max(0, alone - share.bytes - room.head_room))
            placed[model] = _taking_turns(placed[model])
    shares.update(placed)


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
