"""The CPU level: the best one of this machine, or the one that the environment forces down to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from levels import levels_of_this_machine
from tierd.backends import library


def test_the_active_level_is_the_best_that_is_allowed() -> None:
    allowed = library.LEVELS.index(os.environ.get("HOSTKERNELS_LEVEL", library.LEVELS[-1]))
    there = [level for level in levels_of_this_machine() if library.LEVELS.index(level) <= allowed]
    assert library.level() == there[-1]


def _level_under(name: str) -> subprocess.CompletedProcess[str]:
    code = "from tierd.backends import library; print(library.level())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HOSTKERNELS_LEVEL": name},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("level", library.LEVELS)
def test_every_level_can_be_forced(level: str) -> None:
    if level not in levels_of_this_machine():
        pytest.skip(f"not run: this machine has no {level}")
    assert _level_under(level).stdout.strip() == level


def test_an_unknown_level_is_refused_by_name() -> None:
    answer = _level_under("sse9")
    assert answer.returncode != 0
    assert "HOSTKERNELS_LEVEL is 'sse9'; use one of portable, avx2, avx512vnni" in answer.stderr
