from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

import tierd
from tierd.cli import main
from tiny import write_llama


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
    for command in ("serve", "chat", "models", "size", "doctor", "key", "ctl"):
        assert f"  {command} " in shown


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "chat",
        "models",
        "size",
        "doctor",
        "key",
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


def test_a_key_is_shown_beside_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "alice"]) == 0
    shown = capsys.readouterr()
    key = shown.err.split()[-1]
    assert shown.out == f"alice {hashlib.sha256(key.encode()).hexdigest()}\n"


def test_a_key_of_no_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "a b"]) == 2
    assert capsys.readouterr().err.startswith("tierd: the name of a key must be")


def test_serving_by_keys_that_are_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_llama(tmp_path / "tiny.gguf")
    config = tmp_path / "tierd.toml"
    config.write_text(
        "server = {listen = '127.0.0.1:0', api_keys_file = 'keys'}\nadmin.socket = 'off'\ngpu.mode = 'off'\n"
        "models = [{id = 'tiny', path = 'tiny.gguf'}]\n"
    )
    said = f"server.api_keys_file: cannot read {tmp_path}/keys: No such file or directory"
    assert fails(capsys, 2, "serve", "--config", str(config)) == said
