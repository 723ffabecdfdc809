"""Rotary position embedding: from a file's keys to one frequency per pair, scaling folded in.

Pair i of n turns by base ** (-i / n) radians per position. The scaling variants change that:

    none      as it is
    linear    every frequency divided by the factor (position interpolation)
    factors   frequency i divided by factors[i]: a tensor of the file (Llama 3's scaling comes so)
    yarn      high frequencies kept, low ones divided by the factor, a ramp in between, and cos and sin
              enlarged by an attention factor ("YaRN: Efficient Context Window Extension of Large Language
              Models", arXiv 2309.00071, sections 3.2 to 3.4), in the form llama.cpp computes it: the ramp
              runs over whole pairs, and 1 + 0.1 ln(factor) is the attention factor
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models.cursor import shown
from tierd.models.dimensions import refuse
from tierd.models.gguf import GGUFFile
from tierd.models.plan import RopeSpec

Frequencies = npt.NDArray[np.float64]


def rope_base(file: GGUFFile, key: str) -> float:
    """Return the base of the frequencies that `key` states; 10,000 if the file does not have it."""
    return file.number(key, 10_000.0, least=2.0, most=1e12)


def rope_dimensions(file: GGUFFile, architecture: str, head_size: int) -> int:
    """Return how many elements of a head turn: an even number, all of the head unless the file says less."""
    key = f"{architecture}.rope.dimension_count"
    dimensions = file.integer(key, head_size, least=2, most=head_size)
    if dimensions % 2:
        raise ModelFileError(f"{file.path}: key {key} is {dimensions}; rotary embedding turns pairs")
    return dimensions


def plain_rope(dimensions: int, base: float, *, interleaved: bool) -> RopeSpec:
    """Return the embedding without any scaling."""
    return RopeSpec(tuple(_frequencies(dimensions, base).tolist()), interleaved=interleaved)


def scaled_rope(
    file: GGUFFile,
    architecture: str,
    dimensions: int,
    base: float,
    *,
    interleaved: bool,
    factors: npt.NDArray[np.float32] | None = None,
) -> RopeSpec:
    """Return the embedding with the scaling that the file's `rope.scaling.*` keys ask for.

    factors: divisors of the frequencies, shape (dimensions / 2,), applied before the scaling.
    Raises UnsupportedModelError for another scaling type, ModelFileError for a key out of range.
    """
    frequencies = _frequencies(dimensions, base)
    if factors is not None:
        frequencies = frequencies / factors
    prefix = f"{architecture}.rope.scaling"
    magnitude = file.number(f"{prefix}.attn_factor", 1.0, least=1e-3, most=1e3)
    factor = _scaling_factor(file, architecture)
    kind = file.text(f"{prefix}.type", "linear")
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "yarn":
        refuse(file, f"{prefix}.yarn_ext_factor", 1.0)
        refuse(file, f"{prefix}.yarn_attn_factor", 1.0)
        refuse(file, f"{prefix}.yarn_log_multiplier", 0.0)
        kept = _yarn_kept(file, architecture, dimensions, base)
        frequencies = frequencies * kept + frequencies / factor * (1.0 - kept)
        magnitude *= 1.0 + 0.1 * math.log(max(factor, 1.0))
    elif kind != "none":
        raise UnsupportedModelError(
            f"{file.path}: key {prefix}.type is {shown(kind)}; none, linear and yarn are implemented"
        )
    return RopeSpec(tuple(frequencies.tolist()), magnitude, interleaved)


def _frequencies(dimensions: int, base: float) -> Frequencies:
    return base ** (-np.arange(0, dimensions, 2, dtype=np.float64) / dimensions)


def _scaling_factor(file: GGUFFile, architecture: str) -> float:
    older = file.number(f"{architecture}.rope.scale_linear", 1.0, least=1e-3, most=1e6)
    return file.number(f"{architecture}.rope.scaling.factor", older, least=1e-3, most=1e6)


def _yarn_kept(file: GGUFFile, architecture: str, dimensions: int, base: float) -> Frequencies:
    """Return, per pair, the share of the frequency that YaRN keeps as it was; the rest is interpolated."""
    prefix = f"{architecture}.rope.scaling"
    trained = file.integer(f"{architecture}.context_length", least=1)
    trained = file.integer(f"{prefix}.original_context_length", trained, least=0) or trained
    fast = file.number(f"{prefix}.yarn_beta_fast", 32.0, least=1e-3, most=1e6)
    slow = file.number(f"{prefix}.yarn_beta_slow", 1.0, least=1e-3, most=1e6)

    def pair_turning(turns: float) -> float:
        """Return the (fractional) pair that turns so many times within the trained context."""
        return dimensions * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(0, math.floor(pair_turning(fast)))
    last = min(dimensions - 1, math.ceil(pair_turning(slow)))
    ramp = (np.arange(dimensions // 2) - first) / max(0.001, last - first)
    kept: Frequencies = 1.0 - np.clip(ramp, 0.0, 1.0)
    return kept
