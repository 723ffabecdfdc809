from __future__ import annotations

import json

import pytest

from live import Live

BODY = {"prompt": [1, 2], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def ask(live: Live, request: bytes) -> tuple[list[str], bytes]:
    """Send bytes; return the head's lines and the body, which ends with the connection."""
    with live.connect() as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().lower().split("\r\n"), body


def post(body: object, *lines: str, version: str = "1.0") -> bytes:
    content = json.dumps(body).encode()
    head = [f"POST /v1/completions HTTP/{version}", f"Content-Length: {len(content)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


@pytest.mark.parametrize("version", ["0.9", "1.0", "2.0"])
def test_without_chunks_a_stream_ends_with_its_connection(live: Live, version: str) -> None:
    head, body = ask(live, post(BODY | {"stream": True}, "Connection: keep-alive", version=version))
    assert head[0] == "http/1.1 200 ok"
    assert "connection: close" in head
    assert not any(line.startswith(("transfer-encoding", "content-length")) for line in head)
    *events, done, nothing = body.split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    assert all(event.startswith(b"data: {") for event in events)
    whole = live.post("/v1/completions", BODY).json()["choices"][0]["text"]
    assert "".join(json.loads(event[6:])["choices"][0]["text"] for event in events) == whole


def test_an_answer_of_known_length_keeps_it(live: Live) -> None:
    head, body = ask(live, post(BODY))
    assert "connection: close" in head
    assert f"content-length: {len(body)}" in head
    assert json.loads(body)["choices"][0]["finish_reason"] == "length"
    head, body = ask(live, b"HEAD /v1/models HTTP/1.0\r\n\r\n")
    assert head[0] == "http/1.1 200 ok"
    assert body == b""


def test_a_client_of_http_1_0_gets_no_interim_answer(live: Live) -> None:
    head, _ = ask(live, post(BODY, "Expect: 100-continue"))
    assert head[0] == "http/1.1 200 ok"
    newer, _ = ask(live, post(BODY, "Host: x", "Connection: close", "Expect: 100-continue", version="1.1"))
    assert newer[0] == "http/1.1 100 continue"
