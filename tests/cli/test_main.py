from __future__ import annotations

import socket
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
    assert "serve" in shown
    assert "models" in shown


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


def exit_of_serve(*arguments: str) -> tuple[int, str]:
    """Run `tierd serve` to its end, in a process of its own; return its exit code and its last line."""
    run = subprocess.run(
        [sys.executable, "-m", "tierd", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in run.stderr
    return run.returncode, run.stderr.splitlines()[-1]


def test_a_model_that_cannot_be_loaded_exits_with_4(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    code, line = exit_of_serve("--model", str(missing), "--listen", "127.0.0.1:0")
    assert (code, line) == (4, f"tierd: missing: {missing} cannot be opened: No such file or directory")


def test_an_address_in_use_exits_with_2(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "tiny.gguf")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = exit_of_serve("--model", str(model), "--listen", address)
    assert code == 2
    assert line.startswith(f"tierd: server.listen: cannot listen on {address}: the port is in use")


def test_a_template_that_is_missing_exits_with_2(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    config = tmp_path / "tierd.toml"
    config.write_text("[[models]]\nid = 'tiny'\npath = 'tiny.gguf'\nchat_template = 'missing.jinja'\n")
    code, line = exit_of_serve("--config", str(config), "--listen", "127.0.0.1:0")
    assert code == 2
    assert "cannot read chat_template" in line
