from __future__ import annotations

import json
from itertools import groupby, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.core import Usage
from tierd.http.messages.content import content
from tierd.http.messages.events import PING, MessageFrames
from tierd.http.messages.growing_input import GrowingInput, whole_input
from tierd.http.turns.conversation import Ended

STEADY = settings(deadline=None, derandomize=True, database=None)
USAGE = Usage(7, 5, 4, 2)
COUNTS = (
    b'{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":5,'
    b'"output_tokens_details":{"thinking_tokens":2}}'
)
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
DIGEST_OF_AB = b"+44g/C5MPySMYMOb1lLzwTRymLuXe4tNWQO4UFViBgM="


def frames_of(*pieces: Piece | Ended) -> bytes:
    frames = MessageFrames("msg_1", "m", lambda: Usage(7, 0, 4))
    return b"".join(frames.encode([(0, piece)]) for piece in pieces)


def block(start: bytes, *deltas: bytes, index: int = 0) -> bytes:
    """Return the frames of one block."""
    head = b'{"type":"content_block_%s","index":%d'
    return b"".join(
        b"event: content_block_%s\ndata: " % name + head % (name, index) + rest + b"}\n\n"
        for name, rest in [
            (b"start", b',"content_block":' + start),
            *((b"delta", b',"delta":' + delta) for delta in deltas),
            (b"stop", b""),
        ]
    )


def ended(reason: bytes, sequence: bytes = b"null") -> bytes:
    delta = b'{"stop_reason":"%s","stop_sequence":%s}' % (reason, sequence)
    head = b'event: message_delta\ndata: {"type":"message_delta","delta":'
    return head + delta + b',"usage":' + COUNTS + b"}\n\n" + STOP


def test_a_stream_begins_with_an_empty_message() -> None:
    assert MessageFrames("msg_1", "m", lambda: Usage(7, 0, 4)).first == (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message",'
        b'"role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":'
        b'{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":0,'
        b'"output_tokens_details":{"thinking_tokens":0}}}}\n\n'
    )
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_an_answer_is_these_bytes() -> None:
    thought = block(
        b'{"type":"thinking","thinking":"","signature":""}',
        b'{"type":"thinking_delta","thinking":"a"}',
        b'{"type":"thinking_delta","thinking":"b"}',
        b'{"type":"signature_delta","signature":"%s"}' % DIGEST_OF_AB,
    )
    text = block(
        b'{"type":"text","text":""}',
        b'{"type":"text_delta","text":"say \\"h\xc3\xa9\\"\\n\\u2028"}',
        index=1,
    )
    call = block(
        b'{"type":"tool_use","id":"call_7","name":"look","input":{}}',
        b'{"type":"input_json_delta","partial_json":"{\\"at\\":1"}',
        b'{"type":"input_json_delta","partial_json":", \\"by\\":[2]"}',
        b'{"type":"input_json_delta","partial_json":"}"}',
        index=2,
    )
    other = block(
        b'{"type":"tool_use","id":"call_8","name":"clock","input":{}}',
        b'{"type":"input_json_delta","partial_json":"{}"}',
        index=3,
    )
    pieces = [
        Thought("a"),
        Thought("b"),
        Said('say "hé"\n\u2028'),
        Called(0, "call_7", "look"),
        Arguments(0, '{"at":'),
        Arguments(0, '1, "by":'),
        Arguments(0, "[2"),
        Arguments(0, "]}"),
        Called(1, "call_8", "clock"),
    ]
    expected = thought + text + call + other + ended(b"tool_use")
    assert frames_of(*pieces, Ended("tool_calls", USAGE)) == expected
    together = MessageFrames("msg_1", "m", lambda: Usage(7, 0, 4))
    assert together.encode([(0, piece) for piece in [*pieces, Ended("tool_calls", USAGE)]]) == expected


def test_an_answer_of_nothing_has_no_blocks() -> None:
    assert frames_of(Ended("stop", USAGE)) == ended(b"end_turn")
    assert content([]) == []


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (Ended("stop", USAGE), ended(b"end_turn")),
        (Ended("length", USAGE), ended(b"max_tokens")),
        (Ended("tool_calls", USAGE), ended(b"tool_use")),
        (Ended("stop", USAGE, "\n\n"), ended(b"stop_sequence", b'"\\n\\n"')),
        (Ended("tool_calls", USAGE, "."), ended(b"stop_sequence", b'"."')),
    ],
)
def test_the_end_says_why(end: Ended, expected: bytes) -> None:
    assert frames_of(end) == expected


def test_a_whole_answer_has_these_blocks() -> None:
    blocks = content(
        [Thought("a"), Thought("b"), Said("c"), Called(0, "x", "f"), Arguments(0, "{}"), Said("d")]
    )
    assert msgspec.json.encode(blocks) == (
        b'[{"type":"thinking","thinking":"ab","signature":"%s"},{"type":"text","text":"c"},'
        b'{"type":"tool_use","id":"x","name":"f","input":{}},{"type":"text","text":"d"}]' % DIGEST_OF_AB
    )


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """Pieces in any order that a parser may return them in."""
    text = st.text(min_size=1, max_size=4)
    found: list[Piece] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(("thought", "text", "call")), max_size=6)):
        if kind == "thought":
            found += map(Thought, draw(st.lists(text, min_size=1, max_size=3)))
        elif kind == "text":
            found += map(Said, draw(st.lists(text, min_size=1, max_size=3)))
        else:
            found.append(Called(calls, f"call_{calls}", draw(st.sampled_from(("look", "clock")))))
            arguments = json.dumps({"at": draw(st.text(max_size=3)), "by": [draw(st.text(max_size=3))]})
            cut = draw(st.integers(0, len(arguments)))
            place = draw(st.integers(0, cut))
            found += [Arguments(calls, part) for part in (arguments[:place], arguments[place:cut]) if part]
            calls += 1
    return found


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks of a stream as a client joins them, having checked their order."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"] | {"partial_json": ""})
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                _, (key, more) = event["delta"].items()
                blocks[-1][key] += more
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
    assert not is_open
    for each in blocks:
        text = each.pop("partial_json")
        if each["type"] == "tool_use":
            each["input"] = json.loads(text)
    return blocks


@STEADY
@given(answers(), st.data())
def test_a_stream_adds_up_to_the_whole_answer(pieces: list[Piece], data: st.DataObject) -> None:
    frames = MessageFrames("msg_1", "m", lambda: Usage(7, 0, 4))
    news: list[Piece | Ended] = [*pieces, Ended("stop", USAGE)]
    sent = frames.first
    while news:
        count = data.draw(st.integers(1, len(news)))
        sent += frames.encode([(0, piece) for piece in news[:count]])
        news = news[count:]
    *written, nothing = sent.decode().split("\n\n")
    assert nothing == ""
    events = []
    for one in written:
        name, line = one.splitlines()
        events.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    types = [event["type"] for event in events]
    assert (types[0], types[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert {*types[1:-2]} <= {"content_block_start", "content_block_delta", "content_block_stop"}
    assert accumulated(events) == json.loads(msgspec.json.encode(content(pieces)))


@STEADY
@given(answers())
def test_nothing_of_an_answer_is_lost(pieces: list[Piece]) -> None:
    blocks = json.loads(msgspec.json.encode(content(pieces)))
    for kind, key, of in (("text", "text", Said), ("thinking", "thinking", Thought)):
        texts = ["".join(p.text for p in run) for same, run in groupby(pieces, type) if same is of]
        assert [each[key] for each in blocks if each["type"] == kind] == texts
    calls = [(piece.id, piece.name) for piece in pieces if isinstance(piece, Called)]
    assert [(each["id"], each["name"]) for each in blocks if each["type"] == "tool_use"] == calls


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\,}]é\n', max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=5,
)


@STEADY
@given(st.dictionaries(st.text('ab"\\é:', max_size=3), VALUES, max_size=4), st.data())
def test_input_that_breaks_off_is_its_complete_members(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(
        value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from((None, 1)))
    )
    assert whole_input(text) == text
    cut = data.draw(st.integers(0, len(text) - 1))
    found = json.loads(whole_input(text[:cut]))
    assert [*value.items()][: len(found)] == [*found.items()]
    assert len(found) < max(1, len(value))


@STEADY
@given(st.dictionaries(st.text('ab"\\é:', max_size=3), VALUES, max_size=4), st.data())
def test_input_is_the_same_however_it_comes(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    text = text[: data.draw(st.integers(0, len(text)))]
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    growing = GrowingInput()
    given = [growing.push(text[start:end]) for start, end in pairwise([0, *places, len(text)])]
    assert "".join([*given, growing.finish()]) == whole_input(text)


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", {}),
        ("no", {}),
        ("[1]", {}),
        ("7", {}),
        ("{", {}),
        ('{"a": 1', {}),
        ('{"a": 1, ', {"a": 1}),
        ('{"a": 12, "b": 3', {"a": 12}),
        ('{"a": [1, 2], "b": {"c": ', {"a": [1, 2]}),
        ('{"a": "x", "b": NaN}', {"a": "x"}),
        ('{"a": "x", b: 1}', {"a": "x"}),
        ('{"a": True}', {}),
        ('{"a": 1} and more', {"a": 1}),
        ('{"a": 1}"b": 2}', {"a": 1}),
        (', "a": 1}', {}),
        ('{"a": 1e999, "b": ', {"a": float("inf")}),
        ('{"\\x": 1}', {}),
        ("[" * 100_000, {}),
        ('{"a": 1, "b": ' + "[" * 100_000, {"a": 1}),
    ],
)
def test_input_is_always_an_object(text: str, members: dict[str, Any]) -> None:
    assert json.loads(whole_input(text)) == members


def test_numbers_stay_as_the_model_wrote_them() -> None:
    text = '{"a": 123456789012345678901234567890, "b": 1.50}'
    assert whole_input(text) == text
    (call,) = content([Called(0, "x", "f"), Arguments(0, text)])
    assert text.encode() in msgspec.json.encode(call)
