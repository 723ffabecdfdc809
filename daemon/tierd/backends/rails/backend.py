"""Rails as a backend: the host's, with the room that its matmuls would take on a device known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tierd.backends.host import HostBackend
from tierd.backends.lowering import Lowering
from tierd.backends.rails.cuts import Group, find_groups, of_layers
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.rails.products import fits, host_bytes, product_bytes
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan
from tierd.progress import Progress


@dataclass(frozen=True, slots=True)
class Part:
    """What a device may have of a model. layers: whose matmuls. place: the device and its driver.

    host_bytes: that this takes of the machine's own memory.
    """

    layers: tuple[int, ...] = ()
    place: str = ""
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model's layers would take of a device. groups: their matmuls. max_rows: of a step."""

    groups: tuple[Group, ...]
    max_rows: int

    @property
    def layers(self) -> tuple[int, ...]:
        """Those that have something for a device, in order."""
        return tuple(dict.fromkeys(group.matmuls[0].layer for group in self.groups))

    def bytes_of(self, layers: Sequence[int]) -> int:
        """Return what these layers would take."""
        return product_bytes(of_layers(self.groups, layers), self.max_rows)

    def within(self, room: int) -> tuple[int, ...]:
        """Return the first layers, as many as so many bytes hold."""
        layers = self.layers
        low, high = 0, len(layers) + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.bytes_of(layers[:middle]) <= room:
                low = middle
            else:
                high = middle
        return layers[:low]

    def part(self, layers: tuple[int, ...], place: str) -> Part:
        """Return what a device has that has these layers."""
        return Part(layers, place, host_bytes(of_layers(self.groups, layers), self.max_rows))


def demand_of(plan: Plan, file: GGUFFile, codec: KVCodec, max_rows: int) -> Demand:
    """Return what a model's layers would take. Raises UnsupportedModelError for what the host lacks."""
    groups = find_groups(Lowering(plan, file, codec), file)
    return Demand(tuple(group for group in groups if fits(group, max_rows)), max_rows)


class RailsBackend:
    """See Backend. What it compiles has nothing on the device yet.

    Which rows the device has a part in depends on the sizes of steps, and on when the layers are there. So
    the numerics name the host and what may be on the device: rows of which the host has computed all are
    such rows too, and those of a model whose layers are away are shared with those of one whose layers are
    not.
    """

    name = "rails"

    def __init__(self, host: HostBackend, rows: int, part: Part = Part()) -> None:
        """rows: least of a step that goes to the device. part: of the models that are compiled."""
        self._host = host
        self._rows = rows
        self._part = part
        self.page_positions = host.page_positions
        layers = ",".join(map(str, part.layers))
        self.numerics = f"rails over {host.numerics}, layers {layers} on {part.place}"

    def page_bytes(self, plan: Plan, codec: KVCodec) -> int:
        """See Backend."""
        return self._host.page_bytes(plan, codec)

    def weight_bytes(self, plan: Plan, file: GGUFFile) -> int:
        """See Backend."""
        return self._host.weight_bytes(plan, file) + self._part.host_bytes

    def step_bytes(self, plan: Plan, max_rows: int, logit_rows: int) -> int:
        """See Backend."""
        return self._host.step_bytes(plan, max_rows, logit_rows)

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        *,
        codec: KVCodec,
        pages: int,
        max_rows: int,
        progress: Progress | None = None,
    ) -> RailsExecutor:
        """See Backend."""
        demand = demand_of(plan, file, codec, max_rows)
        host = self._host.compile(plan, file, codec=codec, pages=pages, max_rows=max_rows, progress=progress)
        return RailsExecutor(host, demand.groups, self._rows)
