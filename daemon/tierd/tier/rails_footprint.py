"""What a part of a model takes of a device, foreseen from its file's header; see `footprint`. Opens none."""

from __future__ import annotations

from dataclasses import dataclass

from tierd.backends.rails.backend import demand_of
from tierd.backends.rails.card import COPIES
from tierd.kv.sizing import mib
from tierd.models import GGUFFile
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.settings import ModelSettings
from tierd.tier.footprint import Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class RailsFootprint:
    """A model whose large matmuls a device computes, as many layers' as it holds. Sizes are bytes.

    layers: whose matmuls are there. all_layers: those that have some. tensors: weights, and what steps carry
    to and fro. copies: of these, which Kompute keeps where the machine sees them. shared: with its process,
    to carry them. taken: what tensors and copies count of the room. host: what the model takes of the
    machine's memory besides. decline: why no layer can be there, "" when one can.
    """

    layers: int
    all_layers: int
    tensors: int
    copies: int
    shared: int
    taken: int
    room: int
    host: int
    decline: str = ""


def rails_footprint(
    model: ModelSettings, plan: Plan, file: GGUFFile, host: Footprint, room: int
) -> RailsFootprint:
    """Foresee a model in part on a device that has so many bytes for it. host: what it takes there.

    Raises UnsupportedModelError for what the host lacks.
    """
    demand = demand_of(plan, file, KV_CODECS[model.codec], host.rows)
    layers, decline = demand.within(room), host.decline  # all else is on the host
    if not decline and not demand.layers:
        decline = "none of its matmuls is one that Kompute can bind"
    elif not decline and not layers:
        first = mib(demand.bytes_of(demand.layers[:1]))
        decline = f"{mib(room)} hold not one of its layers; the first one takes {first}"
    taken = demand.bytes_of(layers)
    return RailsFootprint(
        layers=len(layers),
        all_layers=len(demand.layers),
        tensors=taken // COPIES,
        copies=taken - taken // COPIES,
        shared=demand.part(layers, "").host_bytes - (taken - taken // COPIES),
        taken=taken,
        room=room,
        host=host.total,
        decline=decline,
    )
