"""Moves of rows, in slices that devices carry between steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Ordered

from tierd.engine.fallbacks import Fallbacks
from tierd.engine.runner import Device
from tierd.engine.scheduler import moved
from tierd.errors import DeviceError
from tierd.kv.moves import Move
from tierd.slot import Slot

log = logging.getLogger(__name__)


class Carrier:
    """Has the first move of each slot done. The engine thread's own."""

    def __init__(self, fallbacks: Fallbacks) -> None:
        self._fallbacks = fallbacks

    def carry(self, device: Device, here: Ordered[Slot]) -> bool:
        """Give the device slices of all its slots' moves. Returns whether any stream can go on now."""
        ended = [self._carry(device, slot) for slot in here]
        return any(ended)

    def carried(self, slot: Slot, move: Move, error: Exception | None) -> None:
        """Take in that a slice of a move is done, or has failed."""
        slot.move = None
        if move not in slot.home.moves:  # the device was lost meanwhile
            return
        if isinstance(error, DeviceError) and slot.fallback is not None:
            self._fallbacks.lose(slot, error)
        elif error is not None:
            log.error("model=%s device=%s rows could not be moved: %s", slot.id, slot.executor.name, error)
            _end(slot, done=False)
        elif not move.left:
            _end(slot, done=True)

    def _carry(self, device: Device, slot: Slot) -> bool:
        """Give the device the next slice of the slot's first move, unless it has one.

        Moves that have nothing to move end; returns whether any did, whose streams can go on now.
        """
        ended = False
        while slot.move is None and slot.home.moves and not slot.home.moves[0].left:
            _end(slot, done=True)
            ended = True
        if slot.move is None and slot.home.moves:
            slot.move = slot.home.moves[0]
            device.carry(slot, slot.move, slot.move.left.popleft())
        return ended


def _end(slot: Slot, *, done: bool) -> None:
    move = slot.home.moves.popleft()
    move.finish(done)
    moved(slot, move.sequence)
