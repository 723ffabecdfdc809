from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "tools" / "unpack_prometheus.sh"
NAMES = ("prometheus", "promtool")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder of commands that has no apt-get."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("sh", "mkdir", "ln"):
        found = shutil.which(name)
        assert found is not None
        (path / name).symlink_to(found)
    return path


def unpack(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(SCRIPT), str(folder)]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True, check=False)


def test_what_is_there_is_taken(path: Path, tmp_path: Path) -> None:
    for name in NAMES:
        (path / name).write_text("#!/bin/sh\n")
        (path / name).chmod(0o755)
    for _ in range(2):
        run = unpack(path, tmp_path / "there")
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert [(tmp_path / "there" / name).readlink() for name in NAMES] == [path / name for name in NAMES]


def test_one_line_says_what_to_do_where_there_is_no_debian(path: Path, tmp_path: Path) -> None:
    run = unpack(path, tmp_path / "there")
    assert run.returncode == 1
    assert (
        run.stderr
        == "prometheus and promtool are missing: install Prometheus 2.42 or newer, then try again\n"
    )
