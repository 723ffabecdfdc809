"""A model on a fake device: regions of a null executor, a bank, and the CPU to fall back to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.null_slot import ByteTokenizer, null_slot
from tierd.backends.null import NullExecutor
from tierd.core import Batch
from tierd.errors import DeviceError, ModelError
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.settings import ModelSettings
from tierd.slot import Placed, Slot
from tierd.tier.device_home import DeviceHome


@dataclass
class NullFallback:
    """Opens null slots on the CPU, and null devices.

    declines: errors that the next understudies meet. declined: whether one has met any.
    broken: errors that the next tries to arm meet. tries: how often a lost device is tried again, and after
    how many seconds. probe: called before each. pages: of the CPU.
    """

    arm: Callable[[], DeviceHome]
    cpu_step: Callable[[Batch], None] | None = None
    declines: list[ModelError] = field(default_factory=list)
    broken: list[DeviceError] = field(default_factory=list)
    tries: int = 3
    delay_s: float = 0.0
    probe: Callable[[], None] = lambda: None
    come_back: Callable[[Slot], Placed] | None = None
    pages: int = 256
    refusal: str = ""
    declined: bool = False
    bank: Bank | None = None

    def understudy(self, slot: Slot) -> Slot:
        if self.declines:
            self.declined = True
            raise self.declines.pop(0)
        return null_slot(
            slot.settings,
            device="cpu",
            pages=self.pages,
            context=slot.context,
            chunk_rows=slot.chunk_rows,
            before_step=self.cpu_step,
            bank=self.bank,
        )

    def rearm(self, slot: Slot) -> Placed:
        self.tries -= 1
        if self.broken:
            raise self.broken.pop(0)
        self.probe()
        if self.come_back is not None:
            return self.come_back(slot)
        return Placed(
            home=self.arm(),
            context=slot.context,
            outcome=slot.outcome,
            device=slot.device,
            codec="f16",
            prefill_window=64,
        )

    def retry_at(self) -> float | None:
        return time.monotonic() + self.delay_s if self.tries else None


def device_slot(
    settings: ModelSettings,
    *,
    regions: int = 2,
    positions: int = 64,
    context: int = 0,
    bank: int | Bank = 1 << 20,
    gone: Gone | None = None,
    chunk_rows: int = 16,
    before_step: Callable[[Batch], None] | None = None,
    fallback: bool = True,
    keeps: bool = True,
    scratch: bool = False,
    executor: Callable[..., NullExecutor] = NullExecutor,
    cpu_step: Callable[[Batch], None] | None = None,
    **facts: bool,
) -> Slot:
    """Return a slot whose K/V lies in regions of so many positions.

    context 0: as many. bank: or its limit. executor: makes the device's, with these facts among others.
    cpu_step: see the understudy's executor.
    """
    remembered = gone or Gone()
    there = bank if isinstance(bank, Bank) else Bank(bank, on_drop=remembered.dropped)

    def arm() -> DeviceHome:
        null = executor(
            name="gpu",
            pages=regions + scratch,
            page_positions=positions,
            max_rows=chunk_rows + settings.streams,
            vocabulary=ByteTokenizer.vocabulary,
            depth=2,
            before_step=before_step,
            **facts,
        )
        return DeviceHome(
            null,
            model=settings.id,
            origin="gpu",
            bank=there,
            gone=remembered,
            regions=regions,
            keeps=keeps,
            device=getattr(null, "board", None),
        )

    slot = null_slot(settings, device="gpu", context=context or positions, chunk_rows=chunk_rows)
    slot.home = arm()
    slot.scratch = regions if scratch else None
    slot.outcome, slot.device = "gpu:resident", "null"
    if fallback:
        slot.fallback = NullFallback(arm, cpu_step, bank=there)
    return slot
