"""A client that does not read its stream holds nobody up, costs bounded memory, and is cut off in the end."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

import live
from live import Live, serve, wait_until
from tierd.engine import ModelSnapshot
from tierd.settings import ModelSettings, ServerSettings
from tiny import write_llama

BACKLOG = 32
BODY = {"prompt": [1], "stream": True, "ignore_eos": True, "temperature": 0}


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system keep little of what the server sends: connections take after their listener."""
    open_listener = live.listen

    def listen(address: str) -> socket.socket:
        listener = open_listener(address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(live, "listen", listen)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> ModelSettings:
    path = write_llama(tmp_path_factory.mktemp("slow") / "endless.gguf", context=1 << 14)
    return ModelSettings(id="tiny", path=path, default=True, streams=2)


@contextmanager
def serving(model: ModelSettings, timeout_s: float) -> Iterator[Live]:
    settings = ServerSettings(reader_backlog=BACKLOG, reader_timeout_s=timeout_s)
    with serve([model], server=settings) as server:
        yield server


def state(server: Live) -> ModelSnapshot:
    return server.engine.snapshot.models["tiny"]


def stuck(server: Live) -> bool:
    """Whether a stream is paused because its connection takes nothing more, and not just for a moment."""
    writing = any(c.flow.write_paused for c in server.server.server_state.connections)
    return writing and state(server).paused == 1


def connected(server: Live) -> socket.socket:
    """Return a socket that takes in as little as the system allows."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    connection = socket.socket()
    connection.settimeout(20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    return connection


def ask_without_reading(server: Live, tokens: int) -> socket.socket:
    """Send a request from such a socket."""
    connection = connected(server)
    body = json.dumps(BODY | {"max_tokens": tokens}).encode()
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    return connection


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        piece = connection.recv(1 << 16)
        assert piece, "the connection was cut"
        data += piece
    return data


def texts(stream: bytes) -> list[str]:
    frames = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(frame)["choices"][0]["text"] for frame in frames]


def test_a_stream_pauses_for_its_reader_and_then_goes_on(endless: ModelSettings) -> None:
    tokens = 900
    with serving(endless, timeout_s=60) as server, closing(ask_without_reading(server, tokens)) as slow:
        wait_until(lambda: stuck(server))
        used = state(server).pages_used
        started = time.monotonic()
        other = server.post("/v1/completions", BODY | {"stream": False, "max_tokens": 20})
        assert other.json()["usage"]["completion_tokens"] == 20
        assert time.monotonic() - started < 5
        assert stuck(server)
        assert abs(state(server).pages_used - used) <= 1
        stream = read_all(slow)
        assert texts(stream)[-1] == ""
        whole = server.post("/v1/completions", BODY | {"stream": False, "max_tokens": tokens}).json()
        assert "".join(texts(stream)) == whole["choices"][0]["text"]
        assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert 'tierd_streams_paused{model="tiny"} 0.0' in server.get("/metrics").text


def test_a_reader_that_never_reads_is_cut_off(endless: ModelSettings) -> None:
    with serving(endless, timeout_s=0.3) as server, closing(ask_without_reading(server, 4000)) as slow:
        wait_until(lambda: stuck(server))
        wait_until(lambda: state(server).running == 0)
        assert 'tierd_requests_total{model="tiny",outcome="slow_reader"} 1.0' in server.get("/metrics").text
        wait_until(lambda: len(server.server.server_state.connections) == 1)  # that of server.http
        wait_until(lambda: state(server).pages_used == 0)
        with pytest.raises((ConnectionError, AssertionError)):
            read_all(slow)


def test_what_waits_for_a_reader_is_bounded(endless: ModelSettings) -> None:
    """A paused stream makes no token; uvicorn holds no more than its high-water mark and one write."""
    with serving(endless, timeout_s=60) as server, closing(ask_without_reading(server, 4000)) as slow:
        wait_until(lambda: stuck(server))
        generated = _generated(server)
        for _ in range(3):
            time.sleep(0.05)
            assert (state(server).paused, _generated(server)) == (1, generated)
        (connection,) = [c for c in server.server.server_state.connections if c.flow.write_paused]
        assert connection.transport.get_write_buffer_size() < 128 << 10
        slow.close()
        wait_until(lambda: state(server).running == 0)


@pytest.mark.parametrize("path", ["/openapi.json", "/page/page.css"])
def test_whoever_reads_no_answer_is_cut_off(endless: ModelSettings, path: str) -> None:
    """Whether that is more or less than makes uvicorn wait."""
    with serving(endless, timeout_s=0.1) as server, closing(connected(server)) as idle:
        idle.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 3)
        connections = server.server.server_state.connections
        wait_until(lambda: any(c.transport.get_write_buffer_size() for c in connections))
        wait_until(lambda: not connections)


def test_who_reads_slowly_gets_all(endless: ModelSettings) -> None:
    with serving(endless, timeout_s=0.5) as server, closing(connected(server)) as slow:
        whole = len(server.get("/openapi.json").content)
        slow.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        start, taken = time.monotonic(), 0
        while piece := slow.recv(1 << 16):
            taken += len(piece)
            time.sleep(0.06)
        assert taken > whole
        assert time.monotonic() - start > 1


def _generated(server: Live) -> str:
    (line,) = [
        line
        for line in server.get("/metrics").text.splitlines()
        if line.startswith("tierd_generated_tokens_total")
    ]
    return line
