"""What becomes of a model on the device when that cannot have its streams; see `slot.Fallback`."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from tierd.backends import library
from tierd.errors import DeviceLostError, DeviceMemoryError, DeviceTimeoutError, ModelError, TierdError
from tierd.models import GGUFFile, build_plan
from tierd.settings import Settings
from tierd.slot import Placed, Site, Slot
from tierd.tier.seat import DeviceSeat, SeatState

if TYPE_CHECKING:
    from tierd.tier.device_site import DeviceSite
    from tierd.tier.marks import DeviceMarks

log = logging.getLogger(__name__)


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
            reply=slot.reply,
            home=placed.home,
            context=slot.context,
            chunk_rows=slot.chunk_rows,
            outcome=placed.outcome,
            device=placed.device,
        )

    def rearm(self, slot: Slot) -> Placed:
        """See Fallback. Finds out first whether there is a device that works again.

        With a context that was asked for and is not strict, its regions may be shorter than before. Where
        there is no room for it now, it is away, and returned with its marks. Raises DeviceMemoryError where
        the device is too small for it; then, as whenever it fails, the slot has its marks.
        """
        self._device.probe()
        seat = slot.seat
        assert isinstance(seat, DeviceSeat)
        if seat.state is SeatState.LOST:
            slot.marks = seat.save()
        try:
            placed = self._come(seat, slot)
        except BaseException as error:
            if seat.state is SeatState.RESTORED:
                slot.marks = seat.save()
            gone = isinstance(error, DeviceLostError | DeviceTimeoutError)
            self._declined = isinstance(error, TierdError) and not gone
            raise
        slot.marks = placed.marks
        return dataclasses.replace(placed, fallback=self)

    def retry_at(self) -> float | None:
        """See Fallback. A model that can never be on the fresh device is not offered again."""
        return None if self._declined else self._device.lost()

    def _come(self, seat: DeviceSeat[DeviceMarks], slot: Slot) -> Placed:
        try:
            return self._device.come(seat, slot.marks)
        except DeviceMemoryError as error:
            if seat.state is not SeatState.RESTORED:  # no share of the device would do
                raise
            log.warning("model=%s finds no memory on the device that works again: %s", slot.id, error)
            return self._device.wait(seat)
