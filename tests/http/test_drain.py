"""An end in good order: nothing new is taken in, what runs finishes or is told, then all is over."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from http_daemon import Daemon, daemon
from live import Gate, Live, error_of, serve, wait_until
from tierd.backends.null import NullBackend
from tierd.http import server
from tierd.settings import ModelSettings, ServerSettings

PROMPT = 8000
ENDLESS = {"prompt": [1], "stream": True, "ignore_eos": True}


@contextmanager
def gated(model: ModelSettings, drain_s: float) -> Iterator[tuple[Live, Gate]]:
    gate = Gate()
    with serve(
        [replace(model, streams=1)],
        backend=NullBackend(before_step=gate),
        server=ServerSettings(drain_s=drain_s),
    ) as live:
        try:
            yield live, gate
        finally:
            gate.open()


def receive(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def test_what_runs_finishes_and_the_rest_gets_503(tiny_model: ModelSettings) -> None:
    with gated(tiny_model, drain_s=60) as (live, gate):
        runs = live.send("/v1/completions", ENDLESS | {"max_tokens": 5})
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 1)
        waits = live.send("/v1/completions", ENDLESS)
        wait_until(lambda: live.engine.snapshot.models["tiny"].waiting == 1)
        live.server.drain()
        live.server.drain()
        head = waits.recv(65536)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"shutting down" in head
        for response in (
            live.get("/health"),
            live.post("/v1/completions", {"prompt": "a"}),
            live.post(
                "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
            ),
        ):
            assert response.status_code == 503
            assert error_of(response)["code"] == "unavailable"
            assert int(response.headers["retry-after"]) >= 1
        assert live.get("/metrics").status_code == 200
        gate.open()
        stream = receive(runs)
        assert b'"finish_reason":"length"' in stream
        assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        wait_until(lambda: live.server.should_exit)
        for connection in (runs, waits):
            connection.close()


def test_what_does_not_finish_in_time_is_told(tiny_model: ModelSettings) -> None:
    with gated(tiny_model, drain_s=0.3) as (live, gate), live.send("/v1/completions", ENDLESS) as runs:
        gate.step(8)
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 1)
        first = runs.recv(65536)
        started = time.monotonic()
        live.server.drain()
        stream = first + receive(runs)
        assert 0.3 <= time.monotonic() - started < 10
        events = stream.split(b"\n\n")
        assert events[-2].endswith(b"data: [DONE]")
        error = json.loads(events[-3].rpartition(b"data: ")[2])["error"]
        assert (error["type"], error["code"]) == ("server_error", "unavailable")


def test_an_idle_server_ends_at_once(tiny_model: ModelSettings) -> None:
    with gated(tiny_model, drain_s=60) as (live, _):
        live.server.drain()
        wait_until(lambda: live.server.should_exit)


@pytest.fixture
def endless(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon whose model's context takes long to fill; its drain_s is the parameter."""
    settings = f"server.drain_s = {request.param}\nkv.memory_mb = 256\n[[models]]\nstreams = 1"
    with daemon(tmp_path, context=1 << 16, settings=settings) as started:
        yield started


def stream(server: Daemon, max_tokens: int | None = None) -> Iterator[str]:
    body = ENDLESS | ({"max_tokens": max_tokens} if max_tokens else {})
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as response:
        yield from (line for line in response.iter_lines() if line)


@pytest.mark.parametrize("endless", [60], indirect=True)
@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_stream_finish(endless: Daemon, name: signal.Signals) -> None:
    lines = stream(endless, max_tokens=1000)
    assert next(lines).startswith("data: {")
    endless.end(name)
    with httpx.Client(base_url=endless.url) as client:
        wait_until(lambda: client.get("/health").status_code == 503)
    *_, last, done = lines
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "length"
    assert done == "data: [DONE]"
    assert endless.process.wait(20) == 0


@pytest.mark.parametrize("endless", [0.3], indirect=True)
def test_a_stream_that_does_not_finish_ends_with_an_error(endless: Daemon) -> None:
    lines = stream(endless)
    assert next(lines).startswith("data: {")
    endless.end()
    *_, last, done = lines
    assert json.loads(last[6:])["error"]["code"] == "unavailable"
    assert done == "data: [DONE]"
    assert endless.process.wait(20) == 0


@pytest.mark.parametrize("endless", [60], indirect=True)
def test_a_second_signal_ends_at_once(endless: Daemon) -> None:
    lines = stream(endless)
    assert next(lines).startswith("data: {")
    endless.end()
    with httpx.Client(base_url=endless.url) as client:
        wait_until(lambda: client.get("/health").status_code == 503)
    assert next(lines).startswith("data: {")
    started = time.monotonic()
    endless.end()
    assert endless.process.wait(20) == 1
    assert time.monotonic() - started < 1
    with pytest.raises(httpx.TransportError):
        list(lines)


def stalled(server: Daemon, wanted: dict[str, object]) -> socket.socket:
    """Ask for an answer of more than the system's buffers hold, and read none of it.

    Most of it is the prompt, with all that might have stood there.
    """
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    asked = {"prompt": [5] * PROMPT, "echo": True, "logprobs": 20, "ignore_eos": True}
    content = json.dumps(asked | wanted).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("endless", [0.3], indirect=True)
def test_a_client_that_does_not_read_keeps_nobody(endless: Daemon) -> None:
    transport = httpx.HTTPTransport(uds=str(endless.folder / "tierd" / "admin.sock"))
    with stalled(endless, {"stream": True}), httpx.Client(transport=transport, base_url="http://x") as admin:
        wait_until(lambda: admin.get("/status").json()["models"][0]["paused"] == 1)
        started = time.monotonic()
        endless.end()
        assert endless.process.wait(20) == 0
        assert time.monotonic() - started < 0.3 + server.FLUSH_S
    check_log(endless)


@pytest.mark.parametrize("endless", [60], indirect=True)
def test_a_client_that_does_not_read_what_has_ended_is_cut_off(endless: Daemon) -> None:
    with stalled(endless, {"max_tokens": 1}), httpx.Client() as client:
        done = 'tierd_requests_total{model="tiny",outcome="length"} 1.0'
        wait_until(lambda: done in client.get(endless.url + "/metrics").text)
        started = time.monotonic()
        endless.end()
        assert endless.process.wait(20) == 0
        assert server.FLUSH_S <= time.monotonic() - started < server.FLUSH_S + server.CANCEL_S
    check_log(endless)


def check_log(server: Daemon) -> None:
    log = (server.folder / "tierd.log").read_text()
    assert "Traceback" not in log
    assert "Exception in ASGI application" not in log
    assert " ERROR " not in log
