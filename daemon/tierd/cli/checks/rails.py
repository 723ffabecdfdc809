"""The package that rails are made of: `kp`, the Python face of Kompute."""

from __future__ import annotations

import importlib
import sys

from tierd.cli.checks.finding import Finding, note

_SOURCES = "sudo apt install g++ cmake libvulkan-dev libfmt-dev pybind11-dev python3-dev"


def kompute() -> Finding:
    """Say whether kp can be imported, and why not."""
    subject, install = "rails", "pip install 'tierd[rails]'"
    try:
        package = importlib.import_module("kp")
    except ModuleNotFoundError as error:
        if error.name != "kp":
            return note(subject, f"kp cannot be imported: it lacks {error.name}", install)
        text = "kp is not installed, without which no model can be on the GPU in part"
        if sys.version_info >= (3, 13):
            return note(subject, f"{text}; it needs numpy below 2, which Python 3.13 and later lack")
        return note(subject, text, f"{_SOURCES} && {install}")
    except Exception as error:  # whatever its extension raises
        return note(subject, f"kp cannot be imported: {error}", f"{install} --force-reinstall")
    return Finding(
        subject=subject, text=f"kp {getattr(package, '__version__', '')}".strip() + " can be imported"
    )
