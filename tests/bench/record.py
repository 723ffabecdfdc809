"""The file that a bench leaves: what was measured, of what, where and when."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import machine
from tierd.models import GGUFFile


def now() -> datetime.datetime:
    """Return the time, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def describe(title: str, path: Path) -> dict[str, Any]:
    """Return what a model file is; "weights": the bytes of its tensors by format."""
    sizes: dict[str, int] = {}
    with GGUFFile.open(path) as file:
        for tensor in file.tensors.values():
            sizes[tensor.format.name] = sizes.get(tensor.format.name, 0) + tensor.nbytes
    return {"title": title, "file": path.name, "bytes": path.stat().st_size, "weights": sizes}


def write(
    folder: Path, started: datetime.datetime, options: Mapping[str, int], measured: Mapping[str, Any]
) -> tuple[dict[str, Any], Path]:
    """Write a result into a folder; return it, and its file.

    options: how much was done. measured: by name.
    """
    result = {
        "date": started.isoformat(),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "options": dict(options),
        **measured,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{started:%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result, path
