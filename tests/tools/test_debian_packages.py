from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

VULKAN = ("libvulkan1", "mesa-vulkan-drivers", "vulkan-validationlayers")
SCRIPT = Path(__file__).resolve().parent.parent.parent / "tools" / "debian_packages.sh"

Machine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Run the script on a machine that has only the named commands, as the named user id.

    Its Vulkan drivers and layers are those in the test's own folder.
    """

    def run(
        *commands: str, user: int = 1000, python: str = sys.executable, needs: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        for command in commands:
            found = shutil.which(command)
            assert found is not None
            (tmp_path / command).symlink_to(found)
        identity = tmp_path / "id"
        identity.write_text(f"#!/bin/sh\necho {user}\n")
        identity.chmod(0o755)
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), python, *needs],
            env={**os.environ, "PATH": str(tmp_path), "XDG_DATA_DIRS": f"/nowhere:{tmp_path}"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


def test_says_nothing_when_nothing_is_missing(machine: Machine) -> None:
    run = machine("gcc", "as", "ld")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_prints_the_command_for_who_may_not_install(machine: Machine) -> None:
    run = machine("sh")
    assert run.returncode == 1
    assert "sudo sh -c 'apt-get update && apt-get install --yes" in run.stderr
    assert "gcc libc6-dev'" in run.stderr


def test_names_what_is_needed_besides(machine: Machine) -> None:
    run = machine("sh", "gcc", "as", "ld", needs=("g++", "as"))
    assert run.returncode == 1
    assert "--no-install-recommends g++'" in run.stderr


def test_names_the_vulkan_packages_whose_parts_are_missing(machine: Machine, tmp_path: Path) -> None:
    python = tmp_path / "python-without-loader"
    python.write_text("#!/bin/sh\ncase $2 in *libvulkan*) exit 1;; esac\n")
    python.chmod(0o755)
    run = machine("sh", "gcc", "as", "ld", python=str(python), needs=VULKAN)
    assert run.returncode == 1
    assert f"--no-install-recommends {' '.join(VULKAN)}'" in run.stderr


def test_takes_vulkan_parts_from_wherever_they_are(machine: Machine, tmp_path: Path) -> None:
    for file in ("icd.d/lvp_icd.x86_64.json", "explicit_layer.d/VkLayer_khronos_validation.json"):
        path = tmp_path / "vulkan" / file
        path.parent.mkdir(parents=True)
        path.touch()
    python = tmp_path / "python-with-loader"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    run = machine("gcc", "as", "ld", python=str(python), needs=VULKAN)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_takes_node_from_wherever_it_is(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "node").symlink_to("/bin/true")
    run = machine("sh", "gcc", "as", "ld", needs=("nodejs", "npm"))
    assert run.returncode == 1
    assert "--no-install-recommends npm'" in run.stderr


def test_installs_through_apt_as_root(machine: Machine, tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text('#!/bin/sh\necho "apt-get $*"\n')
    apt.chmod(0o755)
    run = machine("sh", user=0)
    assert run.returncode == 0
    assert "apt-get update\napt-get install --yes --no-install-recommends gcc libc6-dev\n" in run.stdout


def test_refuses_an_old_python(machine: Machine, tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    run = machine("gcc", python=str(old))
    assert run.returncode == 1
    assert "tierd needs Python 3.11 or newer" in run.stderr
