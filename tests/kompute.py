"""Whether Kompute is there: what needs it is named as not run where it is not. How it fails on purpose."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

needs_kompute = pytest.mark.skipif(
    find_spec("kp") is None,
    reason="not run: the package kp (Kompute) is not installed; make test installs it where it can",
)


class Faults:
    """The faults of Kompute's processes that are started meanwhile; see `faulty_kompute/kp.py`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def set(self, fault: str) -> None:
        """Let all that is run from now on fail in a way, and every device that is to be opened too."""
        self._file.with_suffix(".new").write_text(fault)
        self._file.with_suffix(".new").rename(self._file)

    def end(self) -> None:
        """Let all work again."""
        self._file.unlink()
