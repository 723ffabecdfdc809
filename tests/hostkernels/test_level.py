"""The CPU level: the best one of this machine, or the one that the environment forces down to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tierd.backends import library

# What /proc/cpuinfo calls the instructions that a level needs.
NEEDS = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512vnni": {"avx2", "fma", "f16c", "avx512_vnni", "avx512bw", "avx512vl", "avx512dq"},
}


def _levels_of_this_machine() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split(":")[1].split()}
    return [level for level in library.LEVELS if NEEDS[level] <= flags]


def test_the_active_level_is_the_best_that_is_allowed() -> None:
    allowed = library.LEVELS.index(os.environ.get("HOSTKERNELS_LEVEL", library.LEVELS[-1]))
    there = [level for level in _levels_of_this_machine() if library.LEVELS.index(level) <= allowed]
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
    if level not in _levels_of_this_machine():
        pytest.skip(f"not run: this machine has no {level}")
    assert _level_under(level).stdout.strip() == level


def test_an_unknown_level_is_refused_by_name() -> None:
    answer = _level_under("sse9")
    assert answer.returncode != 0
    assert "HOSTKERNELS_LEVEL is 'sse9'; use one of portable, avx2, avx512vnni" in answer.stderr
