"""`tierd ctl` against a running daemon that loads, unloads and drains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from live import Live, serve
from tierd.cli import main
from tierd.http.listeners import listen_at
from tierd.settings import ModelSettings


@dataclass(frozen=True)
class Daemon:
    """A daemon of the model "tiny", and `tierd ctl` for it: what it answers, or how it fails."""

    live: Live
    socket: Path

    def asks(self, model: str) -> int:
        """Return the status of a request."""
        return self.live.post("/v1/completions", {"model": model, "prompt": [1], "max_tokens": 1}).status_code


@pytest.fixture(scope="module")
def daemon(model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    socket = tmp_path_factory.mktemp("models") / "admin.sock"
    with listen_at(socket) as door, serve([model], admin=[(door, None)]) as live:
        yield Daemon(live, socket)


Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def ctl(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that gives the exit code, the lines of standard output, and standard error."""

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = main(["ctl", "--socket", str(daemon.socket), *arguments])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


def test_a_model_comes_and_goes(daemon: Daemon, model: ModelSettings, ctl: Run) -> None:
    assert daemon.asks("new") == 404
    code, lines, error = ctl("load", str(model.path), "--id", "new", "--context", "64", "--streams", "2")
    assert (code, error) == (0, "")
    assert any(line.startswith("new is loaded") for line in lines)
    assert lines[-1].startswith("in all ")
    assert daemon.asks("new") == 200
    _, slots, _ = ctl("slots")
    assert ["new", "llama", "cpu", "f16", "64", "2", "64", "64"] in [line.split() for line in slots]

    code, _, error = ctl("load", str(model.path), "--id", "new")
    assert code == 1
    assert error.startswith("tierd: a model called 'new' is loaded already")

    code, lines, error = ctl("unload", "new", "--limit", "5")
    assert (code, error) == (0, "")
    assert "new is unloaded" in lines
    assert daemon.asks("new") == 404
    _, status, _ = ctl("status")
    assert ["new", "not", "loaded"] in [line.split() for line in status]

    code, (text, *rest), error = ctl("load", "new", "--no-activate", "--no-wait")
    assert (code, rest, error) == (0, [], "")
    assert ctl("operations", text)[0] == 0
    assert daemon.asks("new") == 200
    _, view, _ = ctl("unload", "new", "--json")
    assert json.loads("".join(view))["state"] == "done"


def test_a_file_that_is_no_model(daemon: Daemon, ctl: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF is not all that it takes")
    code, _, error = ctl("load", str(tmp_path / "bad.gguf"))
    assert code == 4
    assert error.startswith("tierd: bad: ")
    assert error.count("\n") == 1


def test_a_file_that_is_not_there_is_named_as_it_was_meant(
    daemon: Daemon, ctl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = ctl("load", "./x.gguf")
    assert (code, error.startswith(f"tierd: x: {tmp_path}/x.gguf cannot be opened")) == (4, True)


def test_a_wrong_setting(daemon: Daemon, ctl: Run) -> None:
    error = "tierd: context must lie between 0 and 2147483647, not -1\n"
    assert ctl("load", "x.gguf", "--context", "-1") == (2, [], error)


def test_what_has_no_place_on_a_device_is_not_switched_to(daemon: Daemon, ctl: Run) -> None:
    code, _, error = ctl("switch", "tiny")
    assert code == 1
    assert error.startswith("tierd: tiny is not for a GPU")
    assert error.count("\n") == 1
    assert ctl("switch", "nobody")[2].startswith("tierd: there is no model 'nobody'; models served: ")


def test_a_drained_daemon_refuses_until_it_is_told_to_resume(daemon: Daemon, ctl: Run) -> None:
    assert ctl("drain")[0] == 0
    assert daemon.asks("tiny") == 503
    assert ctl("resume") == (0, ["requests are admitted again"], "")
    assert daemon.asks("tiny") == 200
    _, operations, _ = ctl("operations", "--json")
    kinds = [operation["kind"] for operation in json.loads("".join(operations))["operations"]]
    assert kinds[-2:] == ["drain", "resume"]
