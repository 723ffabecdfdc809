"""What a step on the device is made of: one op is one dispatch of a kernel.

Names stand for float buffers of the plan; an op that writes `quantised` writes the quantised form of its
buffer instead. That form is a sum of terms: the values in bytes and, where there are two, what these leave of
them in bytes. `terms` counts them, 0 stands for floats. A step's `body` sees all rows of the batch, its
`tail` the rows of which something is wanted, its `head` those whose logits are.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierd.models.plan import Activation, RopeSpec, RowStore


@dataclass(frozen=True, slots=True)
class Matrix:
    """Tensors of one format, as wide as each other, one below the other."""

    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm's weight and what it adds to the mean square."""

    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class Lookup:
    """out = scale * row of the matrix that the row's token names."""

    matrix: Matrix
    out: str
    scale: float


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """v = src, normed by `post`, added to `residual`, kept in `total`; out = v, normed by `norm`.

    Each of the four may be absent; without `post` and `residual` there is no `total`.
    both: `out` is written as floats beside its quantised form.
    """

    src: str
    out: str
    terms: int
    norm: Norm | None
    post: Norm | None = None
    residual: str | None = None
    total: str | None = None
    both: bool = False

    @property
    def quantised(self) -> bool:
        """Whether `out` is written in quantised form."""
        return self.terms > 0


@dataclass(frozen=True, slots=True)
class Product:
    """outs side by side = x times the matrix, transposed, plus biases, plus the residual."""

    x: str
    terms: int
    matrix: Matrix
    outs: tuple[str, ...]
    biases: tuple[str, ...] = ()
    residual: str | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Norm and turn each head of q and k, keep k and v; q is left in the codec's basis."""

    q: str
    k: str
    v: str
    heads: int
    store: RowStore
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rope: RopeSpec | None = None


@dataclass(frozen=True, slots=True)
class Attend:
    """out = attention of q, as `Heads` has left it, over the layer's rows."""

    q: str
    out: str
    quantised: bool
    heads: int
    store: RowStore
    scale: float
    window: int


@dataclass(frozen=True, slots=True)
class Gated:
    """out = activation(gate) * up."""

    gate: str
    up: str
    out: str
    quantised: bool
    activation: Activation


@dataclass(frozen=True, slots=True)
class Quantise:
    """Make the quantised form of a buffer."""

    src: str
    terms: int


@dataclass(frozen=True, slots=True)
class Sum:
    """out = a + b."""

    a: str
    b: str
    out: str


@dataclass(frozen=True, slots=True)
class Select:
    """out = the rows of src of which something is wanted."""

    src: str
    out: str


Op = Lookup | FusedNorm | Product | Heads | Attend | Gated | Quantise | Sum | Select
