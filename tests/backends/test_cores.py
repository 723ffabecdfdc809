"""Threads are as many as the affinity and the cgroups' quotas let run at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tierd.backends.cores import usable_cores


def _lay_out(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "390000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "a/cpu.max": "400000 100000\n"}, 2),
        # A container sees its own group's files where it is told a path outside of it.
        ("0::/../other\n", {"cpu.max": "200000 100000\n"}, 2),
        (
            "4:memory:/m\n2:cpu,cpuacct:/c\n",
            {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "1"},
            8,
        ),
        (
            "2:cpu,cpuacct:/docker/x\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "50000\n"},
            5,
        ),
        ("3:cpuset:/c\n", {"cpu/c/cpu.cfs_quota_us": "100", "cpu/c/cpu.cfs_period_us": "100"}, 8),
    ],
)
def test_quotas(groups: str, files: dict[str, str], cores: int, tmp_path: Path) -> None:
    placed = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert usable_cores(_lay_out(tmp_path, groups, placed)) == cores


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


def test_an_affinity_of_one_core() -> None:
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from tierd.backends.cores import usable_cores; print(usable_cores())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert told.stdout == b"1\n"
