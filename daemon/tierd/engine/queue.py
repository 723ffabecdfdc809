"""Who may wait for a model, in which order, how long, and what those are told who may not.

Each model has a queue of its own, `capacity` requests long. Who can run with the slot's next step does not
wait, and does not count.

The order is that of ranks. A request of priority p stands where one of priority 0 would that came
p * `ageing_s` seconds later (earlier, below 0). So within one priority it is first come, first served, and of
two priorities the sooner one overtakes only those that came no more than `ageing_s` before for each step
between them: nothing starves. Where one too many waits the last in the order is turned away, whether it has
just come or not.
"""

from __future__ import annotations

import math
from heapq import merge
from itertools import islice

from tierd.core import Request, Sequence
from tierd.engine.routing import fitting
from tierd.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    QueueFullError,
    QueueTimeoutError,
)
from tierd.settings import QueueSettings
from tierd.slot import Slot, line_up

LONGEST_RETRY_S = 3600


def check(request: Request, slot: Slot) -> None:
    """Raise RequestError for what would block the queue for good, or fail a batch that others share. Pure."""
    if not request.prompt or request.max_tokens < 0:
        raise InvalidRequestError("a request needs at least one prompt token, and no less than 0 of output")
    if max(request.prompt) >= slot.executor.vocabulary or min(request.prompt) < 0:
        raise InvalidRequestError(
            f"the prompt holds a token id outside 0 to {slot.executor.vocabulary - 1}", param="prompt"
        )
    if any(not 0 <= token < slot.executor.vocabulary for token, _ in request.sampling.logit_bias):
        raise InvalidRequestError(
            f"logit_bias names a token id outside 0 to {slot.executor.vocabulary - 1}", param="logit_bias"
        )
    if request.positions > slot.context:
        raise ContextLengthExceededError(
            f"{len(request.prompt)} prompt tokens and {request.max_tokens} tokens of output do not fit "
            f"the model's context of {slot.context}; shorten the prompt or lower max_tokens"
        )
    if refusal := slot.home.refusal(request):
        raise ContextLengthExceededError(refusal)


def ready(slot: Slot) -> int:
    """Return how many of those who wait, from the first on, can run with the slot's next step. Pure."""
    places = max(0, slot.settings.streams - slot.occupied + len(slot.returning))
    if not slot.returning:
        return fitting(slot, list(islice(slot.waiting, places)))
    # Those that come back stand between them.
    line = list(merge(slot.returning, slot.waiting, key=lambda sequence: sequence.rank))[:places]
    return sum(sequence not in slot.returning for sequence in line[: fitting(slot, line)])


def rank(request: Request, submitted: float, settings: QueueSettings) -> float:
    """Return a request's place in the order: lower is sooner. Pure."""
    return submitted + request.priority * settings.ageing_s


def join(
    slot: Slot, sequence: Sequence, settings: QueueSettings, service_s: float
) -> tuple[Sequence, QueueFullError] | None:
    """Put a request into the queue, where its rank has it; return who is turned away for it, and why.

    Who is turned away is in the queue still. service_s: how long the model's requests run, as far as is
    known; 0 when it is not.
    """
    line_up(slot.waiting, sequence)
    waiting = len(slot.waiting) - ready(slot)
    if waiting <= settings.capacity:
        return None
    return slot.waiting[-1], QueueFullError(
        f"{slot.id}: the queue is full ({waiting - 1} of {settings.capacity} wait): {_obstacle(slot)}; "
        "try again later",
        retry_after=retry_after(slot, 1, service_s),
    )


def deadline(slot: Slot, settings: QueueSettings) -> float | None:
    """Return when the first of those that cannot run will have waited too long, monotonic seconds. Pure.

    While its model is away from the device, and before it was back, nobody waits in vain.
    """
    longest = _longest(slot) if settings.timeout_s and not slot.awaited else None
    return None if longest is None else max(longest.submitted, slot.back) + settings.timeout_s


def overdue(slot: Slot, settings: QueueSettings, now: float) -> Sequence | None:
    """Return who cannot run and has waited longest, if that is too long. Pure."""
    end = deadline(slot, settings)
    return _longest(slot) if end is not None and end <= now else None


def _longest(slot: Slot) -> Sequence | None:
    """Return who of those that cannot run came first."""
    there = islice(slot.waiting, ready(slot), None)
    return min(there, key=lambda sequence: sequence.submitted, default=None)


def timed_out(slot: Slot, settings: QueueSettings, service_s: float) -> QueueTimeoutError:
    """Return what a request is told that has waited too long; it is in the queue still. Pure."""
    return QueueTimeoutError(
        f"{slot.id}: waited {settings.timeout_s:g} s in the queue: {_obstacle(slot)}; try again later",
        retry_after=retry_after(slot, len(slot.waiting) - ready(slot), service_s),
    )


def retry_after(slot: Slot, places: int, service_s: float) -> int:
    """Return in how many whole seconds, at least one, `places` streams will have come to their end. Pure.

    Streams that run side by side for `service_s` each end at a rate of running / service_s.
    """
    running = slot.occupied + ready(slot)
    return max(1, min(LONGEST_RETRY_S, math.ceil(places * service_s / max(1, running))))


def _obstacle(slot: Slot) -> str:
    """Say what the first waits for that cannot run."""
    count = ready(slot)
    if slot.occupied + count >= slot.settings.streams:
        return f"all of the model's streams ({slot.settings.streams}) are taken"
    if slot.lost:
        return "the device is lost, and the CPU cannot have it"
    if slot.barred is not None:
        return f"{slot.barred.words}, and the CPU cannot have it"
    return f"the first in it waits for {slot.home.lack(islice(slot.waiting, count + 1))}"
