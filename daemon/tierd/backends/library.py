"""The host kernels' shared library, bound with cffi in ABI mode.

The declarations are read from the library's own header, which is installed beside it, so the two
cannot drift apart. `HOSTKERNELS_LIBRARY` names another build of the library, such as the sanitized one.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import numpy.typing as npt

from tierd.errors import TierdError

_ABI_VERSION = 10
_LIBRARY = "libhostkernels.so"
LEVELS = ("portable", "avx2", "avx512vnni")  # in ascending order; a machine may lack the upper ones
_HEADER = "hostkernels.h"
# The least number of logits that memory for draws is made for, so that there are few sizes of it.
_LEAST_DRAWN = 1024

FloatArray = npt.NDArray[np.float32]


def _library_path() -> Path:
    override = os.environ.get("HOSTKERNELS_LIBRARY")
    if override:
        return Path(override)
    return Path(str(importlib.resources.files("tierd").joinpath(_LIBRARY)))


@functools.cache
def load() -> tuple[Any, Any]:
    """Open the library once and return (ffi, lib).

    Raises TierdError when it is missing or of another ABI version, and when HOSTKERNELS_LEVEL names no level.
    """
    wanted = os.environ.get("HOSTKERNELS_LEVEL", LEVELS[-1])
    if wanted not in LEVELS:
        raise TierdError(f"HOSTKERNELS_LEVEL is {wanted!r}; use one of {', '.join(LEVELS)}, or unset it")
    path = _library_path()
    try:
        header = path.with_name(_HEADER).read_text()
        ffi = cffi.FFI()
        ffi.cdef(header.split("/* cffi: begin */")[1].split("/* cffi: end */")[0])
        lib = ffi.dlopen(str(path))
    except (OSError, IndexError) as error:
        raise TierdError(f"host kernels at {path} cannot be loaded ({error}); reinstall tierd") from error
    version = lib.hk_abi_version()
    if version != _ABI_VERSION:
        raise TierdError(
            f"host kernels at {path} have ABI version {version}, {_ABI_VERSION} is needed; reinstall tierd"
        )
    return ffi, lib


def level() -> str:
    """Return the name of the kernels' active CPU level."""
    ffi, lib = load()
    return str(ffi.string(lib.hk_level()).decode())


def trim() -> None:
    """Give memory that is free in the heap back to the system."""
    _, lib = load()
    lib.hk_trim()


def pointer(array: npt.NDArray[Any], ctype: str) -> Any:
    """Return the address of a C-contiguous array as `ctype`. The caller keeps the array alive."""
    ffi, _ = load()
    return ffi.cast(ctype, array.ctypes.data)


def aligned_empty(count: int) -> npt.NDArray[np.uint8]:
    """Return `count` uninitialised bytes that start on a multiple of 64."""
    memory = np.empty(count + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + count]


def argmax(logits: FloatArray) -> int:
    """Return the most likely id of a row of logits, shape (vocabulary,); the lowest on a tie."""
    _, lib = load()
    return int(lib.hk_argmax(pointer(logits, "float *"), logits.size))


def sample(
    logits: FloatArray,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
) -> int:
    """Draw an id from a row of logits, shape (vocabulary,), with `uniform` from [0, 1).

    The chain is temperature (above 0), top_k (0: off), top_p (1: off), min_p (0: off). What it keeps
    shares [0, 1), each id as wide as it is likely: first, the best one first, those of the 64 best ids that
    are kept, then the others in order of ids.
    """
    _, lib = load()
    scratch = _scratch(max(_LEAST_DRAWN, 1 << (logits.size - 1).bit_length()))
    return int(
        lib.hk_sample(
            pointer(logits, "float *"),
            logits.size,
            temperature,
            min(top_k, logits.size),
            top_p,
            min_p,
            uniform,
            pointer(scratch, "void *"),
        )
    )


def adjust(logits: FloatArray, adjustments: npt.NDArray[np.void]) -> None:
    """Adjust a row of logits, shape (vocabulary,), in place. adjustments: of type core.ADJUSTMENT."""
    _, lib = load()
    lib.hk_adjust(pointer(logits, "float *"), pointer(adjustments, "hk_adjustment *"), adjustments.size)


def select(
    logits: FloatArray, words: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the ids that may be picked of a row of logits, ascending, and their logits, shape (ids,) each.

    Both are good until the next call. words: see core.TokenMask.
    """
    _, lib = load()
    ids, values = _selected(logits.size)
    count = lib.hk_select(
        pointer(logits, "float *"),
        logits.size,
        pointer(words, "uint32_t *"),
        pointer(ids, "int32_t *"),
        pointer(values, "float *"),
    )
    return ids[:count], values[:count]


def log_sum_exp(logits: FloatArray) -> float:
    """Return what makes a row of logits, shape (vocabulary,), log-probabilities when it is taken off."""
    _, lib = load()
    return float(lib.hk_log_sum_exp(pointer(logits, "float *"), logits.size))


def top(logits: FloatArray, count: int) -> list[int]:
    """Return the `count` most likely ids, best first, the lower one on a tie; fewer where logits are NaN."""
    if count == 0:
        return []
    _, lib = load()
    ids = np.empty(count, np.int64)
    found = lib.hk_top(pointer(logits, "float *"), logits.size, count, pointer(ids, "int64_t *"))
    return [int(id) for id in ids[:found]]


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends on (seed, position) alone; both 64 bits, unsigned."""
    _, lib = load()
    return float(lib.hk_uniform(seed, position))


@functools.lru_cache(maxsize=8)
def _selected(count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Room for what is selected of a vocabulary. Only the engine thread selects."""
    return np.empty(count, np.int32), np.empty(count, np.float32)


@functools.lru_cache(maxsize=8)
def _scratch(count: int) -> npt.NDArray[np.uint64]:
    """Working memory of a draw from so many logits, kept by size. Only the engine thread draws."""
    return np.empty(3 * count // 2 + 129, np.uint64)
