from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import pytest

from engine.null_slot import ByteTokenizer
from http_streams import read_until, unchunk
from live import Gated, Live
from tierd.chat.tokenizer import Tokenizer
from tierd.core import FinishedEvent, FinishReason, Usage
from tierd.http import sse
from tierd.http.completions.frames import CompletionFrames
from tierd.http.generation.logprobs import TextScribe
from tierd.http.protocol import ABORT
from tierd.http.shapes import Heading

TOKENIZER: Tokenizer = ByteTokenizer()  # type: ignore[assignment]
HEADING = Heading(id="chatcmpl-1", created=7, model="m", system_fingerprint="fp_0")
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0, "ignore_eos": True}

COMPLETION = {"prompt": [1, 2], "stream": True, "ignore_eos": True}
# Where, what, the events before any text, and what the first text stands behind.
STREAMS = [
    ("/v1/chat/completions", BODY, 1, b'"delta":{"content":"'),
    ("/v1/completions", COMPLETION, 0, b'"text":"'),
]
COMMENT = b"e\r\n: keep-alive\n\n\r\n"
END = b"\r\n0\r\n\r\n"


def events_of(response: bytes) -> list[bytes]:
    return unchunk(response.partition(b"\r\n\r\n")[2]).split(b"\n\n")


def test_a_stream_byte_by_byte(live: Live) -> None:
    with live.send("/v1/chat/completions", BODY | {"max_tokens": 6}) as connection:
        head, _, rest = read_until(connection, b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "http/1.1 200 ok"
    headers = dict(line.split(": ") for line in lines[1:])
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    events = unchunk(rest).split(b"\n\n")
    assert events.pop() == b""
    assert events.pop() == b"data: [DONE]"
    assert b"\r" not in b"".join(events)
    assert all(re.fullmatch(rb"data: \{[^\n]*\}", event) for event in events)
    objects = [json.loads(event[6:]) for event in events]
    assert objects[0]["id"] == f"chatcmpl-{headers['x-request-id']}"
    assert objects[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert objects[-1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    for middle in objects[1:-1]:
        assert list(middle["choices"][0]["delta"]) == ["content"]


def test_completion_frames_end_with_counts_when_asked() -> None:
    frames = CompletionFrames(HEADING, include_usage=True, scribes=[TextScribe(TOKENIZER, with_top=False)])
    assert frames.first == b""
    end = frames.encode([(0, FinishedEvent(FinishReason.LENGTH, Usage(3, 4, 2)))]).split(b"\n\n")
    assert json.loads(end[0][6:])["usage"] is None
    assert json.loads(end[1][6:])["choices"] == []
    assert json.loads(end[1][6:])["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert end[2:] == [b"data: [DONE]", b""]


def test_no_text_breaks_a_line() -> None:
    text = "a\nb\rc\x0bd\x0ce\x1cf\x1dg\x1eh\x85i\u2028j\u2029k\0"
    encoded = sse.json_text(text)
    assert len(encoded.decode().splitlines()) == 1
    assert json.loads(encoded) == text


def test_a_completion_byte_by_byte(live: Live) -> None:
    with live.send("/v1/completions", COMPLETION | {"max_tokens": 6, "temperature": 0}) as connection:
        response = read_until(connection, END)
    name = re.search(rb"x-request-id: (\w+)", response)
    assert name is not None
    *texts, last, done, nothing = events_of(response)
    assert (done, nothing) == (b"data: [DONE]", b"")
    head = (
        rb'data: \{"id":"cmpl-%s","object":"text_completion","created":\d+,"model":"tiny",'
        rb'"system_fingerprint":"fp_\w+","choices":\[' % name[1]
    )
    text = rb'\{"text":"[^\n]+","index":0,"logprobs":null,"finish_reason":null\}\]\}'
    assert len(texts) > 2
    assert all(re.fullmatch(head + text, event) for event in texts)
    end = (
        rb'\{"text":"[^\n]*","index":0,"logprobs":null,"finish_reason":"length"\}\],"timings":\{[^\n{}]+\}\}'
    )
    assert re.fullmatch(head + end, last)


@pytest.mark.parametrize(("path", "body", "before", "mark"), STREAMS)
def test_a_quiet_stream_is_kept_open_with_comments(
    gated: Gated,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, object],
    before: int,
    mark: bytes,
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    with gated.live.send(path, body | {"max_tokens": 2}) as connection:
        quiet = read_until(connection, COMMENT * 2)
        gated.gate.open()
        response = read_until(connection, END, quiet)
    assert mark not in quiet
    assert quiet.count(b"data: ") == before
    *events, done, nothing = events_of(response)
    assert (done, nothing) == (b"data: [DONE]", b"")
    assert {event for event in events if not event.startswith(b"data: {")} == {b": keep-alive"}
    assert mark in b"".join(events)


@pytest.mark.parametrize(("path", "body", "before", "mark"), STREAMS)
def test_an_error_in_a_stream_is_its_last_frame_but_one(
    gated: Gated, path: str, body: dict[str, object], before: int, mark: bytes
) -> None:
    with gated.live.send(path, body) as connection:
        gated.gate.step(8)
        begun = read_until(connection, mark)
        gated.gate.error = ValueError("out of smoke")
        gated.gate.open()
        response = read_until(connection, END, begun)
    *said, failed, done, nothing = events_of(response)
    assert (done, nothing) == (b"data: [DONE]", b"")
    assert len(said) > before
    assert all(event.startswith(b'data: {"id":') for event in said)
    assert b'"finish_reason":"' not in b"".join(said)
    why = rb'"message":"[^"\n]*out of smoke[^"\n]*","type":"server_error","param":null,"code":null'
    assert re.fullmatch(rb'data: \{"error":\{%s\}\}' % why, failed)


def test_an_error_before_the_first_token_has_its_own_status(gated: Gated) -> None:
    gated.gate.error = ValueError("out of smoke")
    gated.gate.open()
    status, error = gated.live.refusal("/v1/completions", COMPLETION)
    assert status == 500
    assert "out of smoke" in error["message"]


class Untold:
    """A stream of news, and frames that tell nothing of them; see sse.Stream and sse.Frames."""

    first = b""
    under_way = True

    def __init__(self, count: int) -> None:
        self.left = count

    @property
    def ended(self) -> bool:
        return not self.left

    def remind(self, seconds: float) -> None:
        pass

    def cut_slow(self, cut: Callable[[], None]) -> None:
        pass

    async def take(self) -> list[str]:
        self.left -= 1
        return ["news"]

    async def __aenter__(self) -> Untold:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def encode(self, news: Iterable[str]) -> bytes:
        return b""


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 3 * sse.KEEP_ALIVE), (60.0, b"")])
def test_news_that_say_nothing_keep_no_client_waiting(
    monkeypatch: pytest.MonkeyPatch, seconds: float, told: bytes
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", seconds)
    sent = b""

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal sent
        sent += message.get("body", b"")

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError

    untold = Untold(3)
    scope = {"extensions": {ABORT: {"abort": None}}}
    asyncio.run(sse.EventStream(untold, untold)(scope, receive, send))
    assert sent == told
