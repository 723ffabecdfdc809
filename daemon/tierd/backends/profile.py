"""Where the time of a host step goes, op by op and thread by thread."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.lowering import Lowering
from tierd.backends.protocol import Logits

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OpName:
    """What an op of the kernels is.

    kind: such as "matmul". tensor: the weight or vector it reads, None where there is none.
    layer: None for what belongs to no layer.
    """

    kind: str
    tensor: str | None
    layer: int | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepProfile:
    """One step, timed. Times are nanoseconds.

    logits: as `Executor.run` returns them.
    wait, work: of each op on each thread, shape (threads, ops): waiting for the other threads before the
    op, and its share of it.
    step: inside the foreign call. call: the foreign call as Python sees it. before: what Python does first.
    """

    logits: Logits
    ops: tuple[OpName, ...]
    wait: Nanoseconds
    work: Nanoseconds
    step: int
    call: int
    before: int


def name_ops(lowering: Lowering) -> tuple[OpName, ...]:
    """Return the names of a lowered plan's ops. One without tensor or store counts to the layer before it."""
    ffi, _ = library.load()
    kinds = ffi.typeof("enum hk_op_kind").elements
    weights, vectors = list(lowering.weights), list(lowering.vectors)
    names: list[OpName] = []
    layer = None
    for op in lowering.ops:
        kind = kinds[op["kind"]].removeprefix("HK_OP_").lower()
        tensor = None
        if op["weight"] >= 0:
            tensor = weights[op["weight"]]
        elif op["vector"] >= 0:
            tensor = vectors[op["vector"]]
        if tensor is not None:
            block = re.match(r"blk\.(\d+)\.", tensor)
            layer = int(block[1]) if block else None
        elif op["store"] >= 0:
            layer = lowering.stores[op["store"]].layer
        elif kind == "select":
            layer = None
        names.append(OpName(kind, tensor, layer))
    return tuple(names)
