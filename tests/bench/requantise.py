"""Requantise a GGUF file with llama.cpp.

Usage: python requantise.py SOURCE TARGET FTYPE     FTYPE: as llama.cpp names it, such as Q4_K_M

Needs llama-cpp-python. The target is there only once it is whole.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp


def requantise(source: Path, target: Path, ftype: str) -> None:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{ftype}")
    options.allow_requantize = True
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    status = llama_cpp.llama_model_quantize(bytes(source), bytes(part), options)
    if status != 0:
        raise SystemExit(f"{source} cannot be requantised as {ftype}: llama.cpp says {status}")
    part.rename(target)


if __name__ == "__main__":
    requantise(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
