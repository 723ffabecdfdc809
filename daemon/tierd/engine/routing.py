"""Which streams of a model on the device go to the CPU, and why. Decisions only, all pure."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Ordered
from itertools import takewhile

from tierd.core import FailedEvent, FinishedEvent, FinishReason, PassReason, Sequence, TerminalEvent
from tierd.engine.scheduler import usage
from tierd.errors import ContextLengthExceededError
from tierd.slot import Slot

# Tokens that a stream must still want, to be moved from pages of the CPU to the device.
_WORTH_RETURNING = 32


def passing(slot: Slot) -> PassReason | None:
    """Say why who is next in a slot is for the CPU; None where the device will have it, or nobody waits."""
    first = slot.first
    if slot.fallback is None or first is None:
        return None
    if slot.lost:
        return PassReason.DEVICE_LOST
    if len(first.tokens) > slot.home.most:
        return PassReason.CAP
    if len(first.tokens) > slot.longest:
        return PassReason.CONTINUATION
    if not slot.serves:
        return slot.barred
    # Regions of those who have just ended are free in a moment.
    return PassReason.UNHOMED if len(slot.running) >= slot.home.room.total else None


def still_passing(slot: Slot, sequence: Sequence) -> PassReason:
    """Say why a stream of a model on the device is on the CPU now; slot: the model's on the device."""
    reason = sequence.passes
    assert reason is not None
    if reason in (PassReason.CAP, PassReason.CONTINUATION):
        return reason
    if slot.lost:
        return PassReason.DEVICE_LOST
    if not slot.serves:
        return slot.barred or PassReason.AWAY
    room = slot.home.room
    return PassReason.UNHOMED if room.used == room.total else PassReason.PAGED


def returnable(slot: Slot, staying: Collection[Sequence]) -> Sequence | None:
    """Return a stream on the CPU that is to come back to the device, which has room for it.

    One that waits for pages of the CPU is the first to. staying: those that are not to leave pages that they
    have.
    """
    understudy, room = slot.understudy, slot.home.room
    if understudy is None or not slot.serves or slot.first is not None or room.used == room.total:
        return None
    going = [one for one in understudy.running if _is_worth_moving(one) and one not in staying]
    for sequence in (*understudy.returning, *going):
        if _may_return(slot, sequence) and slot.home.can_admit(sequence) and not sequence.moves:
            return sequence
    return None


def wishes(slot: Slot) -> bool:
    """Whether any of a model's streams on the CPU would come back to the device if the model did."""
    there = slot.understudy
    return there is not None and any(
        _is_worth_moving(sequence) and _may_return(slot, sequence)
        for sequence in (*there.returning, *there.running)
    )


def _is_worth_moving(sequence: Sequence) -> bool:
    return sequence.request.max_tokens - sequence.generated >= _WORTH_RETURNING


def _may_return(slot: Slot, sequence: Sequence) -> bool:
    request = sequence.request
    return (
        len(request.prompt) + request.max_tokens <= slot.home.most
        and len(sequence.tokens) <= slot.longest
        and not sequence.paused
    )


def fitting(slot: Slot, waiting: Ordered[Sequence]) -> int:
    """Return how many of those who wait, from the first on, could be admitted now, wherever."""
    short = list(takewhile(lambda sequence: len(sequence.tokens) <= slot.longest, waiting))
    there = slot.home.fitting(short) if slot.serves or slot.awaited else 0
    if slot.understudy is not None:
        there += slot.understudy.home.fitting(waiting[there:])
    return there


def too_long(slot: Slot, sequence: Sequence) -> TerminalEvent:
    """Return how a stream ends that is longer than a region, where the CPU cannot have it."""
    if sequence.generated:
        return FinishedEvent(FinishReason.LENGTH, usage(sequence))
    return FailedEvent(
        ContextLengthExceededError(
            f"{len(sequence.tokens)} prompt tokens are more than the {slot.longest} positions that a "
            f"stream has on the device, and the CPU cannot serve it ({slot.stranded}); shorten the prompt"
        )
    )
