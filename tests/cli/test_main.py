from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tierd
from tierd.cli import main


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """Run the command line, demand the exit code and one line on standard error; return that line."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    return line.removeprefix("tierd: ")


def test_version_as_a_module() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tierd", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"tierd {tierd.__version__}\n"


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("serve", "chat", "models", "size", "doctor", "ctl"):
        assert f"  {command} " in shown


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "chat",
        "models",
        "size",
        "doctor",
        "ctl",
        "ctl status",
        "ctl slots",
        "ctl switch",
        "ctl load",
        "ctl operations",
    ],
)
def test_every_option_is_explained(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: tierd {command} [OPTIONS]")
    options = [
        line.split("  ") for line in shown.partition("Options:\n")[2].splitlines() if "  -" in line[:4]
    ]
    assert options
    assert max(len(line) for line in shown.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sreve"], "No such command 'sreve'"),
        (["serve", "--modle", "x"], "No such option"),
        (["serve"], "no model was named; give --model FILE.gguf, or --config FILE with a [[models]] table"),
        (["models"], "no model was named"),
        (["serve", "--config", "missing.toml"], "missing.toml: cannot read the settings file"),
        (["serve", "--model", "a.gguf", "--listen", "here"], "--listen 'here' must be HOST:PORT"),
    ],
)
def test_usage_and_settings_exit_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert fails(capsys, 2, *arguments).startswith(message)


def test_settings_file_comes_from_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "empty.toml"
    file.touch()
    monkeypatch.setenv("TIERD_CONFIG", str(file))
    assert fails(capsys, 2, "models") == (
        f"{file}: there is no [[models]] table; add one, or give --model FILE.gguf"
    )
