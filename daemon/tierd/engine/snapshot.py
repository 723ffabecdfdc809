"""What the engine publishes about its work after each turn; immutable, replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tierd.slot import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSnapshot:
    """One model's streams and K/V pages. pages_free + pages_used + pages_cached = pages_total.

    outcome, device, decline: where the model runs, and why not on the device; see `slot.Placed`.
    paused: those of the running streams whose clients do not keep up.
    pages_used: held by streams. pages_cached: held by the prefix cache alone, which gives them up for
    others. pages_reserved: free or cached pages that are promised to running streams.
    """

    outcome: str
    device: str
    decline: str
    running: int
    paused: int
    waiting: int
    pages_total: int
    pages_free: int
    pages_used: int
    pages_cached: int
    pages_reserved: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All models that are loaded, by id."""

    models: Mapping[str, ModelSnapshot] = field(default_factory=dict)


def observe(slots: Iterable[Slot]) -> Snapshot:
    """Return how things stand. Called on the engine thread."""
    return Snapshot(
        {
            slot.id: ModelSnapshot(
                outcome=slot.outcome,
                device=slot.device,
                decline=slot.decline,
                running=len(slot.running),
                paused=sum(sequence.paused for sequence in slot.running),
                waiting=len(slot.waiting),
                pages_total=slot.pool.total,
                pages_free=slot.pool.free,
                pages_used=slot.pool.used,
                pages_cached=slot.pool.cached,
                pages_reserved=slot.pool.reserved,
            )
            for slot in slots
        }
    )
