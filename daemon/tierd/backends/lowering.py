"""From a plan's ops to the host kernels' ops.

Neighbours are fused where that saves a pass over a buffer: a norm or a gate whose result only matmuls
with quantised weights read is written quantised, a matmul takes in the sum behind it, K is turned while
it is stored. A table of rotations is made once per step and rope. An op waits for the other threads only
where it reads or overwrites what an op since the last wait has touched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tierd.backends import library
from tierd.errors import UnsupportedModelError
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import (
    Activation,
    Add,
    Attention,
    Embed,
    Gate,
    MatMul,
    Norm,
    Op,
    Plan,
    Rope,
    RopeSpec,
    RowStore,
    SelectRows,
    StoreRows,
)

_LARGEST_HEAD = 4096


def row_stores(plan: Plan, codec: KVCodec) -> list[RowStore]:
    """Return the plan's stores, all of them rows that fit the codec, or raise UnsupportedModelError."""
    stores = []
    for store in plan.stores:
        if not isinstance(store, RowStore):
            raise UnsupportedModelError(
                f"{plan.architecture} keeps a recurrent state, which the host backend does not have"
            )
        codec.row_bytes(store.head_size)
        if store.head_size > _LARGEST_HEAD:
            raise UnsupportedModelError(
                f"{plan.architecture} has heads of {store.head_size} values; {_LARGEST_HEAD} are supported"
            )
        stores.append(store)
    return stores


class Names:
    """Numbers names in the order in which they first come up."""

    def __init__(self) -> None:
        self._index: dict[Any, int] = {}

    def number(self, name: Hashable) -> int:
        """Return the number of a name, a new one if need be."""
        return self._index.setdefault(name, len(self._index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


@dataclass(frozen=True, slots=True)
class _Quantised:
    """Name of the quantised form of a float buffer."""

    buffer: str


@dataclass(frozen=True, slots=True)
class _RopeTable:
    """Name of the table of rotations of one rope."""

    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class _Stored:
    """Name of a layer's K/V rows, as something that ops read and write."""

    layer: int


class Lowering:
    """The kernels' ops of one plan, and what their numbers stand for.

    ops: fields of `hk_op`. buffers, weights, vectors, ropes: names by number. widths: of the buffers.
    token_ids: how many ids there are embeddings for. hidden: the width of a hidden state.
    """

    def __init__(self, plan: Plan, file: GGUFFile, codec: KVCodec) -> None:
        """Raises UnsupportedModelError for what the kernels lack."""
        _, self._lib = library.load()
        self._plan = plan
        self._file = file
        self.ops: list[dict[str, Any]] = []
        self.buffers = Names()
        self.widths: list[int] = []
        self.weights = Names()
        self.vectors = Names()
        self.ropes = Names()
        self.stores = row_stores(plan, codec)
        self.token_ids = 2**31
        self.hidden = plan.buffers[plan.hidden]
        self._store_of_layer = {store.layer: index for index, store in enumerate(self.stores)}
        self._fresh: set[Hashable] = set()  # quantised forms and tables that are up to date
        self._selected = self._scored = False
        self._read: set[Hashable] = set()  # since the last wait
        self._written: set[Hashable] = set()
        index = 0
        while index < len(plan.ops):
            index += self._fuse(index) or self._lower(index)
            self._scored |= operands(plan.ops[index - 1])[1] == plan.hidden

    def kind_of(self, name: Hashable) -> int:
        """Return the kernels' kind of a buffer."""
        if isinstance(name, _Quantised):
            return int(self._lib.HK_BUFFER_QUANTISED)
        if name == self._plan.hidden:
            return int(self._lib.HK_BUFFER_HIDDEN)
        return int(self._lib.HK_BUFFER_LOGITS if name == self._plan.logits else self._lib.HK_BUFFER_FLOAT)

    def _fuse(self, index: int) -> int:
        """Lower two ops as one where that can be; return how many ops were lowered."""
        match self._plan.ops[index : index + 2]:
            case (MatMul() as matmul, Add(a, b, out)) if matmul.out in (a, b):
                residual = a if b == matmul.out else b
                if residual == matmul.out or (out != matmul.out and self._is_read(index + 2, matmul.out)):
                    return 0
                self._matmul(matmul, out, residual)
            case (Rope() as rope, StoreRows(k, v, layer)) if rope.buffer == k:
                self._store(k, v, layer, rope)
            case _:
                return 0
        return 2

    def _lower(self, index: int) -> int:
        """Lower one op, after what it needs; return 1."""
        match self._plan.ops[index]:
            case Embed(weight, out, scale):
                self.token_ids = min(self.token_ids, self._file.tensors[weight].shape[0])
                self._emit("EMBED", [], out, weight=self.weights.number(weight), scale=scale)
            case Norm(src, weight, out, eps, heads):
                target = self._target(index, out) if heads == 1 else out
                self._emit("NORM", [src], target, vector=self.vectors.number(weight), eps=eps, heads=heads)
            case MatMul(out=out) as matmul:
                self._matmul(matmul, out)
            case Rope(buffer, heads, spec):
                size = self._plan.buffers[buffer] // heads
                self._emit("ROPE", [buffer], buffer, **self._rope(spec), heads=heads, head_size=size)
            case StoreRows(k, v, layer):
                self._store(k, v, layer)
            case Attention(q, out, layer, heads, scale, window):
                store = self._store_of_layer[layer]
                self._emit(
                    "ATTENTION",
                    [q, _Stored(layer)],
                    out,
                    store=store,
                    heads=heads,
                    head_size=self.stores[store].head_size,
                    scale=scale,
                    window=window,
                )
            case Gate(gate, up, out, activation):
                kind = self._lib.HK_SILU if activation is Activation.SILU else self._lib.HK_GELU
                self._emit("GATE", [gate, up], self._target(index, out), activation=kind)
            case Add(a, b, out):
                self._emit("ADD", [a, b], out)
            case SelectRows(src, out):
                self._emit("SELECT", [src], out)
                self._selected = True
        return 1

    def _matmul(self, op: MatMul, out: str, residual: str | None = None) -> None:
        source: Hashable = op.src
        if self._is_quantised(op.weight):
            source = _Quantised(op.src)
            if source not in self._fresh:
                self._emit("QUANTISE", [op.src], source)
        self._emit(
            "MATMUL",
            [source] if residual is None else [source, residual],
            out,
            weight=self.weights.number(op.weight),
            vector=-1 if op.bias is None else self.vectors.number(op.bias),
        )

    def _store(self, k: str, v: str, layer: int, rope: Rope | None = None) -> None:
        turn = {} if rope is None else self._rope(rope.spec)
        self._emit("STORE", [k, v], _Stored(layer), store=self._store_of_layer[layer], **turn)
        if rope is not None:
            self._touch_written(k)

    def _rope(self, spec: RopeSpec) -> dict[str, int]:
        """Return the fields that say how to turn, the table made if need be."""
        table = _RopeTable(spec)
        number = self.ropes.number(spec)
        if table not in self._fresh:
            self._emit("ROPE_TABLE", [], table, rope=number)
        return {"rope": number, "table": self._buffer(table)}

    def _target(self, index: int, out: str) -> Hashable:
        """Return the form in which the op at `index` should write `out`: quantised if only that is read."""
        readers = list(self._readers(index + 1, out))
        quantised = (
            readers
            and out not in (self._plan.hidden, self._plan.logits)
            and all(isinstance(op, MatMul) and self._is_quantised(op.weight) for op in readers)
        )
        return _Quantised(out) if quantised else out

    def _is_quantised(self, weight: str) -> bool:
        layout = self._lib.hk_layout_of(self._file.tensors[weight].format.id)
        return bool(layout >= self._lib.HK_LAYOUT_Q8X16)

    def _is_read(self, index: int, buffer: str) -> bool:
        return buffer == self._plan.logits or any(self._readers(index, buffer))

    def _readers(self, index: int, buffer: str) -> Iterator[Op]:
        """Yield the ops from `index` on that read a buffer as it is now, until one writes it anew."""
        for op in self._plan.ops[index:]:
            reads, written = operands(op)
            if buffer in reads:
                yield op
            if buffer == written:
                return

    def _emit(self, kind: str, reads: Sequence[Hashable], writes: Hashable, **fields: Any) -> None:
        touched = {*reads}
        if "table" in fields:
            touched.add(_RopeTable(list(self.ropes)[fields["rope"]]))
        wait = bool(self._written & {*touched, writes}) or writes in self._read
        if wait:
            self._read.clear()
            self._written.clear()
        self._read.update(touched)
        self._touch_written(writes)
        op = dict.fromkeys(("src", "src2", "weight", "vector", "rope", "table", "store"), -1)
        sources = [self._buffer(name) for name in reads if not isinstance(name, _Stored)]
        op.update(dict(zip(("src", "src2"), sources, strict=False)))
        op.update(
            kind=getattr(self._lib, f"HK_OP_{kind}"),
            wait=wait,
            selected=self._selected,
            scored=self._scored,
            out=-1 if isinstance(writes, _Stored) else self._buffer(writes),
            **fields,
        )
        self.ops.append(op)

    def _touch_written(self, name: Hashable) -> None:
        """Note that a name has new contents."""
        self._written.add(name)
        if isinstance(name, str):
            self._fresh.discard(_Quantised(name))
        else:
            self._fresh.add(name)

    def _buffer(self, name: Hashable) -> int:
        number = self.buffers.number(name)
        if number == len(self.widths):
            match name:
                case _Quantised(buffer):
                    self.widths.append(self._plan.buffers[buffer])
                case _RopeTable(rope):
                    self.widths.append(2 * len(rope.frequencies))
                case str():
                    self.widths.append(self._plan.buffers[name])
        return number


def operands(op: Op) -> tuple[tuple[str, ...], str | None]:
    """Return the buffers an op reads, and the one it writes."""
    match op:
        case Embed(out=out):
            return (), out
        case Norm(src=src, out=out) | MatMul(src=src, out=out) | SelectRows(src=src, out=out):
            return (src,), out
        case Rope(buffer=buffer):
            return (buffer,), buffer
        case StoreRows(k=k, v=v):
            return (k, v), None
        case Attention(q=q, out=out):
            return (q,), out
        case Gate(gate=a, up=b, out=out) | Add(a=a, b=b, out=out):
            return (a, b), out
