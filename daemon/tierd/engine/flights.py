"""What of each stream is in steps that its executor has been given and is not done with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tierd.core import Sequence
from tierd.slot import Slot, Step


@dataclass(frozen=True, slots=True)
class Flight:
    """A sequence's rows in flight that count; those that are void do not.

    rows: how many there are. tokens: how many tokens come of them. latest: which of the rows with logits in
    the latest step brings the last of these; None where there is none in that step.
    """

    rows: int = 0
    tokens: int = 0
    latest: int | None = None


def flights(slot: Slot) -> Mapping[Sequence, Flight]:
    """Return what of each running sequence is in flight, in the order of admission. Pure."""
    found = dict.fromkeys(slot.running, Flight())
    for step in slot.steps:
        row = 0
        for sequence, chunk in zip(step.sequences, step.chunks, strict=True):
            count = len(chunk.logit_rows)
            last = row + count - 1
            if sequence in found and sequence not in step.void:
                before = found[sequence]
                latest = last if chunk.draws and step is slot.steps[-1] else None
                found[sequence] = Flight(before.rows + len(chunk.tokens), before.tokens + chunk.draws, latest)
            row += count
    return found


def counting(slot: Slot, step: Step) -> list[bool]:
    """Return for each sequence of a step that is done whether anybody cares for its rows. Pure."""
    return [sequence in slot.running and sequence not in step.void for sequence in step.sequences]
