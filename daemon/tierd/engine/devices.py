"""The devices that there are, and which slots are at each. The engine thread's own."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from tierd.engine.messages import Message
from tierd.engine.runner import Device
from tierd.slot import Slot


class Devices:
    """slots: all, understudies too; whose step was done longest ago comes first."""

    def __init__(self, inbox: SimpleQueue[Message], gap: float) -> None:
        """gap: see `pace.Paces`."""
        self.slots: dict[Slot, None] = {}
        self._inbox = inbox
        self._gap = gap
        self._devices: dict[str, Device] = {}

    def __iter__(self) -> Iterator[tuple[Device, list[Slot]]]:
        """Each device, with its slots."""
        for device in list(self._devices.values()):
            yield device, [slot for slot in self.slots if slot.executor.name == device.name]

    def configure(self, gap: float) -> None:
        """Keep another gap; see `pace.Paces`."""
        self._gap = gap
        for device in self._devices.values():
            device.paces.gap = gap

    @property
    def busy(self) -> bool:
        """Whether a runner is at work."""
        return any(slot.steps or slot.move is not None for slot in self.slots)

    @property
    def leaving(self) -> bool:
        """Whether streams that have ended wait for a runner to be done with their rows."""
        return any(slot.leaving for slot in self.slots)

    @property
    def at_work_s(self) -> float:
        """For how long the one is at its step or move that is at it longest; 0 where none is at work."""
        return max((device.at_work_s for device in self._devices.values()), default=0.0)

    def of(self, slot: Slot) -> Device:
        """Return the device that a slot is at."""
        return self._devices[slot.executor.name]

    def enter(self, slot: Slot) -> None:
        """Let a slot take part in the turns of its device."""
        self.slots[slot] = None
        name = slot.executor.name
        if name not in self._devices:
            self._devices[name] = Device(name, self._inbox, self._gap)
        self._devices[name].turns.enter(slot.id, slot.settings.weight)

    def leave(self, slot: Slot) -> None:
        """Forget a slot that is served no more."""
        self.slots.pop(slot, None)
        self.of(slot).turns.leave(slot.id)
        self.of(slot).paces.forget(slot)

    def put_last(self, slot: Slot) -> None:
        """Note that a slot's step is done."""
        self.slots[slot] = self.slots.pop(slot)

    def stop(self) -> None:
        """Let the runners end once their work is done."""
        for device in self._devices.values():
            device.stop()

    def join(self) -> None:
        """Wait for their end."""
        for device in self._devices.values():
            device.join()
