"""Places where streams of the null device have their K/V."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.device_slot import device_slot
from engine.null_slot import null_slot
from tierd.slot import Slot

Slots = Callable[..., Slot]
PLACES: dict[str, Slots] = {
    "pages": null_slot,
    "pages of a device that draws": partial(null_slot, depth=2),
    "regions": partial(device_slot, regions=8),
}
