"""Whether Kompute is there: what needs it is named as not run where it is not."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_kompute = pytest.mark.skipif(
    find_spec("kp") is None,
    reason="not run: the package kp (Kompute) is not installed; make test installs it where it can",
)
