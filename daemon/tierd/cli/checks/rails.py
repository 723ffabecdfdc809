"""The package that rails are made of: `kp`, the Python face of Kompute."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec

from tierd.cli.checks.finding import Finding, note
from tierd.errors import DeviceError, one_line

_SUBJECT = "rails"
# kp is built from source, and not without help.
INSTALL = (
    f"in tierd's source: {sys.executable} tools/install_kompute.py, which builds it (Debian: g++, cmake, "
    "libvulkan-dev, libfmt-dev, pybind11-dev)"
)
WITHOUT = "gpu.mode = 'resident' goes without rails"


def absent() -> Finding | None:
    """Say that kp is not installed, unless it is."""
    if find_spec("kp") is not None:
        return None
    text = "kp is not installed, without which no model can be on the GPU in part"
    if sys.version_info >= (3, 13):
        text += "; it needs numpy below 2, which Python 3.13 and later lack"
        return note(_SUBJECT, text, "run tierd on Python 3.12 or 3.11")
    return note(_SUBJECT, text, INSTALL)


def untried() -> Finding:
    """Say that kp is there, and nothing that it could compute on."""
    return Finding(subject=_SUBJECT, text="kp is installed, and not tried: there is no device to try it on")


def failed(error: DeviceError) -> Finding:
    """Say that kp was tried in vain."""
    return note(_SUBJECT, str(error), f"update the device's driver; {WITHOUT}")


def kompute(witness: Callable[[], str]) -> Finding:
    """Say whether Kompute computes right, and why not. kp is installed, and there is a device.

    witness: lets it compute, and returns why it cannot, "" when it can.
    """
    try:
        package = importlib.import_module("kp")
    except ModuleNotFoundError as error:
        text = f"kp cannot be imported: it lacks {error.name}"
        return note(_SUBJECT, text, f"{sys.executable} -m pip install {error.name}")
    except Exception as error:  # whatever its extension raises
        text = f"kp cannot be imported: {one_line(str(error))}"
        return note(_SUBJECT, text, f"{sys.executable} -m pip uninstall kp, then {INSTALL}")
    name = f"kp {getattr(package, '__version__', '')}".strip()
    reason = witness()
    if reason:
        return note(_SUBJECT, f"{name} does not work: {reason}", f"update the device's driver; {WITHOUT}")
    return Finding(subject=_SUBJECT, text=f"{name} multiplies right on the device")
