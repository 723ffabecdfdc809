"""A model's memory on the device: how much it takes, and every buffer of it.

Weights come in a buffer per matrix, K and V in one per layer, what steps compute with in one more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tierd.backends.resident import ops
from tierd.backends.resident.image import Image
from tierd.backends.resident.image_layout import ALIGNMENT, ImageLayout, Span, Vector
from tierd.backends.resident.lowering import Lowering
from tierd.backends.resident.matmuls import check_outputs
from tierd.backends.resident.ops import Matrix
from tierd.backends.resident.places import (
    BLOCK,
    FloatRows,
    Places,
    QuantisedRows,
    RowPlanes,
    Scratch,
    Weights,
)
from tierd.backends.resident.regions import plane_bytes
from tierd.backends.resident.split import Split
from tierd.backends.vkapi import Buffer, Device, DeviceFacts, Part, Role
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan, RopeSpec, RowStore
from tierd.progress import Progress

_FLOAT = 4
# Of a quantised block: its scale and its sums.
_BLOCK_SCALE = 8
# Steps that may be in flight.
SEATS = 2
# Positions between two coarse angles of a rope table.
_ROPE_FINE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a model's memory is made for.

    regions, positions: of K and V. max_rows: of a step. selected: rows whose logits a step computes at once.
    """

    regions: int
    positions: int
    max_rows: int
    selected: int


class Demand:
    """What a model needs of a device besides K and V.

    lowering: its ops. matrices, vectors, ropes: what they use. layout: of its image. stores: of all layers.
    facts: of the device.
    """

    def __init__(self, plan: Plan, file: GGUFFile, lowering: Lowering, facts: DeviceFacts) -> None:
        """Raises UnsupportedModelError for a matrix that the device's grids are too small for."""
        every = [*lowering.body, *lowering.tail, *lowering.head]
        self.matrices = tuple(op.matrix for op in every if isinstance(op, ops.Lookup | ops.Product))
        self.vectors = tuple(_vectors(every))
        self.ropes = tuple({op.rope: 0 for op in every if isinstance(op, ops.Heads) and op.rope is not None})
        self.layout = ImageLayout.of(file.tensors, self.matrices, self.vectors)
        self._products = [op.matrix for op in every if isinstance(op, ops.Product)]
        self._check(facts)
        self.stores: tuple[RowStore, ...] = tuple(lowering.stores.values())
        self._attends = [op for op in every if isinstance(op, ops.Attend)]
        self.lowering = lowering
        self._plan = plan
        self.facts = facts

    def on(self, facts: DeviceFacts) -> Demand:
        """Return what the model needs of a device of other facts. Raises UnsupportedModelError, as before."""
        if facts == self.facts:
            return self
        self._check(facts)
        other = copy.copy(self)
        other.facts = facts
        return other

    def activations(self, shape: Shape) -> Activations:
        """Place what steps compute with."""
        return Activations(self._plan, self.lowering, shape)

    def split(self, positions: int) -> Split:
        """Say how attention may be split; positions: of a region."""
        return Split.of(self._attends, positions, self.facts)

    def working_bytes(self, shape: Shape) -> int:
        """Return the bytes of weights and of all that steps compute with."""
        angles = _ROPE_FINE + -(-shape.positions // _ROPE_FINE)
        ropes = sum(angles * len(rope.frequencies) * 2 * _FLOAT for rope in self.ropes)
        split = self.split(shape.positions)
        steps = self.activations(shape).size + SEATS * logits_bytes(self._plan.vocabulary, shape.selected)
        return self.layout.size + ropes + steps + split.partials + split.counters

    def _check(self, facts: DeviceFacts) -> None:
        for matrix in self._products:
            check_outputs(facts, self.layout.matrices[matrix].rows)


class Activations:
    """Float and quantised buffers, logits aside, in one run of bytes.

    floats: (offset, width, stride) by name. quantised: offsets of quants and scales. padded: whether any rows
    are not whole blocks. What fills their last block is read, and written by nobody: it must be zeros.
    """

    def __init__(self, plan: Plan, lowering: Lowering, shape: Shape) -> None:
        self.size = 0
        self.padded = any(width % BLOCK for name, width in plan.buffers.items() if name != plan.logits)
        self.floats: dict[str, tuple[int, int, int]] = {}
        self.quantised: dict[str, tuple[int, int]] = {}
        together = {name: group for group in lowering.neighbours for name in group}
        rows = dict.fromkeys(plan.buffers, shape.max_rows)  # of quantised forms
        for op in (*lowering.tail, *lowering.head):
            if isinstance(op, ops.Product):
                rows[op.x] = max(rows[op.x], op.terms * shape.max_rows)
        for name in plan.buffers:
            if name == plan.logits or name in self.floats:
                continue
            group = together.get(name, (name,))
            stride = sum(_padded(plan.buffers[member]) for member in group)
            offset = self._cut(shape.max_rows * stride * _FLOAT)
            for member in group:
                self.floats[member] = (offset, plan.buffers[member], stride)
                offset += _padded(plan.buffers[member]) * _FLOAT
                blocks = rows[member] * _padded(plan.buffers[member]) // BLOCK
                self.quantised[member] = (self._cut(blocks * BLOCK), self._cut(blocks * _BLOCK_SCALE))

    def _cut(self, size: int) -> int:
        offset = self.size
        self.size += -(-size // ALIGNMENT) * ALIGNMENT
        return offset


class ModelMemory:
    """All buffers of a model on a device, and where everything is. activations: what steps compute with."""

    def __init__(
        self,
        device: Device,
        demand: Demand,
        image: Image,
        codec: KVCodec,
        shape: Shape,
        *,
        shapes: Mapping[int, npt.NDArray[np.float32]],
        uploading: Progress | None = None,
    ) -> None:
        """Allocate and upload. Raises DeviceError, having given all back. shapes: of keys, by layer."""
        self._device = device
        self._uploading = uploading
        self._buffers: list[Buffer] = []
        try:
            self.places = self._build(demand, image, codec, shape, shapes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give everything back. Idempotent; the device must be done with it."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()

    def buffer(self, size: int, role: Role) -> Buffer:
        """Return a new buffer that is closed with the others."""
        buffer = self._device.buffer(size, role)
        self._buffers.append(buffer)
        return buffer

    def upload(self, array: npt.NDArray[np.generic]) -> Buffer:
        """Return a new buffer in the device's memory with an array's bytes."""
        data = memoryview(array.tobytes())
        buffer = self.buffer(len(data), Role.DEVICE)

        def fill(view: memoryview, offset: int, size: int) -> None:
            view[:size] = data[offset : offset + size]

        self._device.upload([Part(buffer, 0, len(data))], fill)
        return buffer

    def _build(
        self,
        demand: Demand,
        image: Image,
        codec: KVCodec,
        shape: Shape,
        shapes: Mapping[int, npt.NDArray[np.float32]],
    ) -> Places:
        activations = demand.activations(shape)
        if activations.padded:
            self.activations = self.upload(np.zeros(activations.size, np.uint8))
        else:
            self.activations = self.buffer(activations.size, Role.DEVICE)
        base = self.activations.address
        return Places(
            floats={
                name: FloatRows(base + offset, width, stride)
                for name, (offset, width, stride) in activations.floats.items()
            },
            quantised={
                name: QuantisedRows(base + quants, base + scales)
                for name, (quants, scales) in activations.quantised.items()
            },
            weights=self._matrices(image),
            vectors=self._vectors(image),
            ropes={rope: self.upload(rope_table(rope, shape.positions)).address for rope in demand.ropes},
            rows={store.layer: self._rows(store, codec, shape) for store in demand.stores},
            shapes={layer: self.upload(table).address for layer, table in shapes.items()},
            scratch=self._scratch(demand.split(shape.positions)),
            max_rows=shape.max_rows,
            selected=shape.selected,
            positions=shape.positions,
        )

    def _matrices(self, image: Image) -> dict[Matrix, Weights]:
        weights, parts = {}, []
        for matrix, placed in image.layout.matrices.items():
            start, end = _extent(placed.planes)
            buffer = self.buffer(end - start, Role.DEVICE)
            parts.append(Part(buffer, start, end - start))
            quants, high, scales = (
                buffer.address + span.offset - start if span.size else 0 for span in placed.planes
            )
            size = sum(span.size for span in placed.planes)
            weights[matrix] = Weights(placed.layout, placed.rows, placed.columns, size, quants, high, scales)
        self._device.upload(parts, image.fill, progress=self._report(image.size))
        return weights

    def _report(self, total: int) -> Callable[[int], None] | None:
        uploading = self._uploading
        return None if uploading is None else lambda done: uploading(done, total)

    def _vectors(self, image: Image) -> dict[Vector, int]:
        spans = image.layout.vectors
        if not spans:
            return {}
        start, end = _extent(spans.values())
        buffer = self.buffer(end - start, Role.DEVICE)
        self._device.upload([Part(buffer, start, end - start)], image.fill)
        return {vector: buffer.address + span.offset - start for vector, span in spans.items()}

    def _rows(self, store: RowStore, codec: KVCodec, shape: Shape) -> RowPlanes:
        planes = plane_bytes(store, codec, shape.regions, shape.positions)
        buffer = self.buffer(2 * (planes.quants + planes.scales), Role.DEVICE)
        k, v = buffer.address, buffer.address + planes.quants
        scales = v + planes.quants
        if not planes.scales:
            return RowPlanes(k, 0, v, 0)
        return RowPlanes(k, scales, v, scales + planes.scales)

    def _scratch(self, split: Split) -> Scratch:
        counters = self.upload(np.zeros(split.counters, np.uint8))
        partials = self.buffer(split.partials, Role.DEVICE).address if split.partials else 0
        return Scratch(partials, counters.address, split)


def logits_stride(vocabulary: int) -> int:
    """Return how many floats apart rows of logits lie."""
    return _padded(vocabulary)


def logits_bytes(vocabulary: int, rows: int) -> int:
    """Return the bytes of so many rows of logits."""
    return rows * logits_stride(vocabulary) * _FLOAT


def hidden_bytes(width: int, rows: int) -> int:
    """Return the bytes of so many hidden states."""
    return rows * _padded(width) * _FLOAT


def rope_table(rope: RopeSpec, positions: int) -> npt.NDArray[np.float32]:
    """Return the (cos, sin) that kernels turn by, shape (rows, pairs, 2); see `shaders/rope.glsl`."""
    angles = np.concatenate([np.arange(_ROPE_FINE), np.arange(0, positions, _ROPE_FINE)])
    turns = angles[:, None] * np.array(rope.frequencies)
    table = np.stack([np.cos(turns), np.sin(turns)], axis=-1)
    table[_ROPE_FINE:] *= rope.magnitude
    rounded: npt.NDArray[np.float32] = table.astype(np.float32)
    return rounded


def _vectors(lowered: Iterable[ops.Op]) -> Iterator[Vector]:
    for op in lowered:
        match op:
            case ops.FusedNorm():
                norms = (op.post, op.norm)
            case ops.Heads():
                norms = (op.q_norm, op.k_norm)
            case _:
                norms = (None, None)
        yield from ((norm.weight,) for norm in norms if norm is not None)
        if isinstance(op, ops.Product) and op.biases:
            yield op.biases


def _extent(spans: Iterable[Span]) -> tuple[int, int]:
    """Return where a run of spans begins and where it ends."""
    there = [span for span in spans if span.size]
    return min(span.offset for span in there), max(span.offset + span.size for span in there)


def _padded(width: int) -> int:
    """Return a row's width in whole blocks."""
    return -(-width // BLOCK) * BLOCK
