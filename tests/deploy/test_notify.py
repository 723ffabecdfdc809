"""A daemon as systemd runs it: with a socket handed over, told of by notifications, asked by signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from live import LONG_WAIT_S, wait_until
from manager import Manager, Told, manager
from tierd.cli import main
from tiny import write_llama

WATCHDOG_S = 0.6
SETTINGS = """
admin.socket = "{folder}/admin.sock"
engine.threads = 1
gpu.mode = "off"
[[models]]
id = "tiny"
path = "tiny.gguf"
context = 512
"""


# What systemd does before it runs a service: the socket is 3, and for that process.
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "tierd", "serve", "--config", sys.argv[2]])
"""


class Service:
    """tierd in a folder, with systemd's part played. address: of its public port."""

    def __init__(self, folder: Path, systemd: Manager, listener: socket.socket) -> None:
        self.systemd = systemd
        self.settings = folder / "tierd.toml"
        self.address: tuple[str, int] = listener.getsockname()
        self._listener = listener
        self._log = folder / "log"
        write_llama(folder / "tiny.gguf", context=512)
        self.text = SETTINGS.format(folder=folder)
        self.settings.write_text(self.text)
        self.admin = folder / "admin.sock"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @contextmanager
    def run(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it, from when it is ready on."""
        environment = os.environ | {
            "NOTIFY_SOCKET": self.systemd.address,
            "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
            "LISTEN_FDS": "1",
            "LISTEN_FDNAMES": "public",
        }
        told = len(self.systemd.told)
        with (
            self._log.open("a") as log,
            subprocess.Popen(
                [sys.executable, "-c", HAND_OVER, str(self._listener.fileno()), str(self.settings)],
                env=environment,
                pass_fds=[self._listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=log,
            ) as process,
        ):
            try:
                self.systemd.await_one(lambda told: "READY" in told, told)
                yield process
            finally:
                process.kill()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=LONG_WAIT_S)

    def ask(self, **more: object) -> httpx.Response:
        host, port = self.address
        body = {"prompt": "the of and", "max_tokens": 5, "ignore_eos": True, **more}
        return httpx.post(
            f"http://{host}:{port}/v1/completions", json=body, timeout=LONG_WAIT_S, trust_env=False
        )

    def reload(self, process: subprocess.Popen[bytes], settings: str) -> Told:
        """Let it read other settings; return what it tells when it has."""
        self.settings.write_text(settings)
        told = len(self.systemd.told)
        process.send_signal(signal.SIGHUP)
        begun = self.systemd.await_one(lambda told: "RELOADING" in told, told)
        assert self.systemd.told[begun - 1]["MONOTONIC_USEC"].isdecimal()
        done = self.systemd.await_one(lambda told: "READY" in told, begun)
        return self.systemd.told[done - 1]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with manager() as systemd, socket.create_server(("127.0.0.1", 0)) as listener:
        yield Service(tmp_path, systemd, listener)


def post(connection: socket.socket, **body: object) -> None:
    """Send a request by hand."""
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)


def test_it_starts_lives_reloads_and_restarts(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    systemd = service.systemd
    with service.connect() as early, service.connect() as streaming, service.run() as process:
        ready = next(told for told in systemd.told if "READY" in told)
        assert ready["STATUS"] == "serves tiny (cpu); 0 requests run, 0 wait"
        post(early, prompt="the", max_tokens=1)
        assert early.recv(4096).startswith(b"HTTP/1.1 200 OK")

        reloads_by_what_may_change(service, process, capsys)

        count = len(systemd.told)
        for _ in range(3):
            count = systemd.await_one(lambda told: "WATCHDOG" in told, count)
        gaps = [after - before for before, after in pairwise(systemd.times("WATCHDOG"))]
        assert min(gaps) < WATCHDOG_S

        post(streaming, prompt="the", max_tokens=400, ignore_eos=True, stream=True)
        assert streaming.recv(4096).startswith(b"HTTP/1.1 200 OK")
        process.terminate()
        systemd.await_one(lambda told: told.get("STOPPING") == "1" and "EXTEND_TIMEOUT_USEC" in told)
        wait_until(lambda: "ending; what runs may take" in service.log)
        with service.connect() as late:
            post(late, prompt="the", max_tokens=1)
            rest = b"".join(iter(lambda: streaming.recv(1 << 16), b""))
            assert b"data: [DONE]" in rest
            assert process.wait(LONG_WAIT_S) == 0
            with service.run():
                assert late.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert "systemd has http://127.0.0.1:" in service.log


def reloads_by_what_may_change(
    service: Service, process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert service.ask().json()["usage"]["completion_tokens"] == 5
    assert "the of and" not in service.log

    broken = service.reload(process, service.text + "strems = 3\n")
    wrong = f"{service.settings}: models[0].strems is not a setting; did you mean models[0].streams?"
    assert broken["STATUS"] == f"the settings from before hold: {wrong}"
    assert f"ERROR the settings from before hold: {wrong}\n" in service.log

    changed = service.text.replace("engine.threads = 1", "engine.threads = 2")
    changed = (
        "limits.max_output_tokens = 2\nlog = {prompts = true, format = 'json'}\nkv.memory_mb = 64\n" + changed
        + "[[keys]]\nrequests_per_minute = 1\n"
    )  # fmt: skip
    told = service.reload(process, changed)
    assert told["STATUS"].endswith("; a restart is needed for engine.threads, kv.memory_mb")
    lines = [json.loads(line) for line in service.log.splitlines() if line.startswith("{")]
    assert [(line["level"], line["message"]) for line in lines[:2]] == [
        (
            "info",
            "read the settings again; changed: log.format, log.prompts, limits.max_output_tokens, keys",
        ),
        ("warning", "changed too, but a restart is needed for it: engine.threads, kv.memory_mb"),
    ]
    assert main(["ctl", "--socket", str(service.admin), "status"]) == 0
    assert "a restart is needed for engine.threads, kv.memory_mb\n" in capsys.readouterr().out
    assert service.ask(max_tokens=None).json()["usage"]["completion_tokens"] == 2
    assert '"prompt_text": "the of and"' in service.log
    assert service.ask().status_code == 429

    assert service.reload(process, service.text)["STATUS"] == "serves tiny (cpu); 0 requests run, 0 wait"
    assert service.ask().json()["usage"]["completion_tokens"] == 5
