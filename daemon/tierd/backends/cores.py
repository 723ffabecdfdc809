"""How many threads of this process can compute at once, by its affinity and its cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path

_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """Return the cores of this process's affinity, or as many whole ones as its CPU quota is worth; never 0.

    With a thread more, all others would wait for it whenever the quota of a period is used up. root: where
    proc and sys are. Quotas are those of cgroup v2 (cpu.max) and v1 (cpu.cfs_quota_us, cpu.cfs_period_us), of
    the process's own groups and of those around them:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    allowed = min((_quota(folder) for folder in _folders(root)), default=inf)
    return max(1, int(min(len(os.sched_getaffinity(0)), allowed)))


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders of the process's groups, from inside out, as far as they can be seen from here."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            yield root / "sys/fs/cgroup" / ("cpu" if controllers else "") / each


def _quota(folder: Path) -> float:
    """Return how many cores a group's threads may keep busy."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else inf
    except (OSError, ValueError):  # there is none: "max" is not a number
        return inf
