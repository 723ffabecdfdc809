"""What is said of parked conversations whose rows the bank has dropped."""

from __future__ import annotations

import logging

from tierd.kv.banked import Banked
from tierd.kv.gone import Gone
from tierd.metrics import Metrics

log = logging.getLogger(__name__)


def note_drop(gone: Gone, metrics: Metrics, entry: Banked) -> None:
    """Count and log an entry that the bank is about to drop, and remember it."""
    gone.dropped(entry)
    metrics.bank_dropped.labels(entry.model).inc()
    metrics.bank_dropped_positions.labels(entry.model).inc(entry.valid)
    if entry.damaged:  # the bank has said so
        metrics.bank_damaged.labels(entry.model).inc()
        return
    log.info(
        "model=%s the bank dropped K/V of a parked conversation, %d positions: %s; what no page holds of it "
        "is computed again",
        entry.model,
        entry.valid,
        _shortage(entry),
    )


def _shortage(entry: Banked) -> str:
    """Say where there was no room for it."""
    if entry.path is not None:
        return "its file made room for others, see state.max_mb and the disk"
    if entry.unwritable:
        return "its memory was needed and it has no file, see kv.bank_mb, state.max_mb and the disk"
    return "its memory was needed, see kv.bank_mb and state.dir"
