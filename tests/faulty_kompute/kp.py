"""Kompute that fails on purpose: in the way that the file says whose path is in TIERD_TEST_FAULT.

"raise": running commands raises. "nothing": it does nothing and says so to nobody, as with a device that is
lost. "hang": it does not end. "die": the process crashes. "closed": no device can be opened. While there is
no such file all is as it is.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_FAULT = Path(os.environ["TIERD_TEST_FAULT"])


def _load() -> Any:
    """Load the extension that this module hides."""
    for folder in sys.path:
        for found in Path(folder).glob("kp.*.so"):
            spec = importlib.util.spec_from_file_location("kp", found)
            assert spec is not None
            assert spec.loader is not None
            here = sys.modules[__name__]
            module = importlib.util.module_from_spec(spec)  # which takes the name for itself
            spec.loader.exec_module(module)
            sys.modules[__name__] = here
            return module
    raise ImportError("kp is not installed")


_kp = _load()


def __getattr__(name: str) -> Any:
    return getattr(_kp, name)


def _fault() -> str:
    return _FAULT.read_text() if _FAULT.exists() else ""


class Manager:
    """Kompute's, whose sequences may fail."""

    def __init__(self, index: int) -> None:
        if _fault():
            raise RuntimeError("it is closed")
        self._manager = _kp.Manager(index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def sequence(self) -> Sequence:
        return Sequence(self._manager.sequence())


class Sequence:
    """Kompute's, which may fail."""

    def __init__(self, sequence: Any) -> None:
        self._sequence = sequence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sequence, name)

    def eval(self) -> None:
        match _fault():
            case "raise":
                raise RuntimeError("the driver says no")
            case "hang":
                time.sleep(600)
            case "die":
                print("the driver has seen a page fault", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGSEGV)
            case "nothing":
                return
        self._sequence.eval()
