"""Composes a plan: each method appends one op, declares its output buffer, and notes the tensors used."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models.cursor import shown
from tierd.models.dimensions import Dimensions
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
    Store,
    StoreRows,
)


class PlanBuilder:
    """Collects the ops of one model, in order.

    Tensors are named by their stem: "blk.0.attn_q" means "blk.0.attn_q.weight", and also
    "blk.0.attn_q.bias" where a matmul's file has one. Every method that has a result returns the name
    of the buffer that holds it; a buffer may be written again once its value is no longer needed.
    """

    def __init__(self, file: GGUFFile, architecture: str, dimensions: Dimensions) -> None:
        self._file = file
        self._architecture = architecture
        self._dimensions = dimensions
        self._ops: list[Op] = []
        self._buffers: dict[str, int] = {}
        self._stores: list[Store] = []
        self._used: set[str] = set()

    def has(self, stem: str) -> bool:
        """Whether the file has the weight `stem`."""
        return f"{stem}.weight" in self._file.tensors

    def constants(self, stem: str, count: int) -> npt.NDArray[np.float32]:
        """Return a small F32 tensor's values, shape (count,), all finite and above zero."""
        name = self._weight(stem)
        tensor = self._file.tensor(name)
        if tensor.format.name != "F32" or tensor.shape != (count,):
            raise ModelFileError(
                f"{self._file.path}: tensor {name} has shape {tensor.shape} in {tensor.format.name}; "
                f"({count},) in F32 is expected"
            )
        values = self._file.data(name).view(np.float32)
        if not np.isfinite(values).all() or not (values > 0).all():
            raise ModelFileError(f"{self._file.path}: tensor {name} holds values that are not above zero")
        return values

    def embed(self, stem: str, out: str, *, scale: float = 1.0) -> str:
        """Look up each row's token."""
        self._ops.append(Embed(self._weight(stem), self._buffer(out, self._dimensions.embedding), scale))
        return out

    def norm(self, src: str, stem: str, out: str, *, heads: int = 1) -> str:
        """RMS norm of each of `heads` parts of a row."""
        self._buffer(out, self._buffers[src])
        self._ops.append(Norm(src, self._weight(stem), out, self._dimensions.eps, heads))
        return out

    def matmul(self, src: str, stem: str, out: str, width: int) -> str:
        """Multiply by a weight of shape (width, src's width), and add the bias if the file has one."""
        weight, bias = self._weight(stem), f"{stem}.bias"
        has_bias = bias in self._file.tensors
        if has_bias:
            self._used.add(bias)
        self._buffer(out, width)
        self._ops.append(MatMul(src, weight, out, bias if has_bias else None))
        return out

    def rope(self, buffer: str, heads: int, spec: RopeSpec) -> None:
        """Turn the heads of a buffer in place."""
        self._ops.append(Rope(buffer, heads, spec))

    def attend(self, layer: int, q: str, k: str, v: str, out: str, *, scale: float, window: int = 0) -> str:
        """Store this step's K and V in a row store of the layer, then attend over all the layer's rows."""
        dimensions = self._dimensions
        self._stores.append(RowStore(layer, dimensions.kv_heads, dimensions.head_size))
        self._ops.append(StoreRows(k, v, layer))
        self._buffer(out, self._buffers[q])
        self._ops.append(Attention(q, out, layer, dimensions.heads, scale, window))
        return out

    def gate(self, gate: str, up: str, activation: Activation) -> str:
        """Multiply `up` by the activated `gate`, into `gate`."""
        self._ops.append(Gate(gate, up, gate, activation))
        return gate

    def add(self, to: str, what: str) -> str:
        """Add `what` to the buffer `to`."""
        self._ops.append(Add(to, what, to))
        return to

    def select_rows(self, src: str, out: str) -> str:
        """Go on with only the rows of which something is wanted."""
        self._ops.append(SelectRows(src, self._buffer(out, self._buffers[src])))
        return out

    def finish(self, hidden: str, logits: str) -> Plan:
        """Return the plan. Raises UnsupportedModelError if the file has a tensor that no op uses.

        hidden: what `logits` are computed from; no other value may have been written there.
        """
        for name in self._file.tensors:
            if name not in self._used:
                raise UnsupportedModelError(
                    f"{self._file.path}: tensor {shown(name)} belongs to nothing that architecture "
                    f"{self._architecture} computes here"
                )
        return Plan(
            architecture=self._architecture,
            ops=tuple(self._ops),
            buffers=self._buffers,
            stores=tuple(self._stores),
            hidden=hidden,
            logits=logits,
            vocabulary=self._dimensions.vocabulary,
            context=self._dimensions.context,
        )

    def _weight(self, stem: str) -> str:
        name = self._file.tensor(f"{stem}.weight").name
        self._used.add(name)
        return name

    def _buffer(self, name: str, width: int) -> str:
        if self._buffers.setdefault(name, width) != width:
            raise ValueError(f"buffer {name} is {self._buffers[name]} wide, not {width}")
        return name
