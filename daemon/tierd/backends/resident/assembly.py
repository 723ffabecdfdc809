"""From a model's ops to dispatches: which kernel, over how many groups, with which addresses."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from tierd.backends.resident import attention, manifest, ops
from tierd.backends.resident.grid import Grid, Live, Per
from tierd.backends.resident.matmuls import form_of
from tierd.backends.resident.places import FloatRows, Places, StepPlaces
from tierd.backends.vkapi import DeviceFacts
from tierd.models.formats import KVCodec
from tierd.models.plan import Activation

# Name of what attention leaves in memory between its groups.
_SCRATCH = "attention's scratch"
# Lanes that share a head that is stored, and where loads are dear.
_HEAD_LANES = 32
_DEAR_HEAD_LANES = 8
# Values of a row that one group of an elementwise kernel takes.
_SPAN = 256


@dataclass(frozen=True, slots=True)
class Quantised:
    """Name of the quantised form of a buffer."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Name of a layer's K and V."""

    layer: int


@dataclass(frozen=True, slots=True)
class Shader:
    """What a pipeline is made of. constants: (name, value) of specialisation constants.

    subgroup: lanes that its subgroups must have, 0 where any number will do.
    """

    kernel: str
    variant: str = "plain"
    constants: tuple[tuple[str, int], ...] = ()
    subgroup: int = 0


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a shader.

    reads, writes: names of what it touches, to tell who must wait for whom. weights: bytes of the matrix that
    every group of the grid's second axis reads.
    """

    shader: Shader
    push: bytes
    grid: Grid
    reads: frozenset[Hashable]
    writes: frozenset[Hashable]
    weights: int = 0


class Assembler:
    """Makes the dispatches of a model's ops for steps of one size."""

    def __init__(
        self, places: Places, step: StepPlaces, codec: KVCodec, *, facts: DeviceFacts, rows: int, live: Live
    ) -> None:
        """facts: of the device. rows: most rows of a step. live: what counts them."""
        self._places = places
        self._step = step
        self._codec = codec
        self._facts = facts
        self._rows = rows
        self._live = Per(live)

    def dispatches(self, lowered: Iterable[ops.Op]) -> list[Dispatch]:
        """Return one dispatch for each op, in order."""
        return [self._dispatch(op) for op in lowered]

    def _dispatch(self, op: ops.Op) -> Dispatch:
        match op:
            case ops.Lookup():
                return self._lookup(op)
            case ops.FusedNorm():
                return self._norm(op)
            case ops.Product():
                return self._product(op)
            case ops.Heads():
                return self._heads(op)
            case ops.Attend():
                return self._attend(op)
            case ops.Gated():
                return self._gated(op)
            case ops.Quantise(src, terms):
                x, quantised = self._float(src), self._places.quantised[src]
                push = {"x": x.address, "quants": quantised.quants, "scales": quantised.scales}
                push |= {"width": x.width, "x_stride": x.stride}
                constants = {"TERMS": terms}
                return self._elementwise("quantise", push, x.width, [src], [Quantised(src)], constants)
            case ops.Sum(a, b, out):
                push = {}
                for name, buffer in (("a", a), ("b", b), ("out", out)):
                    push |= {name: self._float(buffer).address, f"{name}_stride": self._float(buffer).stride}
                width = self._float(out).width
                return self._elementwise("add", {**push, "width": width}, width, [a, b], [out])
            case ops.Select(src, out):
                x, y = self._float(src), self._float(out)
                push = {"src": x.address, "selection": self._step.selection, "out": y.address}
                push |= {"width": x.width, "src_stride": x.stride, "out_stride": y.stride}
                return self._elementwise("select", push, x.width, [src], [out])

    def _lookup(self, op: ops.Lookup) -> Dispatch:
        weights, out = self._places.weights[op.matrix], self._float(op.out)
        push = {
            "quants": weights.quants,
            "high": weights.high,
            "scales": weights.scales,
            "step": self._step.block,
            "sampled": self._step.before,
            "out": out.address,
            "blocks": weights.blocks,
            "out_stride": out.stride,
            "scale": op.scale,
        }
        return dispatch(Shader("embed", weights.layout), push, (1, self._live, 1), [], [op.out])

    def _norm(self, op: ops.FusedNorm) -> Dispatch:
        src, out = self._float(op.src), self._float(op.out)
        residual = self._float(op.residual) if op.residual is not None else None
        total = self._float(op.total) if op.total is not None else None
        flags = {
            "POST": op.post is not None,
            "ADD": residual is not None,
            "NORM": op.norm is not None,
            "OUT_FLOAT": op.norm is not None and (op.both or not op.quantised),
            "TERMS": op.terms,
        }
        push = {
            "src": src.address,
            "post_weight": self._vector(op.post),
            "residual": residual.address if residual else 0,
            "sum_out": total.address if total else 0,
            "weight": self._vector(op.norm),
            "out": out.address,
            **self._quantised(op.out, op.quantised),
            "width": src.width,
            "src_stride": src.stride,
            "residual_stride": residual.stride if residual else 0,
            "sum_stride": total.stride if total else 0,
            "out_stride": out.stride,
            "post_eps": op.post.eps if op.post else 0.0,
            "eps": op.norm.eps if op.norm else 0.0,
        }
        reads = [op.src, *([op.residual] if op.residual else [])]
        writes: list[Hashable] = [op.total] if op.total else []
        writes += [self._form(op.out, op.quantised)] if op.norm else []
        writes += [op.out] if op.both else []
        return dispatch(Shader("norm", constants=_flags(flags)), push, (1, self._live, 1), reads, writes)

    def _product(self, op: ops.Product) -> Dispatch:
        places = self._places
        weights, out = places.weights[op.matrix], self._float(op.outs[0])
        residual = self._float(op.residual) if op.residual is not None else None
        x = self._float(op.x)
        quantised = places.quantised[op.x] if op.terms else None
        push = {
            "quants": weights.quants,
            "high": weights.high,
            "scales": weights.scales,
            "x_quants": quantised.quants if quantised else x.address,
            "x_scales": quantised.scales if quantised else 0,
            "bias": places.vectors[op.biases] if op.biases else 0,
            "residual": residual.address if residual else 0,
            "out": out.address,
            "blocks": weights.blocks,
            "outputs": weights.rows,
            "x_stride": x.stride,
            "out_stride": out.stride,
            "residual_stride": residual.stride if residual else 0,
            "rows": places.selected if self._live.live is Live.SCORED else places.max_rows,
        }
        form = form_of(self._facts, weights.layout, terms=op.terms, blocks=weights.blocks, rows=self._rows)
        shader = Shader(form.kernel, form.variant, form.constants, form.subgroup)
        grid = (-(-weights.rows // form.outputs), Per(self._live.live, form.rows), 1)
        reads = [self._form(op.x, op.terms > 0), *([op.residual] if op.residual else [])]
        return dataclasses.replace(dispatch(shader, push, grid, reads, op.outs), weights=weights.bytes)

    def _heads(self, op: ops.Heads) -> Dispatch:
        places, store = self._places, op.store
        planes = places.rows[store.layer]
        push: dict[str, float] = {
            "q_norm": self._vector(op.q_norm),
            "k_norm": self._vector(op.k_norm),
            "rope": places.ropes[op.rope] if op.rope is not None else 0,
            "shape": places.shapes.get(store.layer, 0),
            "k_quants": planes.k_quants,
            "k_scales": planes.k_scales,
            "v_quants": planes.v_quants,
            "v_scales": planes.v_scales,
            "step": self._step.block,
            "positions": places.positions,
            "eps": (op.q_norm or op.k_norm or ops.Norm("", 0.0)).eps,
        }
        for name, buffer in (("q", op.q), ("k", op.k), ("v", op.v)):
            push |= {name: self._float(buffer).address, f"{name}_stride": self._float(buffer).stride}
        constants = {
            "HEAD_SIZE": store.head_size,
            "LANES": _DEAR_HEAD_LANES if self._facts.dear_loads else _HEAD_LANES,
            "HEADS": op.heads,
            "KV_HEADS": store.heads,
            "ROPE_PAIRS": len(op.rope.frequencies) if op.rope else 0,
            "ROPE_INTERLEAVED": op.rope.interleaved if op.rope else 0,
        }
        return dispatch(
            Shader("heads", self._codec.name, _flags(constants)),
            push,
            (op.heads + 2 * store.heads, self._live, 1),
            [op.q, op.k, op.v],
            [op.q, Stored(store.layer)],
        )

    def _attend(self, op: ops.Attend) -> Dispatch:
        places, store = self._places, op.store
        planes, q, out = places.rows[store.layer], self._float(op.q), self._float(op.out)
        quantised = places.quantised[op.out] if op.quantised else None
        form = attention.form_of(op, self._facts, self._rows)
        push = {
            "q": q.address,
            "k_quants": planes.k_quants,
            "k_scales": planes.k_scales,
            "v_quants": planes.v_quants,
            "v_scales": planes.v_scales,
            "step": self._step.block,
            "out": quantised.quants if quantised else out.address,
            "out_scales": quantised.scales if quantised else 0,
            "partials": places.scratch.partials,
            "counters": places.scratch.counters,
            "q_stride": q.stride,
            "out_stride": out.stride,
            "kv_heads": store.heads,
            "positions": places.positions,
            "window": op.window,
            "partial_tiles": places.scratch.split.tiles_of(self._rows),
            "scale": op.scale,
        }
        constants = {**form.constants, "OUT_QUANTISED": op.quantised}
        return dispatch(
            Shader("attention", self._codec.name, _flags(constants)),
            push,
            (store.heads * form.parts, self._live, Per(Live.SPLITS)),
            [op.q, Stored(store.layer)],
            [self._form(op.out, op.quantised), _SCRATCH],
        )

    def _gated(self, op: ops.Gated) -> Dispatch:
        gate, up, out = self._float(op.gate), self._float(op.up), self._float(op.out)
        constants = {
            "ACTIVATION": 0 if op.activation is Activation.SILU else 1,
            "OUT_FLOAT": not op.quantised,
            "OUT_QUANTISED": op.quantised,
        }
        push = {
            "gate": gate.address,
            "up": up.address,
            "out": out.address,
            **self._quantised(op.out, op.quantised),
            "width": gate.width,
            "gate_stride": gate.stride,
            "up_stride": up.stride,
            "out_stride": out.stride,
        }
        reads, writes = [op.gate, op.up], [self._form(op.out, op.quantised)]
        return self._elementwise("gate", push, gate.width, reads, writes, constants)

    def _elementwise(
        self,
        kernel: str,
        push: Mapping[str, float],
        width: int,
        reads: Iterable[Hashable],
        writes: Iterable[Hashable],
        constants: Mapping[str, int] | None = None,
    ) -> Dispatch:
        shader = Shader(kernel, constants=_flags(constants or {}))
        return dispatch(shader, push, (-(-width // _SPAN), self._live, 1), reads, writes)

    def _float(self, name: str) -> FloatRows:
        return self._places.floats.get(name, self._step.logits)

    def _vector(self, norm: ops.Norm | None) -> int:
        return 0 if norm is None else self._places.vectors[(norm.weight,)]

    def _quantised(self, name: str, wanted: bool) -> dict[str, int]:
        if not wanted:
            return {"quants": 0, "scales": 0}
        rows = self._places.quantised[name]
        return {"quants": rows.quants, "scales": rows.scales}

    def _form(self, name: str, quantised: bool) -> Hashable:
        return Quantised(name) if quantised else name


def dispatch(
    shader: Shader,
    push: Mapping[str, float],
    grid: Grid,
    reads: Iterable[Hashable],
    writes: Iterable[Hashable],
) -> Dispatch:
    """Return a dispatch with the push struct packed."""
    packed = manifest.pack(manifest.kernel(shader.kernel), **push)
    return Dispatch(shader, packed, grid, frozenset(reads), frozenset(writes))


def _flags(constants: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, int(value)) for name, value in constants.items())
