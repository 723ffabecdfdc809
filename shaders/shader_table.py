"""The table of shader variants, `variants.toml`, read and checked. Its form is described at its top."""

from __future__ import annotations

import itertools
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PUSH_BYTES = {"address": 8, "uint": 4, "int": 4, "float": 4}
VULKAN, VERSIONS = "1.2", ("1.1", "1.2")  # what modules are for, unless a row says otherwise
PUSH_LIMIT = 128  # bytes: what every Vulkan device has

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VARIANT = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_DEFINE = re.compile(r"[A-Z][A-Z0-9_]*(=[A-Za-z0-9_]+)?")


class TableError(Exception):
    """The table is wrong; the message is one line that names the kernel."""


@dataclass(frozen=True)
class Variant:
    """One SPIR-V module: a kernel's file compiled with some defines, for a version of Vulkan."""

    kernel: str
    name: str
    defines: tuple[str, ...]
    vulkan: str = VULKAN

    @property
    def module(self) -> str:
        """Name of the module's file."""
        return f"{self.kernel}.{self.name}.spv"


@dataclass(frozen=True)
class Kernel:
    """A row of the table.

    push: (name, type) of each field, in order. constants: name to constant_id.
    """

    name: str
    file: str
    push: tuple[tuple[str, str], ...]
    constants: dict[str, int]
    variants: tuple[Variant, ...]


def read_table(path: Path) -> list[Kernel]:
    """Return the kernels of a table whose shaders lie beside it. Raises TableError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"{path.name}: {error}") from error
    _only_fields(path.name, table, {"kernel", "axis"})
    axes = {name: _axis(name, values) for name, values in table.get("axis", {}).items()}
    kernels = [_kernel(name, row, axes) for name, row in table.get("kernel", {}).items()]
    for kernel in kernels:
        if not (path.parent / kernel.file).is_file():
            raise TableError(f"kernel {kernel.name}: there is no file {kernel.file} beside {path.name}")
    unused = axes.keys() - {name for row in table.get("kernel", {}).values() for name in _axes_of(row)}
    if unused:
        raise TableError(f"axis {min(unused)}: no kernel is varied by it")
    return kernels


def _kernel(name: str, row: dict[str, Any], axes: dict[str, dict[str, list[str]]]) -> Kernel:
    where = f"kernel {name}"
    _matches(where, "name", name, _NAME)
    _only_fields(where, row, {"file", "vulkan", "push", "constants", "variants"})
    file = row.get("file")
    if not isinstance(file, str) or not file.endswith(".comp") or "/" in file:
        raise TableError(f"{where}: file is {file!r}, not the name of a .comp")
    vulkan = row.get("vulkan", VULKAN)
    if vulkan not in VERSIONS:
        raise TableError(f"{where}: vulkan is {vulkan!r}, not one of {', '.join(VERSIONS)}")
    variants = _variants(where, name, row.get("variants", [{"name": "plain", "defines": []}]), axes)
    return Kernel(
        name,
        file,
        _push(where, row.get("push")),
        _constants(where, row.get("constants", {})),
        tuple(replace(variant, vulkan=vulkan) for variant in variants),
    )


def _push(where: str, fields: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(fields, list) or not fields:
        raise TableError(f"{where}: push is not a list of fields")
    push = []
    for field in fields:
        match field:
            case [str(name), str(type)] if type in PUSH_BYTES:
                _matches(where, "push field", name, _NAME)
                push.append((name, type))
            case _:
                raise TableError(f"{where}: push field {field!r} is not [name, {' | '.join(PUSH_BYTES)}]")
    names = [name for name, _ in push]
    if len(set(names)) < len(names):
        raise TableError(f"{where}: a push field is named twice")
    sizes = [PUSH_BYTES[type] for _, type in push]
    if sizes != sorted(sizes, reverse=True):
        raise TableError(f"{where}: a push address stands behind a 32-bit field")
    if sum(sizes) > PUSH_LIMIT:
        raise TableError(f"{where}: push takes {sum(sizes)} bytes; {PUSH_LIMIT} are possible")
    return tuple(push)


def _constants(where: str, constants: Any) -> dict[str, int]:
    if not isinstance(constants, dict) or not all(type(id) is int and id >= 0 for id in constants.values()):
        raise TableError(f"{where}: constants is not a table of NAME = constant_id")
    if len(set(constants.values())) < len(constants):
        raise TableError(f"{where}: a constant_id is given twice")
    return constants


def _variants(
    where: str, kernel: str, items: Any, axes: dict[str, dict[str, list[str]]]
) -> tuple[Variant, ...]:
    if not isinstance(items, list) or not items:
        raise TableError(f"{where}: variants is not a list")
    variants = []
    for item in items:
        match item:
            case {"each": [_, *_] as names, **rest} if not rest:
                missing = [name for name in names if name not in axes]
                if missing:
                    raise TableError(f"{where}: there is no axis {missing[0]!r}")
                for values in itertools.product(*(axes[name].items() for name in names)):
                    defines = [define for _, added in values for define in added]
                    variants.append(Variant(kernel, ".".join(name for name, _ in values), tuple(defines)))
            case {"name": str(name), "defines": list(defines), **rest} if not rest:
                _matches(where, "variant", name, _VARIANT)
                _defines(where, defines)
                variants.append(Variant(kernel, name, tuple(defines)))
            case _:
                raise TableError(f"{where}: variant {item!r} is neither {{name, defines}} nor {{each}}")
    names = [variant.name for variant in variants]
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"{where}: variant {name} is given twice")
    return tuple(variants)


def _axis(name: str, values: Any) -> dict[str, list[str]]:
    where = f"axis {name}"
    if not isinstance(values, dict) or not values:
        raise TableError(f"{where}: not a table of value = [defines]")
    for value, defines in values.items():
        _matches(where, "value", value, _NAME)
        _defines(where, defines)
    return values


def _axes_of(row: dict[str, Any]) -> list[str]:
    return [name for item in row.get("variants", []) for name in item.get("each", [])]


def _defines(where: str, defines: Any) -> None:
    if not isinstance(defines, list):
        raise TableError(f"{where}: defines {defines!r} is not a list")
    for define in defines:
        _matches(where, "define", define, _DEFINE)


def _matches(where: str, what: str, text: Any, pattern: re.Pattern[str]) -> None:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise TableError(f"{where}: {what} {text!r} does not look like {pattern.pattern}")


def _only_fields(where: str, row: Any, known: set[str]) -> None:
    if not isinstance(row, dict):
        raise TableError(f"{where}: not a table")
    unknown = row.keys() - known
    if unknown:
        raise TableError(f"{where}: unknown field {min(unknown)!r}; known are {', '.join(sorted(known))}")
