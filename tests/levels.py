"""Which of the kernels' levels this machine has, by its own word rather than the kernels'."""

from __future__ import annotations

from pathlib import Path

from tierd.backends import library

# What /proc/cpuinfo calls the instructions that a level needs.
NEEDS = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512vnni": {"avx2", "fma", "f16c", "avx512_vnni", "avx512bw", "avx512vl", "avx512dq"},
}


def levels_of_this_machine() -> list[str]:
    """Return their names in ascending order."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split(":")[1].split()}
    return [level for level in library.LEVELS if NEEDS[level] <= flags]
