"""Which memory type serves which role: a pure decision on a device's property table."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tierd.backends.vkapi.facts import MemoryHeap, MemoryType
from tierd.errors import DeviceError


class Role(enum.Enum):
    """What memory is for.

    DEVICE: what the device reads and writes all the time; where the host sees it, it is slow to read. UPLOAD:
    the host writes it, the device copies from it. READBACK: the device writes it, the host reads it. STEP:
    small, the host writes and the device reads it in every step.
    """

    DEVICE = "device"
    UPLOAD = "upload"
    READBACK = "readback"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """The memory type of a role; mapped: the host has a view of it."""

    index: int
    mapped: bool


def choose_types(
    types: Sequence[MemoryType],
    heaps: Sequence[MemoryHeap],
    *,
    usable: int = ~0,
    hide_host_visible: bool = False,
) -> Mapping[Role, tuple[TypeChoice, ...]]:
    """Return the memory types of each role, the best first; the next one is for when that one's heap is full.

    Only what the host writes in every step has a second one: what it writes best may be a small window.

    usable: a bit for each type that buffers may be in. hide_host_visible: device-local memory is treated as
    if the host could not see it, wherever another way exists. Only coherent memory is mapped, so nothing ever
    needs to be flushed. Raises DeviceError for a table without a type that a role could have; Vulkan
    guarantees that there is none such.
    """
    table = {index: entry for index, entry in enumerate(types) if usable >> index & 1 and not entry.special}
    largest_local = max((heap.size for heap in heaps if heap.device_local), default=0)

    def mappable(entry: MemoryType) -> bool:
        return entry.host_visible and entry.coherent

    def pick(
        role: Role, fits: Callable[[MemoryType], bool], rank: Callable[[MemoryType], tuple[bool, ...]]
    ) -> int:
        found = [index for index, entry in table.items() if fits(entry)]
        if not found:
            raise DeviceError(f"the device has no memory for the role {role.value}; update the driver")
        # The best rank; among equals the largest heap, then Vulkan's own order, which puts the faster first.
        return max(found, key=lambda i: (rank(table[i]), heaps[table[i].heap].size, -i))

    device = pick(
        Role.DEVICE,
        lambda entry: entry.device_local,
        # The host may see the weights only where it sees all of the device's memory, not a window of it.
        lambda entry: (heaps[entry.heap].size == largest_local, mappable(entry) and not hide_host_visible),
    )
    upload = pick(Role.UPLOAD, mappable, lambda entry: (not entry.device_local, not entry.cached))
    readback = pick(Role.READBACK, mappable, lambda entry: (entry.cached, not entry.device_local))
    step = upload
    if not hide_host_visible:
        step = pick(Role.STEP, mappable, lambda entry: (entry.device_local, not entry.cached))
    return {
        Role.DEVICE: (TypeChoice(device, mappable(types[device]) and not hide_host_visible),),
        Role.UPLOAD: (TypeChoice(upload, True),),
        Role.READBACK: (TypeChoice(readback, True),),
        Role.STEP: tuple(TypeChoice(index, True) for index in dict.fromkeys((step, upload))),
    }


def roles_on_device(types: Sequence[MemoryType], heaps: Sequence[MemoryHeap]) -> frozenset[Role]:
    """Return the roles whose memory comes out of the heap that role DEVICE has, itself among them.

    Where memory is hidden from the host, role STEP takes of role UPLOAD's heap instead.
    """
    chosen = {role: types[choices[0].index].heap for role, choices in choose_types(types, heaps).items()}
    return frozenset(role for role, heap in chosen.items() if heap == chosen[Role.DEVICE])
