"""Kompute is installed where it can be had, and whoever has it not is told why."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec

import install_kompute
import pytest


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run, which all fails; kp is not there."""
    made: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        made.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(install_kompute, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "version_info", (3, 11, 0))
    return made


def test_the_extra_asks_for_one_version() -> None:
    assert install_kompute.requirement() == ["kp==0.9.0"]


def test_what_is_there_is_left_alone(calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_kompute, "find_spec", lambda name: ModuleSpec(name, None))
    assert (install_kompute.install(), calls) == ("", [])


def test_a_python_that_numpy_is_too_new_for_tries_nothing(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert install_kompute.install().startswith("it takes numpy below 2, ")
    assert calls == []


def test_without_what_building_takes_pip_is_not_tried(calls: list[list[str]]) -> None:
    assert install_kompute.install() == "it is built from source, and what that takes is missing"
    assert [command[0] for command in calls] == ["sh"]


def test_what_cannot_be_built_is_no_failure(calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def only_pip_fails(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        code = run(command, **options).returncode if "pip" in command else 0  # type: ignore[call-overload]
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", only_pip_fails)
    assert install_kompute.install() == "it cannot be built here"
    assert calls == [[sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "kp==0.9.0"]]
