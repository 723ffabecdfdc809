"""What a model needs of the device, in numbers."""

from __future__ import annotations

from tierd.backends.resident.draws import draw_bytes, picked_bytes
from tierd.backends.resident.image_layout import ALIGNMENT
from tierd.backends.resident.memory import SEATS, Demand, Shape, hidden_bytes, logits_bytes
from tierd.backends.resident.regions import plane_bytes, region_bytes
from tierd.backends.resident.shapes import shape_bytes
from tierd.backends.resident.transfers import staged_bytes, table_bytes
from tierd.backends.vkapi import Role, roles_on_device
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.tier.budget import Need
from tierd.tier.want import Want

# Those that are not one for each matrix, rope or layer. Each buffer may take up to ALIGNMENT bytes more.
_OTHER_BUFFERS = 5 + 4 * SEATS


def shape_of(want: Want, positions: int) -> Shape:
    """Return what a model's memory is made for. positions: of a region. A step wants one row of a stream."""
    regions = want.regions + want.scratch
    selected = min(want.streams, regions)
    return Shape(regions=regions, positions=positions, max_rows=want.max_rows, selected=selected)


def rows_bytes(want: Want, demand: Demand, positions: int) -> int:
    """Return the bytes of K and V of all its regions. positions: of a region."""
    return shape_of(want, 0).regions * region_bytes(demand.stores, KV_CODECS[want.kv_dtype], positions)


def need_of(want: Want, plan: Plan, demand: Demand) -> Need:
    """Return what a wanted model needs: weights, regions, and all that steps compute with."""
    codec = KV_CODECS[want.kv_dtype]
    regions, selected = shape_of(want, 0).regions, shape_of(want, 0).selected
    extents = ([span for span in matrix.planes if span.size] for matrix in demand.layout.matrices.values())
    matrix = max(max(s.offset + s.size for s in spans) - min(s.offset for s in spans) for spans in extents)

    buffers = len(demand.layout.matrices) + len(demand.ropes) + 2 * len(demand.stores) + _OTHER_BUFFERS
    besides = SEATS * draw_bytes(plan.vocabulary, selected) + buffers * ALIGNMENT
    besides += shape_bytes(demand.stores, codec) + table_bytes(demand.stores)
    states = hidden_bytes(plan.buffers[plan.hidden], want.max_rows)
    read_back = SEATS * (logits_bytes(plan.vocabulary, selected) + picked_bytes(selected) + states)
    on_device = roles_on_device(demand.facts.memory_types, demand.facts.heaps)

    def bytes_at(positions: int) -> int:
        rows = rows_bytes(want, demand, positions)
        staged = staged_bytes(demand.stores, codec, positions)
        # What comes and goes counts where the host's memory is the device's.
        by_role = {Role.UPLOAD: staged, Role.READBACK: staged + read_back}
        there = sum(size for role, size in by_role.items() if role in on_device)
        return demand.working_bytes(shape_of(want, positions)) + rows + besides + there

    def largest_at(positions: int) -> int:
        planes = [plane_bytes(store, codec, regions, positions) for store in demand.stores]
        return max(
            matrix,
            *(2 * (plane.quants + plane.scales) for plane in planes),
            demand.activations(shape_of(want, positions)).size,
            demand.split(positions).partials,
            logits_bytes(plan.vocabulary, selected),
        )

    return Need(
        trained=plan.context,
        asked=want.ctx_max,
        strict=want.ctx_strict,
        pinned=want.pinned,
        regions=want.regions,
        scratch=want.scratch,
        codec_asked=want.kv_dtype_asked,
        weights=demand.layout.size,
        bytes_at=bytes_at,
        largest_at=largest_at,
    )
