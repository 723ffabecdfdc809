"""What a model takes on a device, foreseen from its file's header; see `footprint`."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left

from tierd.backends.resident.backend import demand_of
from tierd.backends.resident.memory import Demand
from tierd.backends.vkapi import Device
from tierd.errors import UnsupportedModelError
from tierd.models import GGUFFile
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.settings import MOST_REGIONS, ModelSettings, Settings
from tierd.tier.budget import Placement, Room, share_out
from tierd.tier.footprint import Footprint
from tierd.tier.needs import need_of, rows_bytes
from tierd.tier.want import Want


def device_footprint(
    device: Device, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile
) -> Footprint | str:
    """Foresee a model alone on a device, or say why it is none for the device's kernels."""
    want = Want.of(model, settings)
    try:
        demand = demand_of(plan, file, KV_CODECS[want.kv_dtype], device.facts)
    except UnsupportedModelError as error:
        return str(error)
    need = need_of(want, plan, demand)
    room = Room(total=device.budget(), taken=0, allocation=device.facts.limits.allocation)
    share = share_out({model.id: need}, room)[model.id]
    decline = share if isinstance(share, str) else ""
    placement = need.at(need.asked or need.least) if isinstance(share, str) else share
    kv = rows_bytes(want, demand, placement.positions)
    return Footprint(
        place=device.facts.name,
        weights=need.weights,
        kv=kv,
        working=placement.bytes - need.weights - kv,
        room=room.total,
        context=placement.context,
        streams=min(want.streams, want.regions),
        most_streams=_most_streams(want, plan, demand, room, placement.context),
        rows=want.max_rows,
        decline=decline,
    )


def _most_streams(want: Want, plan: Plan, demand: Demand, room: Room, context: int) -> int:
    """Return how many regions of a context fit, were there streams for them."""

    def is_too_many(regions: int) -> bool:
        more = dataclasses.replace(
            want,
            regions=regions,
            streams=max(want.streams, regions),
            max_rows=want.max_rows + max(0, regions - want.streams),
            ctx_max=context,
            ctx_strict=True,
        )
        share = share_out({"": need_of(more, plan, demand)}, room)[""]
        return not isinstance(share, Placement)

    return bisect_left(range(1, MOST_REGIONS + 1), True, key=is_too_many)
