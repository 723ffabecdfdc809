"""Who hangs up is no longer served; who is no longer served is told."""

from __future__ import annotations

import json

import pytest

from live import Gated, wait_until
from tierd.engine import ModelSnapshot

CHAT = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}


def tiny(gated: Gated) -> ModelSnapshot:
    return gated.live.engine.snapshot.models["tiny"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_cancels_its_request(gated: Gated, stream: bool) -> None:
    connection = gated.live.send("/v1/chat/completions", CHAT | {"stream": stream})
    wait_until(lambda: tiny(gated).running == 1)
    gated.gate.step(4)
    connection.close()
    wait_until(lambda: tiny(gated).running == 0)
    gated.gate.open()
    wait_until(lambda: tiny(gated).pages_used == 0)
    metrics = gated.live.get("/metrics").text
    assert 'tierd_requests_total{model="tiny",outcome="cancelled"} 1.0' in metrics


def test_a_client_that_hangs_up_while_it_waits_leaves_the_queue(gated: Gated) -> None:
    connections = [gated.live.send("/v1/chat/completions", CHAT) for _ in range(20)]
    wait_until(lambda: tiny(gated).running + tiny(gated).waiting == 20)
    for connection in connections:
        connection.close()
    wait_until(lambda: tiny(gated).running + tiny(gated).waiting == 0)


def test_a_request_cancelled_from_inside_is_told_so(gated: Gated) -> None:
    body = {"prompt": [1], "stream": True, "ignore_eos": True}
    with gated.live.send("/v1/completions", body) as connection:
        gated.gate.step(8)
        data = b""
        while b"\n\n" not in data.partition(b"\r\n\r\n")[2]:
            data += connection.recv(65536)
        frame = data.partition(b"data: ")[2].partition(b"\n\n")[0]
        gated.live.engine.cancel(json.loads(frame)["id"])
        while b"[DONE]" not in data:
            data += connection.recv(65536)
    assert b'"code":"unavailable"' in data
    assert b"cancelled" in data


def test_streams_end_with_an_error_when_the_server_stops(gated: Gated) -> None:
    body = {"prompt": [1], "stream": True, "ignore_eos": True}
    with gated.live.send("/v1/completions", body) as connection:
        gated.gate.step(8)
        data = connection.recv(65536)
        gated.live.server.stop()
        while piece := connection.recv(65536):
            data += piece
    assert b"shutting down" in data
    assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
