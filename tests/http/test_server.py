from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from live import serve
from tierd.http.fingerprint import system_fingerprint
from tierd.settings import ModelSettings
from tiny import write_llama


def test_a_stopped_server_leaves_nothing_running(tiny_model: ModelSettings) -> None:
    before = set(threading.enumerate())
    with serve([tiny_model]) as live:
        assert live.post("/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 200
        address = live.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])), timeout=5)
    left = {
        thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("tierd-encode")
    }
    assert not left


def test_a_signal_ends_the_streams_then_the_process_in_good_order(tmp_path: Path) -> None:
    endless = write_llama(tmp_path / "endless.gguf", context=1 << 16)
    command = [sys.executable, "-m", "tierd", "serve", "--model", endless, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = process.stdout.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+", ready)[0]
            body = {"prompt": [1], "stream": True, "ignore_eos": True}
            with httpx.stream("POST", url + "/v1/completions", json=body, timeout=20) as response:
                frames = response.iter_lines()
                assert next(frames).startswith("data: {")
                process.send_signal(signal.SIGTERM)
                rest = [frame for frame in frames if frame]
            assert "shutting down" in rest[-2]
            assert rest[-1] == "data: [DONE]"
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_fingerprint_changes_with_the_file_and_only_then(tmp_path: Path) -> None:
    model = ModelSettings(id="m", path=tmp_path / "m.gguf")
    missing = system_fingerprint(model)
    model.path.write_bytes(b"one")
    one = system_fingerprint(model)
    assert one == system_fingerprint(model)
    model.path.write_bytes(b"three")
    assert len({missing, one, system_fingerprint(model)}) == 3
