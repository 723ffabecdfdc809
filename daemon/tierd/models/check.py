"""Checks a plan against its file once, so that executors may trust it.

A plan that passes has: buffers of the right widths, each written before it is read; weights that exist and
have the shapes their ops need; every store written once, before it is attended over; no aliasing but
where an op allows it; nothing but row-wise ops after `SelectRows`; hidden states that are written there,
once; and logits as wide as the vocabulary.
"""

from __future__ import annotations

import math

from tierd.errors import ModelError, ModelFileError
from tierd.models.gguf import GGUFFile
from tierd.models.plan import (
    Add,
    Attention,
    Embed,
    Gate,
    MatMul,
    Norm,
    Op,
    Plan,
    Rope,
    RowStore,
    SelectRows,
    StoreRows,
)

_VECTOR_FORMATS = ("F32", "F16", "BF16")


def check_plan(plan: Plan, file: GGUFFile) -> None:
    """Check every op, in order.

    Raises ModelFileError, naming the tensor and both shapes, where a weight does not fit; ModelError,
    naming the op and the buffer, where the plan itself is wrong.
    """
    checker = _Checker(plan, file)
    for number, op in enumerate(plan.ops):
        checker.where = f"op {number} ({type(op).__name__})"
        checker.check(op)
    checker.where = "the end"
    checker.check_end()


class _Checker:
    """Walks the ops. written: buffers that hold a value; stored: layers whose store has this step's rows."""

    def __init__(self, plan: Plan, file: GGUFFile) -> None:
        self.plan = plan
        self.file = file
        self.where = "the start"
        self.written: set[str] = set()
        self.stored: set[int] = set()
        self.selected = False
        self.row_stores = {store.layer: store for store in plan.stores if isinstance(store, RowStore)}
        for name, width in plan.buffers.items():
            self.ensure(width >= 1, f"buffer {name} is {width} wide")
        layers = [store.layer for store in plan.stores]
        self.ensure(len(set(layers)) == len(layers), "two stores belong to the same layer")
        for store in self.row_stores.values():
            self.ensure(
                store.heads >= 1 and store.head_size >= 1, f"the store of layer {store.layer} is empty"
            )

    def check(self, op: Op) -> None:
        match op:
            case Embed():
                self.ensure(not self.selected, "stands after SelectRows")
                self.weight(op.weight, (self.plan.vocabulary, self.width(op.out)))
                self.ensure(math.isfinite(op.scale), f"has scale {op.scale}")
                self.write(op.out)
            case Norm():
                self.check_norm(op)
            case MatMul():
                self.ensure(op.out != op.src, f"writes {op.out} while it reads it")
                self.weight(op.weight, (self.width(op.out), self.read(op.src)))
                if op.bias is not None:
                    self.vector(op.bias, self.width(op.out))
                self.write(op.out)
            case Rope():
                self.check_rope(op)
            case StoreRows():
                self.check_store_rows(op)
            case Attention():
                self.check_attention(op)
            case Gate():
                self.same_width(self.read(op.gate), self.read(op.up), self.width(op.out))
                self.write(op.out)
            case Add():
                self.same_width(self.read(op.a), self.read(op.b), self.width(op.out))
                self.write(op.out)
            case SelectRows():
                self.ensure(not self.selected, "stands after another SelectRows")
                self.ensure(op.out != op.src, f"writes {op.out} while it reads it")
                self.same_width(self.read(op.src), self.width(op.out))
                self.selected = True
                self.written = {op.out}

    def check_norm(self, op: Norm) -> None:
        width = self.read(op.src)
        self.same_width(width, self.width(op.out))
        self.ensure(math.isfinite(op.eps) and op.eps > 0, f"has eps {op.eps}")
        self.vector(op.weight, self.head_width(width, op.heads))
        self.write(op.out)

    def check_rope(self, op: Rope) -> None:
        self.ensure(not self.selected, "stands after SelectRows")
        head = self.head_width(self.read(op.buffer), op.heads)
        turned = 2 * len(op.spec.frequencies)
        self.ensure(0 < turned <= head, f"turns {turned} elements of heads of {head}")
        numbers = (*op.spec.frequencies, op.spec.magnitude)
        self.ensure(all(math.isfinite(number) for number in numbers), "has a number that is not finite")

    def check_store_rows(self, op: StoreRows) -> None:
        self.ensure(not self.selected, "stands after SelectRows")
        store = self.store(op.layer)
        self.ensure(op.layer not in self.stored, f"writes the store of layer {op.layer} a second time")
        self.same_width(self.read(op.k), self.read(op.v), store.heads * store.head_size)
        self.stored.add(op.layer)

    def check_attention(self, op: Attention) -> None:
        self.ensure(not self.selected, "stands after SelectRows")
        store = self.store(op.layer)
        self.ensure(op.layer in self.stored, f"reads the store of layer {op.layer} before it is written")
        self.ensure(op.out != op.q, f"writes {op.out} while it reads it")
        self.ensure(
            op.heads >= 1 and op.heads % store.heads == 0, f"has {op.heads} heads over {store.heads} of K/V"
        )
        self.same_width(self.read(op.q), self.width(op.out), op.heads * store.head_size)
        self.ensure(math.isfinite(op.scale) and op.scale > 0, f"has scale {op.scale}")
        self.ensure(op.window >= 0, f"has window {op.window}")
        self.write(op.out)

    def check_end(self) -> None:
        self.ensure(self.selected, "no SelectRows has been seen")
        self.ensure(self.plan.context >= 1, f"the context is {self.plan.context}")
        self.read(self.plan.hidden)
        self.same_width(self.read(self.plan.logits), self.plan.vocabulary)
        for store in self.plan.stores:
            self.ensure(store.layer in self.stored, f"the store of layer {store.layer} was never written")

    def ensure(self, holds: bool, problem: str) -> None:
        if not holds:
            raise ModelError(
                f"{self.file.path}: plan of {self.plan.architecture} is wrong at {self.where}: {problem}"
            )

    def width(self, buffer: str) -> int:
        self.ensure(buffer in self.plan.buffers, f"buffer {buffer} is not declared")
        return self.plan.buffers[buffer]

    def head_width(self, width: int, heads: int) -> int:
        self.ensure(heads >= 1 and width % heads == 0, f"{heads} heads do not divide a width of {width}")
        return width // heads

    def read(self, buffer: str) -> int:
        width = self.width(buffer)
        self.ensure(buffer in self.written, f"buffer {buffer} is read before it is written")
        return width

    def write(self, buffer: str) -> None:
        if buffer == self.plan.hidden:
            self.ensure(buffer not in self.written, f"writes the hidden states, {buffer}, a second time")
        self.written.add(buffer)

    def same_width(self, *widths: int) -> None:
        self.ensure(len(set(widths)) == 1, f"widths {', '.join(map(str, widths))} differ")

    def store(self, layer: int) -> RowStore:
        self.ensure(layer in self.row_stores, f"layer {layer} has no row store")
        return self.row_stores[layer]

    def weight(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = self.file.tensor(name)
        if tensor.shape != shape:
            raise ModelFileError(
                f"{self.file.path}: tensor {name} has shape {tensor.shape}, "
                f"{self.plan.architecture} needs {shape} for {self.where}"
            )

    def vector(self, name: str, length: int) -> None:
        self.weight(name, (length,))
        tensor = self.file.tensor(name)
        if tensor.format.name not in _VECTOR_FORMATS:
            raise ModelFileError(
                f"{self.file.path}: tensor {name} is in {tensor.format.name}; "
                f"{', '.join(_VECTOR_FORMATS)} are expected for {self.where}"
            )
