"""The compiled shaders, as the manifest that is built and installed with them lists them.

The build has checked it against every module, so a kernel's push struct and constants are the shader's own.
"""

from __future__ import annotations

import functools
import importlib.resources
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from tierd.errors import TierdError

_VERSION = 1
_MANIFEST = "manifest.json"
_CODES = {"address": "Q", "uint": "I", "int": "i", "float": "f"}

PushType = Literal["address", "uint", "int", "float"]


class _Row(msgspec.Struct, frozen=True):
    push: tuple[tuple[str, PushType], ...]
    constants: dict[str, int]
    variants: dict[str, str]


class _Manifest(msgspec.Struct, frozen=True):
    version: int
    kernels: dict[str, _Row]


@dataclass(frozen=True)
class Kernel:
    """A compute kernel and what its pipelines are made with.

    push: (name, type) of each field of the push struct, in order. layout: that struct's bytes, little-endian
    and without padding. constants: specialisation constants, name to constant_id. variants: name to the path
    of the SPIR-V module.
    """

    name: str
    push: tuple[tuple[str, PushType], ...]
    constants: dict[str, int]
    variants: dict[str, Path]
    layout: struct.Struct = field(compare=False)

    @property
    def push_bytes(self) -> int:
        """Size of the push struct, at most 128."""
        return self.layout.size


@functools.cache
def folder() -> Path:
    """Return where the compiled shaders are installed."""
    return Path(str(importlib.resources.files("tierd").joinpath("shaders")))


@functools.cache
def load(folder: Path) -> dict[str, Kernel]:
    """Return the kernels of a folder of compiled shaders, by name. Reads the manifest once.

    Raises TierdError when it is missing, damaged or of another version.
    """
    path = folder / _MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise TierdError(
            f"the shaders' manifest at {path} cannot be read ({error}); reinstall tierd"
        ) from error
    if manifest.version != _VERSION:
        raise TierdError(
            f"the shaders' manifest at {path} has version {manifest.version}, {_VERSION} is needed; "
            "reinstall tierd"
        )
    return {
        name: Kernel(
            name,
            row.push,
            row.constants,
            {variant: folder / module for variant, module in row.variants.items()},
            struct.Struct("<" + "".join(_CODES[type] for _, type in row.push)),
        )
        for name, row in manifest.kernels.items()
    }


def kernel(name: str) -> Kernel:
    """Return an installed kernel. Raises TierdError when there is none of that name."""
    kernels = load(folder())
    if name not in kernels:
        raise TierdError(f"there is no shader kernel {name!r} in {folder()}; reinstall tierd")
    return kernels[name]


def spirv(kernel: Kernel, variant: str) -> bytes:
    """Return a variant's SPIR-V module. Raises TierdError when the kernel or the folder lacks it."""
    path = kernel.variants.get(variant)
    if path is None:
        raise TierdError(
            f"shader kernel {kernel.name} has no variant {variant!r}, only {', '.join(kernel.variants)}; "
            "reinstall tierd"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise TierdError(f"shader {path} cannot be read ({error.strerror}); reinstall tierd") from error


def pack(kernel: Kernel, /, **fields: float) -> bytes:
    """Return a push struct with these fields, all of which must be given.

    Raises TypeError for a field that is unknown or missing, ValueError for a value that does not fit.
    """
    try:
        values = [fields.pop(name) for name, _ in kernel.push]
    except KeyError as error:
        raise TypeError(f"shader kernel {kernel.name}: push field {error} is missing") from None
    if fields:
        raise TypeError(f"shader kernel {kernel.name} has no push field {min(fields)!r}")
    try:
        return kernel.layout.pack(*values)
    except (struct.error, OverflowError) as error:
        given = ", ".join(f"{name} = {value!r}" for (name, _), value in zip(kernel.push, values, strict=True))
        raise ValueError(
            f"shader kernel {kernel.name}: a push field does not fit ({error}): {given}"
        ) from None
