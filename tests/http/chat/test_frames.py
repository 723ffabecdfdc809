from __future__ import annotations

import json

from engine.null_slot import ByteTokenizer
from tierd.chat.reply import Arguments, Called, Said, Thought
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Usage
from tierd.http.chat.frames import ChatFrames
from tierd.http.generation.logprobs import ChatScribe
from tierd.http.shapes import Heading
from tierd.http.turns.conversation import Ended

TOKENIZER: Tokenizer = ByteTokenizer()  # type: ignore[assignment]
HEADING = Heading(id="chatcmpl-1", created=7, model="m", system_fingerprint="fp_0")
HEAD = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m",'
    b'"system_fingerprint":"fp_0","choices":[{"index":0,"delta":'
)
TAIL = b',"logprobs":null,"finish_reason":null}]}\n\n'


def frames_of(count: int = 1, *, include_usage: bool = False) -> ChatFrames:
    return ChatFrames(HEADING, include_usage, [ChatScribe(TOKENIZER) for _ in range(count)])


def test_pieces_are_these_bytes() -> None:
    frames = frames_of()
    assert frames.first == HEAD + b'{"role":"assistant","content":""}' + TAIL
    written = {
        Said('say "hé"\n'): '{"content":"say \\"hé\\"\\n"}',
        Thought("a\u2028b"): '{"reasoning_content":"a\\u2028b"}',
        Called(1, "call_7", "look"): '{"tool_calls":[{"index":1,"id":"call_7","type":"function",'
        '"function":{"name":"look","arguments":""}}]}',
        Arguments(1, '{"a'): '{"tool_calls":[{"index":1,"function":{"arguments":"{\\"a"}}]}',
    }
    for piece, delta in written.items():
        assert frames.encode([(0, piece)]) == HEAD + delta.encode() + TAIL


def test_the_end_has_timings_and_done() -> None:
    usage = Usage(3, 4, 1, prompt_s=0.5, generation_s=2.0)
    *_, end, done, nothing = frames_of().encode([(0, Said("a")), (0, Ended("stop", usage))]).split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    last = json.loads(end[6:])
    assert last["choices"] == [{"delta": {}, "finish_reason": "stop", "index": 0, "logprobs": None}]
    assert "usage" not in last
    assert last["timings"] == {
        "cache_n": 1,
        "prompt_n": 2,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 250.0,
        "prompt_per_second": 4.0,
        "predicted_n": 4,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 500.0,
        "predicted_per_second": 2.0,
    }


def test_counts_come_once_all_choices_have_ended() -> None:
    frames = frames_of(2, include_usage=True)
    first = frames.encode([(1, Ended("tool_calls", Usage(3, 4, 2, 1)))])
    assert first.count(b"data:") == 1
    assert b'"usage":null' in first
    assert b"timings" not in first
    end, counts, done, _ = frames.encode([(0, Ended("length", Usage(3, 5, 2, 2)))]).split(b"\n\n")
    assert b"timings" not in end
    assert done == b"data: [DONE]"
    last = json.loads(counts[6:])
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 9,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert last["timings"]["predicted_per_second"] is None
