"""What a model holds of the device, as one value: with it the model comes back from wherever it was."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tierd.backends.resident.backend import Prepared
from tierd.backends.resident.memory import Shape
from tierd.backends.vkapi import DeviceFacts
from tierd.settings import ModelSettings
from tierd.tier.budget import Need, Placement
from tierd.tier.needs import need_of, shape_of
from tierd.tier.want import Want


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceMarks:
    """A model's; see `seat.Marks`. It needs its file no more.

    identity: of that, see `GGUFFile`. want: what its load asked for. need: that in numbers, now. placement:
    what it gets. prepared: its weights, mapped.
    """

    settings: ModelSettings
    identity: str
    want: Want
    need: Need
    placement: Placement
    prepared: Prepared

    @property
    def model(self) -> str:
        """Whose they are."""
        return self.settings.id

    @property
    def bytes(self) -> int:
        """What the model takes of the device."""
        return self.placement.bytes

    @property
    def context(self) -> int:
        """Positions of a stream: those of a region, or more where longer streams may be elsewhere."""
        if self.want.require != "none":
            return self.placement.context
        return self.need.asked or self.placement.context

    @property
    def shape(self) -> Shape:
        """What its memory there is made for."""
        return shape_of(self.want, self.placement.positions)

    def place(self, placement: Placement) -> DeviceMarks:
        """Return the marks of the same model with another placement."""
        return dataclasses.replace(self, placement=placement)

    def told(self) -> DeviceMarks:
        """Return the marks of a model whose streams have been told their context, which it asks for now."""
        strict = self.want.require != "none" or (self.need.strict and self.need.asked > 0)
        return dataclasses.replace(
            self, need=dataclasses.replace(self.need, asked=self.context, strict=strict)
        )

    def on(self, facts: DeviceFacts) -> DeviceMarks:
        """Return the marks on a device of other facts. Raises UnsupportedModelError for what that lacks."""
        demand = self.prepared.demand.on(facts)
        if demand is self.prepared.demand:
            return self
        prepared = dataclasses.replace(self.prepared, demand=demand)
        need = need_of(self.want, prepared.plan, demand)
        need = dataclasses.replace(need, asked=self.need.asked, strict=self.need.strict)
        return dataclasses.replace(self, prepared=prepared, need=need)
