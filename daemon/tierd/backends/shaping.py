"""What shapes the rounding errors of stored keys: they should lie where a model's queries make least of them.

For the codec tq4, per layer and K/V head; `hostkernels/codecs.c` says what is done with these:

    key_scale      how strongly each channel of a key is stored: (q / s).(s k) is one score for all s, and
                   an error spread evenly over s k costs least with s^2 = rms(q) / rms(k)
    key_feedback   how values that are still to be rounded make up for the errors of those that have been, as
                   GPTQ does for weights (Frantar et al., arXiv 2210.17323): an error e of a key costs e' M e,
                   where M is the second moment of the queries

Both follow from the file. The second moments of queries and keys are those of random rows, sent through the
layer's norm and matrices and turned as at the first positions. The rows' channels are independent, each as
large as its power in the embedding: what stands out there stands out more in the layers. Where that is wrong,
errors are larger, no more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.lowering import operands
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Attention, Embed, MatMul, Norm, Op, Plan, Rope, RopeSpec, StoreRows

_POSITIONS = 512
_EMBEDDINGS = 4096  # rows of the embedding that are looked at
_LEAST = 0.01  # of the mean channel's power, added to every channel's
_EVENNESS = 0.2  # of the mean direction's cost, added to every direction's

Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """One store's: key_scale (heads, n), key_feedback (heads, n * (n - 1) / 2), the rows of a triangle."""

    key_scale: Floats
    key_feedback: Floats


@dataclass(frozen=True, slots=True)
class _Heads:
    """How heads come about: their matrix, the norm before it, and what each head goes through after it."""

    matmul: MatMul
    norm: Norm
    head_norm: Norm | None
    rope: RopeSpec | None


@np.errstate(over="ignore", divide="ignore", invalid="ignore")
def shapes(plan: Plan, file: GGUFFile, codec: KVCodec) -> dict[int, Shape]:
    """Return what shapes each layer's errors; nothing for other codecs, or where q and k come otherwise."""
    if codec.name != "tq4":
        return {}
    spread = _spread(plan, file)
    found = {}
    for at, (stored, op) in enumerate(zip(plan.ops, plan.ops[1:], strict=False)):
        if not isinstance(stored, StoreRows) or not isinstance(op, Attention):
            continue
        before = plan.ops[:at]
        q, k = _origin(before, op.q), _origin(before, stored.k)
        if q is None or k is None:
            continue
        size = plan.buffers[op.q] // op.heads
        kv_heads = plan.buffers[stored.k] // size
        of_keys = _moments(file, k, kv_heads, spread)
        of_queries = _moments(file, q, op.heads, spread).reshape(kv_heads, -1, size, size).sum(axis=1)
        if np.isfinite(of_keys).all() and np.isfinite(of_queries).all():
            scale = np.sqrt(np.sqrt(_powers(of_queries) / _powers(of_keys)))
            cost = of_queries / (scale[:, :, None] * scale[:, None, :])
            found[op.layer] = Shape(scale.astype(np.float32), _feedback(cost, codec))
    return found


def floats(file: GGUFFile, name: str, step: int = 1) -> Floats:
    """Return every `step`th row of a tensor dequantised."""
    _, lib = library.load()
    tensor = file.tensors[name]
    source = np.ascontiguousarray(file.data(name).reshape(tensor.shape[0], -1)[::step])
    values = np.empty((len(source), *tensor.shape[1:]), np.float32)
    lib.hk_dequantise(
        tensor.format.id, library.pointer(source, "void *"), values.size, library.pointer(values, "float *")
    )
    return values


def _origin(ops: Sequence[Op], buffer: str) -> _Heads | None:
    """Return how a buffer's heads come about, if it is by one matrix behind a norm."""
    head_norm = rope = matmul = None
    for op in reversed(ops):
        match op:
            case MatMul(out=out) if out == buffer and matmul is None:
                matmul, buffer = op, op.src
            case Norm(out=out) if out == buffer and matmul is not None:
                return _Heads(matmul, op, head_norm, rope)
            case Norm(src=src, out=out) if out == buffer:
                head_norm, buffer = op, src
            case Rope(buffer=turned, spec=spec) if turned == buffer:
                rope = spec
            case _ if operands(op)[1] == buffer:
                break
    return None


def _spread(plan: Plan, file: GGUFFile) -> Floats:
    """Return the power of each channel of the embedding beside the mean."""
    weight = next(op.weight for op in plan.ops if isinstance(op, Embed))
    rows = floats(file, weight, -(-file.tensors[weight].shape[0] // _EMBEDDINGS))
    power = np.square(rows).mean(axis=0)
    return np.asarray(power / power.mean())


def _moments(file: GGUFFile, source: _Heads, heads: int, spread: Floats) -> _Doubles:
    """Return each head's second moments, (heads, n, n)."""
    weight = floats(file, source.matmul.weight)
    rows = (weight * (floats(file, source.norm.weight) * spread)).reshape(heads, -1, weight.shape[1])
    moments = (rows @ rows.swapaxes(1, 2)).astype(np.float64)
    if source.matmul.bias is not None:
        bias = floats(file, source.matmul.bias).reshape(heads, -1)
        moments += bias[:, :, None] * bias[:, None, :]
    if source.head_norm is not None:
        gain = floats(file, source.head_norm.weight)
        moments *= gain[:, None] * gain / _mean_power(moments)
    return moments if source.rope is None else _turned(moments, source.rope)


def _turned(moments: _Doubles, rope: RopeSpec) -> _Doubles:
    """Return second moments of heads that are turned as at the first positions, on average.

    A turned head is c * x + s * Jx, where Jx has the parts of each pair exchanged, the first one negative.
    """
    partner, sign, cosines, sines, mixed = _turns(rope, moments.shape[-1])
    exchanged = sign[:, None] * moments[:, partner]
    one_way = mixed * exchanged
    both = cosines * moments + sines * (exchanged[:, :, partner] * sign)
    turned: _Doubles = both + one_way + one_way.swapaxes(1, 2)
    return turned


@functools.lru_cache(maxsize=2)
def _turns(rope: RopeSpec, size: int) -> tuple[npt.NDArray[np.intp], _Doubles, _Doubles, _Doubles, _Doubles]:
    """Return J, as partners and signs, and the means of c c', s s' and s c' over the first positions."""
    pairs = len(rope.frequencies)
    first = np.arange(pairs) * (2 if rope.interleaved else 1)
    second = first + (1 if rope.interleaved else pairs)
    partner, sign = np.arange(size), np.ones(size)
    angle = np.arange(_POSITIONS)[:, None] * np.asarray(rope.frequencies)
    cosine, sine = np.ones((_POSITIONS, size)), np.zeros((_POSITIONS, size))
    for part, other in ((first, second), (second, first)):
        partner[part] = other
        cosine[:, part], sine[:, part] = np.cos(angle) * rope.magnitude, np.sin(angle) * rope.magnitude
    sign[first] = -1.0
    cosine, sine = cosine / np.sqrt(_POSITIONS), sine / np.sqrt(_POSITIONS)
    return partner, sign, cosine.T @ cosine, sine.T @ sine, sine.T @ cosine


def _mean_power(moments: _Doubles) -> _Doubles:
    """Return the mean of each diagonal, above zero, (heads, 1, 1)."""
    mean: _Doubles = np.einsum("hii->h", moments) / moments.shape[-1]
    return np.maximum(mean, np.finfo(np.float32).tiny)[:, None, None]


def _powers(moments: _Doubles) -> _Doubles:
    """Return each channel's power beside the mean, none of them near zero, (heads, n)."""
    power: _Doubles = np.einsum("hii->hi", moments / _mean_power(moments))
    return power + _LEAST


def _feedback(cost: _Doubles, codec: KVCodec) -> Floats:
    """Return the feedback that makes an error e of a head in the original basis cost the least e' cost e.

    With cost + evenness = L L' in the codec's basis and U = L over its diagonal, the cost is that of U' e,
    which rounding keeps small one value after the other if e = inverse(U') (small): so x_j is to be
    corrected by what the strict triangle of -inverse(U) says.
    """
    ffi, lib = library.load()
    size = cost.shape[-1]
    basis = np.eye(size, dtype=np.float32)
    for row in basis:
        lib.hk_codec_rotate(codec.id, ffi.cast("float *", row.ctypes.data), size)
    rotated = basis.T @ (cost / _mean_power(cost)) @ basis + _EVENNESS * np.eye(size)
    lower = np.linalg.cholesky(rotated)
    unit = lower / np.einsum("hii->hi", lower)[:, None, :]
    rows, columns = np.tril_indices(size, -1)
    return np.ascontiguousarray(-np.linalg.inv(unit)[:, rows, columns], np.float32)
