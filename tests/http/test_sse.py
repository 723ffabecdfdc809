from __future__ import annotations

import json
import re

import pytest

from engine.null_slot import ByteTokenizer
from http_streams import read_until, unchunk
from live import Gated, Live
from tierd.chat.tokenizer import Tokenizer
from tierd.core import FinishedEvent, FinishReason, Usage
from tierd.http import sse
from tierd.http.completion_frames import CompletionFrames
from tierd.http.logprobs import TextScribe
from tierd.http.shapes import Heading

TOKENIZER: Tokenizer = ByteTokenizer()  # type: ignore[assignment]
HEADING = Heading(id="chatcmpl-1", created=7, model="m", system_fingerprint="fp_0")
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0, "ignore_eos": True}

COMPLETION = {"prompt": [1, 2], "stream": True, "ignore_eos": True}


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


def test_a_quiet_stream_is_kept_open_with_comments(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    with gated.live.send("/v1/chat/completions", BODY | {"max_tokens": 2}) as connection:
        before = read_until(connection, b": keep-alive\n\n\r\n")
        assert b'"role":"assistant"' in before
        assert b'"content":"' in before
        assert b'"content":"."' not in before
        read_until(connection, b": keep-alive\n\n\r\n")
        gated.gate.open()
        rest = read_until(connection, b"\r\n0\r\n\r\n")
    assert b"data: [DONE]\n\n" in rest


def test_an_error_in_a_stream_is_its_last_frame_but_one(gated: Gated) -> None:
    with gated.live.send("/v1/completions", COMPLETION) as connection:
        gated.gate.step(8)
        data = read_until(connection, b'"text_completion"')
        gated.gate.error = ValueError("out of smoke")
        gated.gate.open()
        data = read_until(connection, b"\r\n0\r\n\r\n", data)
    events = unchunk(data.partition(b"\r\n\r\n")[2]).split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    error = json.loads(events[-3].removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error"
    assert "out of smoke" in error["message"]


def test_an_error_before_the_first_token_has_its_own_status(gated: Gated) -> None:
    gated.gate.error = ValueError("out of smoke")
    gated.gate.open()
    status, error = gated.live.refusal("/v1/completions", COMPLETION)
    assert status == 500
    assert "out of smoke" in error["message"]
