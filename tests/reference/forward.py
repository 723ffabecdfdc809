"""A plain numpy forward of `llama` and `gemma3`, written from the models' definitions.

Shares nothing with the package under test: weights and keys come through the `gguf` package's reader and
dequantisers, and the whole sequence is computed at once, with a full matrix of scores. For tiny files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]


def forward(path: Path, tokens: Sequence[int], dtype: type[np.floating[Any]] = np.float32) -> Floats:
    """Return the logits at every position, shape (tokens, vocabulary), computed in `dtype`."""
    model = _Model(path, dtype)
    return model.linear(
        _states(model, tokens), "output" if "output.weight" in model.weights else "token_embd"
    )


def hidden_states(path: Path, tokens: Sequence[int]) -> Floats:
    """Return what the output is computed from at every position, shape (tokens, width), in float64."""
    return _states(_Model(path, np.float64), tokens)


def _states(model: _Model, tokens: Sequence[int]) -> Floats:
    compute = {"llama": _llama, "gemma3": _gemma3}[model.key("general.architecture")]
    return model.norm(compute(model, list(tokens)), "output_norm")


class _Model:
    def __init__(self, path: Path, dtype: type[np.floating[Any]]) -> None:
        reader = gguf.GGUFReader(path)
        self.dtype = dtype
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(dtype)
            for tensor in reader.tensors
        }
        self.architecture = self.fields["general.architecture"]

    def key(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name.replace("*", self.architecture), default)

    def linear(self, x: Floats, stem: str) -> Floats:
        return x @ self.weights[f"{stem}.weight"].T + self.weights.get(f"{stem}.bias", 0)

    def norm(self, x: Floats, stem: str) -> Floats:
        eps = self.dtype(self.key("*.attention.layer_norm_rms_epsilon"))
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * self.weights[f"{stem}.weight"]

    def heads(self, x: Floats, count: int) -> Floats:
        return x.reshape(len(x), count, -1)

    def attention(self, q: Floats, k: Floats, v: Floats, scale: float, window: int | None) -> Floats:
        """Heads-first softmax(q kT) v under the causal mask; shapes (tokens, heads, size)."""
        group = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * self.dtype(scale)
        query, key = np.ogrid[: len(q), : len(q)]
        seen = key <= query
        if window:
            seen = seen & (key > query - window)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1)

    def angles(self, length: int, size: int, base: float, *, scaled: bool) -> tuple[Floats, Floats]:
        """Cosines and sines, shape (length, 1, size / 2), pair by pair as llama.cpp's rope does it."""
        factors = self.weights.get("rope_freqs.weight") if scaled else None
        kind = self.key("*.rope.scaling.type", "linear") if scaled else "none"
        factor = self.key("*.rope.scaling.factor", 1.0) if kind != "none" else 1.0
        magnitude = self.key("*.rope.scaling.attn_factor", 1.0) if scaled else 1.0
        theta = np.empty((length, size // 2))
        for pair in range(size // 2):
            extrapolated = np.arange(length) / base ** (2 * pair / size)
            if factors is not None:
                extrapolated = extrapolated / float(factors[pair])
            interpolated = extrapolated / factor
            mix = self._yarn_mix(pair, size, base) if kind == "yarn" else 0.0
            theta[:, pair] = interpolated * (1 - mix) + extrapolated * mix
        if kind == "yarn":
            magnitude *= 0.1 * math.log(factor) + 1.0
        cos, sin = magnitude * np.cos(theta), magnitude * np.sin(theta)
        return cos.astype(self.dtype)[:, None], sin.astype(self.dtype)[:, None]

    def _yarn_mix(self, pair: int, size: int, base: float) -> float:
        trained = self.key("*.rope.scaling.original_context_length", self.key("*.context_length"))

        def dimension(rotations: float) -> float:
            return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(0, math.floor(dimension(self.key("*.rope.scaling.yarn_beta_fast", 32.0))))
        high = min(size - 1, math.ceil(dimension(self.key("*.rope.scaling.yarn_beta_slow", 1.0))))
        return 1.0 - min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))


def _llama(model: _Model, tokens: list[int]) -> Floats:
    n_heads = model.key("*.attention.head_count")
    kv_heads = model.key("*.attention.head_count_kv", n_heads)
    size = model.key("*.attention.key_length", model.key("*.embedding_length") // n_heads)
    turned = model.key("*.rope.dimension_count", size)
    cos, sin = model.angles(len(tokens), turned, model.key("*.rope.freq_base", 10000.0), scaled=True)

    def rotate(x: Floats) -> Floats:
        even, odd = x[..., 0:turned:2], x[..., 1:turned:2]
        pairs = np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1)
        return np.concatenate((pairs.reshape(*x.shape[:-1], turned), x[..., turned:]), axis=-1)

    x = model.weights["token_embd.weight"][tokens]
    for layer in range(model.key("*.block_count")):
        block = f"blk.{layer}."
        h = model.norm(x, block + "attn_norm")
        q = rotate(model.heads(model.linear(h, block + "attn_q"), n_heads))
        k = rotate(model.heads(model.linear(h, block + "attn_k"), kv_heads))
        v = model.heads(model.linear(h, block + "attn_v"), kv_heads)
        scale = model.key("*.attention.scale", 1 / math.sqrt(size))
        x = x + model.linear(model.attention(q, k, v, scale, None), block + "attn_output")
        h = model.norm(x, block + "ffn_norm")
        gate = model.linear(h, block + "ffn_gate")
        gate = gate / (1 + np.exp(-gate))
        x = x + model.linear(gate * model.linear(h, block + "ffn_up"), block + "ffn_down")
    return x


def _gemma3(model: _Model, tokens: list[int]) -> Floats:
    n_heads, kv_heads = model.key("*.attention.head_count"), model.key("*.attention.head_count_kv")
    size = model.key("*.attention.key_length")
    layers = model.key("*.block_count")
    global_angles = model.angles(len(tokens), size, model.key("*.rope.freq_base"), scaled=True)
    local_angles = model.angles(len(tokens), size, model.key("*.rope.freq_base_swa", 10000.0), scaled=False)
    pattern = model.key("*.attention.sliding_window_pattern", 6)

    def rotate(x: Floats, angles: tuple[Floats, Floats]) -> Floats:
        cos, sin = angles
        first, second = x[..., : size // 2], x[..., size // 2 :]
        return np.concatenate((first * cos - second * sin, first * sin + second * cos), axis=-1)

    x = model.weights["token_embd.weight"][tokens] * np.sqrt(model.dtype(model.key("*.embedding_length")))
    for layer in range(layers):
        block = f"blk.{layer}."
        is_global = (layer + 1) % pattern == 0 if isinstance(pattern, int) else not pattern[layer]
        angles = global_angles if is_global else local_angles
        window = None if is_global else model.key("*.attention.sliding_window")
        h = model.norm(x, block + "attn_norm")
        q = model.heads(model.linear(h, block + "attn_q"), n_heads)
        k = model.heads(model.linear(h, block + "attn_k"), kv_heads)
        v = model.heads(model.linear(h, block + "attn_v"), kv_heads)
        q = rotate(model.norm(q, block + "attn_q_norm"), angles)
        k = rotate(model.norm(k, block + "attn_k_norm"), angles)
        attended = model.attention(q, k, v, 1 / math.sqrt(size), window)
        h = model.linear(attended, block + "attn_output")
        x = x + model.norm(h, block + "post_attention_norm")
        h = model.norm(x, block + "ffn_norm")
        gate = model.linear(h, block + "ffn_gate")
        gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        h = model.linear(gate * model.linear(h, block + "ffn_up"), block + "ffn_down")
        x = x + model.norm(h, block + "post_ffw_norm")
    return x
