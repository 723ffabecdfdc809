"""The plan: what one step of a model computes, as an ordered list of ops over named buffers.

A plan is pure description. Every executor compiles the same plan; parity between executors is
checked op by op. All ops see `rows` rows of the batch, each row one token of one sequence:

    buffer     float32, shape (rows, width)
    weight     a tensor of the file, by name: (out, in) for matmuls, (vocabulary, width) for embeddings
    store      what a stream keeps between steps: rows of K and V per layer, or a fixed blob

After `SelectRows` the remaining ops see only the rows of which something is wanted; those after the op that
writes the hidden states, the rows whose logits are.
`check.check_plan` verifies every shape against the tensors; executors trust a checked plan.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: pair i of a head turns by position * frequencies[i], then scales.

    frequencies: radians per position, one per pair; scaling variants are already folded in.
    magnitude: factor on cos and sin (YaRN's attention factor, else 1).
    interleaved: pairs are (2i, 2i + 1); otherwise (i, i + n/2), n = 2 * len(frequencies).
    Elements of a head past n are left alone.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    interleaved: bool = True


@dataclass(frozen=True, slots=True)
class RowStore:
    """K and V rows of one layer: `heads` vectors of `head_size` each, per position, for each."""

    layer: int
    heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class BlobStore:
    """A fixed-size recurrent state of one layer, float32."""

    layer: int
    elements: int


Store = RowStore | BlobStore


class Activation(enum.Enum):
    """The gate's non-linearity. GELU is the tanh approximation, as llama.cpp computes it."""

    SILU = "silu"
    GELU = "gelu"


@dataclass(frozen=True, slots=True)
class Embed:
    """out = scale * weight[token]."""

    weight: str
    out: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm of each of `heads` equal parts of a row: out = src / rms(src) * weight.

    weight: shape (width / heads,); rms adds eps to the mean square. out may be src.
    """

    src: str
    weight: str
    out: str
    eps: float
    heads: int = 1


@dataclass(frozen=True, slots=True)
class MatMul:
    """out = src @ weight.T (+ bias). weight: (out width, src width); bias: (out width,)."""

    src: str
    weight: str
    out: str
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """Turn each of `heads` heads of a row in place, by the row's position."""

    buffer: str
    heads: int
    spec: RopeSpec


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Write this step's K and V rows into the layer's RowStore, through its codec."""

    k: str
    v: str
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of each row over its own sequence's rows of the layer's RowStore.

    q and out: (rows, heads * head_size); query head h reads K/V head h // (heads / store heads).
    Scores are scaled by `scale`. window: 0 for all earlier positions, else position p sees only
    positions in (p - window, p].
    """

    q: str
    out: str
    layer: int
    heads: int
    scale: float
    window: int = 0


@dataclass(frozen=True, slots=True)
class Gate:
    """out = activation(gate) * up, element by element. out may be gate or up."""

    gate: str
    up: str
    out: str
    activation: Activation


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b. out may be a or b."""

    a: str
    b: str
    out: str


@dataclass(frozen=True, slots=True)
class SelectRows:
    """out = the rows of src whose logits or hidden states are wanted, in that order."""

    src: str
    out: str


Op = Embed | Norm | MatMul | Rope | StoreRows | Attention | Gate | Add | SelectRows


@dataclass(frozen=True, slots=True)
class Plan:
    """A model as ops, checked or not; immutable.

    buffers: name -> width of every buffer the ops use. stores: what a stream keeps.
    hidden: the buffer of the hidden states behind the last norm, which the classifier reads, shape (wanted
    rows, width). logits: the buffer that holds the result, shape (rows whose logits are wanted, vocabulary).
    context: positions the model was trained for.
    """

    architecture: str
    ops: tuple[Op, ...]
    buffers: dict[str, int]
    stores: tuple[Store, ...]
    hidden: str
    logits: str
    vocabulary: int
    context: int
