"""Too many requests, through real sockets: exactly so many are told, with a time to come back."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import openai
import pytest

from live import Gate, Gated, error_of, serve, wait_until
from tierd.backends.null import NullBackend
from tierd.http import sse
from tierd.settings import ModelSettings, QueueSettings

STREAMS = 4


@contextmanager
def queueing(model: ModelSettings, **queue: float) -> Iterator[Gated]:
    """A server of four streams whose device waits for the test. queue: the settings."""
    gate = Gate()
    settings = QueueSettings(**queue)  # type: ignore[arg-type]
    served = ModelSettings(id="tiny", path=model.path, default=True, streams=STREAMS, context=64)
    with serve([served], backend=NullBackend(before_step=gate), queue=settings) as live:
        try:
            yield Gated(live, gate)
        finally:
            gate.open()


def submitted(gated: Gated) -> int:
    state = gated.live.engine.snapshot.models["tiny"]
    return state.running + state.waiting


def read(connection: socket.socket) -> httpx.Response:
    """Read one whole answer, which has a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_hundred_requests_against_a_queue_of_sixteen(tiny_model: ModelSettings, path: str) -> None:
    body = {"prompt": [1, 2], "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    with queueing(tiny_model, capacity=16) as gated, ExitStack() as stack:
        connections = [stack.enter_context(gated.live.send(path, body)) for _ in range(100)]
        refused = f'outcome="queue_full"}} {84 - STREAMS}.0'
        wait_until(lambda: refused in gated.live.get("/metrics").text)
        assert submitted(gated) == 16 + STREAMS
        gated.gate.open()
        answers = [read(connection) for connection in connections]
        assert Counter(answer.status_code for answer in answers) == {200: 16 + STREAMS, 429: 84 - STREAMS}
        for answer in answers:
            if answer.status_code == 429:
                error = error_of(answer)
                assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
                assert "(16 of 16 wait): all of the model's streams (4) are taken" in error["message"]
                assert int(answer.headers["retry-after"]) >= 1
        scraped = gated.live.get("/metrics").text
        assert refused in scraped
        assert f'tierd_queue_wait_seconds_count{{model="tiny"}} {16 + STREAMS}\n' in scraped


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_too_long_gets_a_status_of_its_own(
    tiny_model: ModelSettings, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Even a stream whose keep-alives are due: while it is in the queue its answer has not begun."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    with queueing(tiny_model, timeout_s=0.3) as gated, ExitStack() as stack:
        for _ in range(STREAMS):
            stack.enter_context(gated.live.send("/v1/completions", {"prompt": [1], "ignore_eos": True}))
        wait_until(lambda: submitted(gated) == STREAMS)
        response = gated.live.post("/v1/completions", {"prompt": [1], "stream": stream})
        assert response.status_code == 429
        error = error_of(response)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_timeout")
        assert error["message"] == (
            "tiny: waited 0.3 s in the queue: all of the model's streams (4) are taken; try again later"
        )
        assert int(response.headers["retry-after"]) >= 1


def test_the_official_client_sees_a_rate_limit(tiny_model: ModelSettings) -> None:
    with queueing(tiny_model, capacity=0) as gated, ExitStack() as stack:
        for _ in range(STREAMS):
            stack.enter_context(gated.live.send("/v1/completions", {"prompt": [1], "ignore_eos": True}))
        wait_until(lambda: submitted(gated) == STREAMS)
        with gated.live.client() as client, pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="tiny", prompt="a")
        assert refused.value.code == "queue_full"
        assert refused.value.response.headers["retry-after"].isdecimal()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_who_matters_less_makes_room_in_a_full_queue(tiny_model: ModelSettings, path: str) -> None:
    body = {"prompt": [1, 2], "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    with queueing(tiny_model, capacity=1) as gated, ExitStack() as stack:

        def send(priority: int) -> socket.socket:
            return stack.enter_context(gated.live.send(path, body | {"priority": priority}))

        for _ in range(STREAMS):
            send(-5)
        wait_until(lambda: submitted(gated) == STREAMS)
        low = send(1)
        wait_until(lambda: submitted(gated) == STREAMS + 1)
        high = send(-1)
        answer = read(low)
        assert (answer.status_code, error_of(answer)["code"]) == (429, "queue_full")
        assert submitted(gated) == STREAMS + 1
        gated.gate.open()
        assert read(high).status_code == 200


def test_a_response_in_the_background_fails_where_there_is_no_room(tiny_model: ModelSettings) -> None:
    with (
        queueing(tiny_model, capacity=0) as gated,
        ExitStack() as stack,
        gated.live.client() as client,
    ):
        for _ in range(STREAMS):
            stack.enter_context(gated.live.send("/v1/completions", {"prompt": [1], "ignore_eos": True}))
        wait_until(lambda: submitted(gated) == STREAMS)
        made = client.responses.create(model="tiny", input="a", background=True)
        wait_until(lambda: client.responses.retrieve(made.id).status == "failed")
        failed = client.responses.retrieve(made.id)
        assert failed.error is not None
        assert failed.error.code == "rate_limit_exceeded"
        assert "the queue is full" in failed.error.message
        assert failed.output == []
        *_, error, last = client.responses.create(model="tiny", input="a", background=True, stream=True)
        assert (error.type, last.type) == ("error", "response.failed")
        with pytest.raises(openai.BadRequestError, match="this response is failed"):
            client.responses.cancel(made.id)
