from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from live import serve
from tierd.http.generation.fingerprint import system_fingerprint
from tierd.settings import ModelSettings


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


def test_a_fingerprint_changes_with_the_file_and_only_then(tmp_path: Path) -> None:
    model = ModelSettings(id="m", path=tmp_path / "m.gguf")
    missing = system_fingerprint(model)
    model.path.write_bytes(b"one")
    one = system_fingerprint(model)
    assert one == system_fingerprint(model)
    model.path.write_bytes(b"three")
    assert len({missing, one, system_fingerprint(model)}) == 3
