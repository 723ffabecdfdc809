from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from cli.terminal import terminal
from live import LONG_WAIT_S, wait_until
from no_gpu import NO_DRIVER, NO_GPU
from tierd.cli import main, serve
from tierd.cli.client import at_socket
from tierd.errors import ModelError
from tierd.http import Server
from tierd.http.listeners import listen_at
from tierd.settings import AdminSettings, ModelSettings, ServerSettings, Settings
from tierd.slot import Slot
from tiny import write_llama


@contextmanager
def serving(*arguments: str, log: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `tierd serve`; yield its process and the address on the line that says it is ready.

    log: where standard error goes.
    """
    with (
        open(log or os.devnull, "w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tierd", "serve", "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = re.fullmatch(
                r"tierd \S+ is ready at (http://\S+) and serves .+\n", process.stdout.readline()
            )
            assert ready is not None
            yield process, ready[1]
        finally:
            process.kill()


def test_the_real_model_knows_the_capital_of_france(smollm2_path: Path) -> None:
    with serving("--model", str(smollm2_path)) as (_, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(
            model="SmolLM2-135M-Instruct.Q4_1",
            messages=[{"role": "user", "content": "Name the capital of France."}],
            temperature=0,
        )
    assert answer.choices[0].finish_reason == "stop"
    assert "Paris" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, name: signal.Signals) -> None:
    model = write_llama(tmp_path / "tiny.gguf")
    with serving("--model", str(model)) as (process, _):
        process.send_signal(name)
        assert process.wait(timeout=20) == 0


def test_it_ends_with_the_terminal_that_it_was_started_at(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "tiny.gguf")
    arguments = ("serve", "--model", str(model), "--listen", "127.0.0.1:0")
    with terminal(*arguments, environment=NO_GPU | {"XDG_RUNTIME_DIR": str(tmp_path)}) as window:
        window.until("is ready at http://")
        window.process.send_signal(signal.SIGHUP)  # by hand: the terminal is still there
        window.until("read the settings again; changed: nothing")
        window.close()
        assert window.code() == 0


def test_settings_file_and_flags_are_served_together(tmp_path: Path) -> None:
    write_llama(tmp_path / "one.gguf")
    two = write_llama(tmp_path / "two.gguf", seed=2)
    config = tmp_path / "tierd.toml"
    config.write_text("[[models]]\nid = 'first'\npath = 'one.gguf'\n")
    with (
        serving("--config", str(config), "--model", str(two)) as (_, url),
        urllib.request.urlopen(f"{url}/v1/models") as response,
    ):
        assert [model["id"] for model in json.load(response)["data"]] == ["first", "two"]


def processor_ticks(process: int) -> int:
    """Return the clock ticks that a process and its descendants have used so far."""
    used = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{process}/task").glob("*/children")
    return sum(map(int, used[11:13])) + sum(
        processor_ticks(int(child)) for path in children for child in path.read_text().split()
    )


def test_an_idle_daemon_uses_no_processor(tmp_path: Path) -> None:
    """Less than one clock tick a second, by all its threads and processes, once it has served a request."""
    seconds = 3
    with serving("--model", str(write_llama(tmp_path / "tiny.gguf"))) as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        client.completions.create(model="tiny", prompt="the of and", max_tokens=8)
        time.sleep(0.5)  # to come to rest
        before = processor_ticks(process.pid)
        assert before > os.sysconf("SC_CLK_TCK") / 10  # its start is counted
        time.sleep(seconds)
        assert processor_ticks(process.pid) - before < seconds


def lines_of(log: Path) -> list[str]:
    """Return the lines of a log, without the time."""
    return [line.split(" ", 2)[2] for line in log.read_text().splitlines()]


def test_out_of_the_box_there_is_an_admin_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)
    model = write_llama(tmp_path / "tiny.gguf")
    path, log = tmp_path / "tierd" / "admin.sock", tmp_path / "log"
    with serving("--model", str(model), log=log) as (process, _):
        assert main(["ctl", "status"]) == 0
        assert "tiny" in capsys.readouterr().out
        (load,) = at_socket(path).get("/operations")["operations"]
        assert (load["kind"], load["model"], load["state"]) == ("load", "tiny", "done")
        process.terminate()
        assert process.wait(timeout=20) == 0
    assert not path.exists()
    noted, loaded, admin, *_ = lines_of(log)
    assert noted == f"INFO models run on the CPU: {NO_DRIVER}"
    assert re.fullmatch(
        r"INFO model=tiny loaded in \d+\.\d\d s: llama on cpu, context 512, 8 streams, "
        r"K/V f16 in \d+ pages of \d+ positions \(\d+ MiB\)",
        loaded,
    )
    assert admin == f"INFO the admin API is at {path}"


def test_a_second_server_of_the_same_user_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    model = write_llama(tmp_path / "tiny.gguf")
    path, log = tmp_path / "tierd" / "admin.sock", tmp_path / "log"
    with listen_at(path), serving("--model", str(model), "--log-level", "warning", log=log) as (_, url):
        assert httpx.get(f"{url}/health", timeout=20, trust_env=False).status_code == 200
    assert lines_of(log) == [
        f"WARNING no admin socket; admin.socket: cannot listen on {path}: the path is in use; "
        "stop what uses it or choose another path"
    ]


class Started:
    """`run` in a thread, with a model that is opened when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
        self.opened = threading.Event()
        self.server: Server
        self.url: str
        self.error: Exception | None = None
        self._listening = threading.Event()
        self._settings = settings
        begin = serve.Start.begin

        def begun(start: serve.Start, server: Server, url: str) -> None:
            begin(start, server, url)
            self.server, self.url = server, url
            self._listening.set()

        open_model = serve.Tier.open

        def opened(tier: serve.Tier, model: ModelSettings) -> Slot:
            assert self.opened.wait(LONG_WAIT_S)
            return open_model(tier, model)

        monkeypatch.setattr(serve.Start, "begin", begun)
        monkeypatch.setattr(serve.Tier, "open", opened)

    def _run(self) -> None:
        try:
            serve.run(self._settings, lambda: self._settings)
        except Exception as error:
            self.error = error

    def __enter__(self) -> Started:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self._listening.wait(LONG_WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self.opened.set()
        self.thread.join(LONG_WAIT_S)
        assert not self.thread.is_alive()


def settings_of(path: Path) -> Settings:
    return Settings(
        server=ServerSettings(listen="127.0.0.1:0"),
        admin=AdminSettings(socket="off"),
        models=(ModelSettings(id="tiny", path=path, default=True),),
    )


def test_while_models_load_it_answers_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    with (
        Started(monkeypatch, settings_of(path)) as started,
        httpx.Client(base_url=started.url, timeout=LONG_WAIT_S, trust_env=False) as client,
    ):
        assert client.get("/health").status_code == 503
        request = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        wait_until(lambda: "loading" in client.post("/v1/completions", json=request).text)
        assert client.post("/v1/completions", json=request).status_code == 503
        assert capsys.readouterr().out == ""
        started.opened.set()
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/completions", json=request).status_code == 200
        shown: list[str] = []
        wait_until(lambda: bool(shown.append(capsys.readouterr().out) or "".join(shown)))
        assert "".join(shown).endswith(f" is ready at {started.url} and serves tiny\n")
    assert started.error is None


def test_it_may_be_stopped_before_the_models_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Started(monkeypatch, settings_of(write_llama(tmp_path / "tiny.gguf"))) as started:
        pass
    assert started.error is None
    assert capsys.readouterr().out == ""


def test_a_model_that_cannot_be_loaded_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Started(monkeypatch, settings_of(tmp_path / "missing.gguf")) as started:
        started.opened.set()
        started.thread.join(LONG_WAIT_S)
    assert isinstance(started.error, ModelError)
