"""The package that rails are made of: `kp`, the Python face of Kompute."""

from __future__ import annotations

import importlib
import sys

from tierd.cli.checks.finding import Finding, note

# kp is built from source, and not without help.
_INSTALL = "in tierd's source, make .venv/.kompute, which does what pip install 'tierd[rails]' takes"


def kompute() -> Finding:
    """Say whether kp can be imported, and why not."""
    subject = "rails"
    try:
        package = importlib.import_module("kp")
    except ModuleNotFoundError as error:
        if error.name != "kp":
            return note(subject, f"kp cannot be imported: it lacks {error.name}", _INSTALL)
        text = "kp is not installed, without which no model can be on the GPU in part"
        if sys.version_info >= (3, 13):
            return note(subject, f"{text}; it needs numpy below 2, which Python 3.13 and later lack")
        return note(subject, text, _INSTALL)
    except Exception as error:  # whatever its extension raises
        return note(subject, f"kp cannot be imported: {error}", f"pip uninstall kp, then {_INSTALL}")
    return Finding(
        subject=subject, text=f"kp {getattr(package, '__version__', '')}".strip() + " can be imported"
    )
