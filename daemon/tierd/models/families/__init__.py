"""The architectures, one file per family. A file in this folder that registers one is found by itself."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from tierd.errors import UnsupportedModelError
from tierd.models.check import check_plan
from tierd.models.cursor import shown
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan

Architecture = Callable[[GGUFFile], Plan]

_ARCHITECTURES: dict[str, Architecture] = {}


def architecture(name: str) -> Callable[[Architecture], Architecture]:
    """Register the decorated function as what composes the plan of files that name this architecture.

    It raises ModelFileError for hyper-parameters that are missing or out of range, naming the key, and
    UnsupportedModelError for features of the architecture that it does not implement.
    """

    def register(compose: Architecture) -> Architecture:
        if name in _ARCHITECTURES:
            raise ValueError(f"architecture {name} is registered twice")
        _ARCHITECTURES[name] = compose
        return compose

    return register


def architectures() -> tuple[str, ...]:
    """Return the names of all architectures, sorted."""
    _import_families()
    return tuple(sorted(_ARCHITECTURES))


def build_plan(file: GGUFFile) -> Plan:
    """Compose the plan of a file's model and check it against the file's tensors.

    Raises ModelFileError naming the key or tensor at fault; UnsupportedModelError naming what tierd lacks.
    """
    if file.integer("split.count", 1) > 1:
        raise UnsupportedModelError(
            f"{file.path}: key split.count says that this is one part of several; join them into one file "
            "with llama-gguf-split --merge"
        )
    known = architectures()
    name = file.text("general.architecture")
    if name not in known:
        raise UnsupportedModelError(
            f"{file.path}: key general.architecture is {shown(name)}; known are {', '.join(known)}"
        )
    plan = _ARCHITECTURES[name](file)
    check_plan(plan, file)
    return plan


@functools.cache
def _import_families() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
