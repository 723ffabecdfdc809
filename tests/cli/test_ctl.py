from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import tierd
from live import Live, serve, wait_until
from tierd.cli import main
from tierd.http.listeners import listen, listen_at, url
from tierd.settings import ModelSettings

TOKEN = "0123456789abcdef"


@dataclass(frozen=True)
class Daemon:
    """A daemon whose admin socket is where `tierd serve` puts it, and its admin URL."""

    live: Live
    url: str


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ctl")


@pytest.fixture(scope="module")
def daemon(model: ModelSettings, runtime: Path) -> Iterator[Daemon]:
    with (
        listen_at(runtime / "tierd" / "admin.sock") as unix,
        closing(listen("127.0.0.1:0")) as tcp,
        serve([model], admin=[(unix, None), (tcp, TOKEN)]) as live,
    ):
        yield Daemon(live, url(tcp))


@pytest.fixture(autouse=True)
def _found(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


def ctl(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["ctl", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    assert main(["ctl", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("tierd: ")


def test_status_as_a_table(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    up, headings, row = ctl(capsys, "status").splitlines()
    assert up.startswith(f"tierd {tierd.__version__}, up for 0:0")
    columns = ["model", "outcome", "running", "paused", "waiting", "pages", "used", "cached", "free"]
    assert headings.split() == columns
    assert row.split()[:5] == ["tiny", "cpu", "0", "0", "0"]


def test_status_and_slots_as_json(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    status = json.loads(ctl(capsys, "status", "--json"))
    assert [model["id"] for model in status["models"]] == ["tiny"]
    (slot,) = json.loads(ctl(capsys, "slots", "--json"))["slots"]
    assert (slot["id"], slot["context"]) == ("tiny", 256)


def test_slots_as_a_table(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    headings, row = ctl(capsys, "slots").splitlines()
    columns = ["model", "architecture", "outcome", "K/V", "context", "streams", "prompt", "output"]
    assert headings.split() == columns
    assert row.split() == ["tiny", "(default)", "llama", "cpu", "f16", "256", "8", "256", "256"]


def test_flush_says_what_it_freed(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = {"prompt": list(range(1, 30)), "max_tokens": 2, "ignore_eos": True}
    assert daemon.live.post("/v1/completions", prompt).status_code == 200
    wait_until(lambda: daemon.live.engine.snapshot.models["tiny"].pages_cached > 0)
    kept = daemon.live.engine.snapshot.models["tiny"].pages_cached
    assert ctl(capsys, "flush", "--model", "tiny") == f"{kept} pages were freed\n"
    assert ctl(capsys, "flush") == "0 pages were freed\n"
    assert json.loads(ctl(capsys, "flush", "--json")) == {"pages_freed": 0}
    assert fails(capsys, 1, "flush", "--model", "x") == "there is no model 'x'; models served: tiny"


def test_a_daemon_is_found_by_flag_or_settings(
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
    runtime: Path,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = runtime / "tierd" / "admin.sock"
    config = tmp_path / "tierd.toml"
    config.write_text(f"admin.socket = '{path}'\n")
    address = daemon.url.removeprefix("http://")
    tcp = tmp_path / "tcp.toml"
    tcp.write_text(f"[admin]\nsocket = 'off'\nlisten = '{address}'\ntoken_file = 'token'\n")

    assert "tiny" in ctl(capsys, "--socket", path, "status")
    assert "tiny" in ctl(capsys, "--config", config, "status")
    assert "tiny" in ctl(capsys, "--config", tcp, "status")
    assert "tiny" in ctl(capsys, "--url", daemon.url, "--token-file", token_file, "status")
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{runtime / 'tierd'}:{tmp_path}")
    assert "tiny" in ctl(capsys, "status")


def test_faults_are_one_line(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(capsys, 1, "--url", daemon.url, "status").startswith("this needs the admin token")
    missing = tmp_path / "missing.sock"
    assert fails(capsys, 1, "--socket", missing, "status") == (
        f"cannot talk to {missing}: No such file or directory; is `tierd serve` running?"
    )
    off = tmp_path / "off.toml"
    off.write_text("admin.socket = 'off'\n")
    assert fails(capsys, 2, "--config", off, "status") == (
        "the settings turn the admin API off; name one with --socket or --url"
    )
    assert "cannot read" in fails(capsys, 2, "--url", daemon.url, "--token-file", missing, "status")


@pytest.mark.parametrize("command", ["status", "slots", "flush"])
@pytest.mark.parametrize("body", [b"[]", b'{"models": 3}'])
def test_json_of_another_shape_is_one_line(
    command: str, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # a close with bytes unread would reset the connection
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        code = main(["ctl", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}", command])
        thread.join()
    error = capsys.readouterr().err
    assert code == 1
    assert "sent JSON of another shape; is it tierd?" in error
    assert error.count("\n") == 1
