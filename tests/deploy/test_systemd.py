"""The units: systemd reads them, finds them closed enough, and the page beside them explains every line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.unit import SYSTEMD, directives

UNITS = ("tierd.service", "tierd.socket")
# Most that `systemd-analyze security` may find, in tenths of its ten points.
MOST_EXPOSED = 35
# What needs no reasons.
PLAIN = {"Description", "After", "ListenStream"}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the units in which tierd is where the tests have it."""
    shutil.copytree(SYSTEMD, tmp_path, dirs_exist_ok=True)
    unit = tmp_path / "tierd.service"
    unit.write_text(unit.read_text().replace("/opt/tierd/bin/", f"{Path(sys.executable).parent}/"))
    return tmp_path


def test_systemd_finds_nothing_wrong(installed: Path) -> None:
    (installed / "tierd.service.d" / "notify-reload.conf").unlink()  # for those that know more than some
    said = subprocess.run(
        [
            "systemd-analyze",
            "verify",
            "--man=no",
            "--recursive-errors=no",
            *(installed / unit for unit in UNITS),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_it_is_closed_enough(installed: Path) -> None:
    said = subprocess.run(
        [
            "systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager",
            str(installed / "tierd.service"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout
    page = (SYSTEMD / "README.md").read_text()
    told, found = re.search(r"gives it (\S+) of 10", page), re.search(r"tierd.service: (\S+) OK", said.stdout)
    assert told is not None
    assert found is not None
    assert told[1] == found[1]


@pytest.mark.parametrize("name", ["MemoryDenyWriteExecute", "ProcSubset", "PrivateDevices", "PrivateUsers"])
def test_it_lets_drivers_work(name: str) -> None:
    assert name not in dict(directives(SYSTEMD / "tierd.service", "Service"))


def test_every_line_has_its_reason() -> None:
    page = (SYSTEMD / "README.md").read_text()
    for path in (*SYSTEMD.glob("tierd.s*"), *SYSTEMD.glob("*.d/*.conf")):
        if path.is_file():
            lines = [line for part in ("Unit", "Service", "Socket") for line in directives(path, part)]
            assert lines
            unexplained = {name for name, _ in lines if f"`{name}=" not in page} - PLAIN
            assert not unexplained, path


def test_the_user_is_in_the_groups_of_gpus(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", str(SYSTEMD / "sysusers.conf")],
        check=True,
        capture_output=True,
    )
    groups = (tmp_path / "etc" / "group").read_text().splitlines()
    members = {line.split(":")[0]: line.split(":")[3] for line in groups}
    assert members == {"render": "tierd", "video": "tierd", "tierd": ""}
    (user,) = (tmp_path / "etc" / "passwd").read_text().splitlines()
    assert user.endswith(":/var/lib/tierd:/usr/sbin/nologin")
