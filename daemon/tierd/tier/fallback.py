"""What becomes of a model on the device when that cannot have its streams; see `slot.Fallback`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tierd.backends import library
from tierd.errors import DeviceLostError, DeviceTimeoutError, ModelError, TierdError
from tierd.models import GGUFFile, build_plan
from tierd.settings import Settings
from tierd.slot import Placed, Site, Slot
from tierd.tier.seat import DeviceSeat, SeatState

if TYPE_CHECKING:
    from tierd.tier.device_site import DeviceSite


class TierFallback:
    """Of one slot: its understudy is at a host site, and its device is tried again when that is due."""

    def __init__(self, settings: Settings, device: DeviceSite, host: Site, refusal: str) -> None:
        """refusal: why the CPU must not have its streams, "" when it may."""
        self.refusal = refusal
        self._settings = settings
        self._device = device
        self._host = host
        self._declined = False

    def understudy(self, slot: Slot) -> Slot:
        """See Fallback. Raises ModelError where memory does not hold it."""
        model = dataclasses.replace(slot.settings, context=slot.context, ctx_strict=True)
        try:
            with GGUFFile.open(model.path) as file:
                if build_plan(file) != slot.plan:
                    raise ModelError(
                        f"{slot.id}: {model.path} is not the file that was loaded; restart tierd"
                    )
                placed = self._host.put(model, self._settings, slot.plan, file)
        except MemoryError as error:
            raise ModelError(f"{slot.id}: there is not the memory to load it once more") from error
        library.trim()
        return Slot(
            settings=slot.settings,
            limits=slot.limits,
            plan=slot.plan,
            tokenizer=slot.tokenizer,
            renderer=slot.renderer,
            home=placed.home,
            context=slot.context,
            chunk_rows=slot.chunk_rows,
            outcome=placed.outcome,
            device=placed.device,
        )

    def rearm(self, slot: Slot) -> Placed:
        """See Fallback. Finds out first whether there is a device that works again.

        With a context that was asked for and is not strict, its regions may be shorter than before. Where
        there is no room any more beside the others that are there, it is away, and returned with its marks.
        Where it fails the slot has its marks, for another try.
        """
        self._device.probe()
        seat = slot.seat
        assert isinstance(seat, DeviceSeat)
        if seat.state is SeatState.LOST:
            slot.marks = seat.save()
        try:
            placed = self._device.come(seat, slot.marks)
        except BaseException as error:
            if seat.state is SeatState.RESTORED:
                slot.marks = seat.save()
            gone = isinstance(error, DeviceLostError | DeviceTimeoutError)
            self._declined = isinstance(error, TierdError) and not gone
            raise
        slot.marks = placed.marks
        return dataclasses.replace(placed, fallback=self)

    def retry_at(self) -> float | None:
        """See Fallback. A model that the fresh device has declined is not offered again."""
        return None if self._declined else self._device.lost()
