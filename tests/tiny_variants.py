"""The tiny models that plans are proved on: one per feature of an architecture that a file may ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny import write_gemma3, write_llama

LLAMA3_FACTORS = [1.0] * 6 + [1.0 + 0.5 * n for n in range(6)] + [8.0] * 8
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 256}

_VARIANTS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (write_llama, {}),
    "llama_untied": (write_llama, {"tied": False, "biases": True, "heads": 6, "kv_heads": 2}),
    "llama_derived_head": (write_llama, {"n_embd": 120, "rope_base": 100_000.0}),
    "llama_part_of_head": (write_llama, {"rope_dimensions": 24}),
    "llama_unscaled": (write_llama, {"rope_scaling": {"type": "none", "factor": 4.0}}),
    "llama_linear": (write_llama, {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama_linear_unsaid": (write_llama, {"rope_scaling": {"factor": 2.5}}),
    "llama_factors": (write_llama, {"rope_factors": LLAMA3_FACTORS}),
    "llama_yarn": (write_llama, {"rope_scaling": YARN}),
    "llama_yarn_tuned": (
        write_llama,
        {"rope_scaling": {**YARN, "yarn_beta_fast": 8.0, "yarn_beta_slow": 0.5, "attn_factor": 0.9}},
    ),
    "llama_yarn_no_original": (write_llama, {"context": 64, "rope_scaling": {"type": "yarn", "factor": 8.0}}),
    "gemma3": (write_gemma3, {}),
    "gemma3_untied": (write_gemma3, {"tied": False, "heads": 3}),
    "gemma3_linear": (write_gemma3, {"rope_scaling": {"type": "linear", "factor": 8.0}}),
    "gemma3_pattern": (
        write_gemma3,
        {"extra": {"gemma3.attention.sliding_window_pattern": 3, "gemma3.rope.freq_base_swa": 5_000.0}},
    ),
}

NAMES = tuple(_VARIANTS)
REFUSED_BY_LLAMA_CPP = {"llama_part_of_head"}
TOKENS = [3 + (7 * n * n + 11 * n) % 290 for n in range(72)]


def write(name: str, folder: Path, *, seed: int | None = None) -> Path:
    """Write the variant `name` into `folder` and return its path; by default each has weights of its own."""
    writer, arguments = _VARIANTS[name]
    seed = NAMES.index(name) if seed is None else seed
    return writer(folder / f"{name}.gguf", seed=seed, **arguments)
