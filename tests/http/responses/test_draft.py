"""How pieces of an answer become the events of a response, byte by byte and in any order. No server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from http_responses import HEAD, TOKENIZER, USAGE
from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.core import TokenLogprobs
from tierd.http.errors import ErrorDetail
from tierd.http.generation.logprobs import ChatScribe
from tierd.http.responses.draft import Draft, names
from tierd.http.responses.events import Event, frame
from tierd.http.turns.conversation import Ended

FAULT = ErrorDetail("it burns", "server_error", None, "device_unavailable")
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

# What a model may do in one go.
RUNS = st.one_of(
    st.lists(st.text(min_size=1).map(Said), min_size=1, max_size=3),
    st.lists(st.text(min_size=1).map(Thought), min_size=1, max_size=3),
    st.lists(st.text(min_size=1), max_size=3),  # arguments of a call
)


def draft() -> Draft:
    return Draft(HEAD, ChatScribe(TOKENIZER), names("a"), clock=lambda: 9.5)


def written(events: Sequence[Event]) -> list[str]:
    return [frame(event).decode() for event in events]


def sent(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return what is sent."""
    found = []
    for event in events:
        name, data, *rest = frame(event).decode().split("\n")
        assert rest == ["", ""]
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def parsed(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return what is sent, held to the client's own shapes."""
    found = sent(events)
    for event in found:
        EVENT.validate_python(event, strict=False)
    return found


def test_a_message_is_these_bytes() -> None:
    made = draft()
    made.begin()
    part = '{"type":"output_text","annotations":[],"logprobs":[],"text":'
    item = '{"id":"msg_a0000","type":"message","status":'
    of_part = '"item_id":"msg_a0000","output_index":0,"content_index":0,'
    assert written(made.push(Said('say "hé"\n'))) == [
        'event: response.output_item.added\ndata: {"type":"response.output_item.added","sequence_number":2,'
        f'"output_index":0,"item":{item}"in_progress","content":[],"role":"assistant"}}}}\n\n',
        'event: response.content_part.added\ndata: {"type":"response.content_part.added","sequence_number":3,'
        f'{of_part}"part":{part}""}}}}\n\n',
        'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":4,'
        f'{of_part}"delta":"say \\"hé\\"\\n","logprobs":[]}}\n\n',
    ]
    assert written(made.push(Said("a\u2028b"))) == [
        'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":5,'
        f'{of_part}"delta":"a\\u2028b","logprobs":[]}}\n\n',
    ]
    text = '"say \\"hé\\"\\na\\u2028b"'
    assert written(made.push(Ended("stop", USAGE)))[:3] == [
        'event: response.output_text.done\ndata: {"type":"response.output_text.done","sequence_number":6,'
        f'{of_part}"text":{text},"logprobs":[]}}\n\n',
        'event: response.content_part.done\ndata: {"type":"response.content_part.done","sequence_number":7,'
        f'{of_part}"part":{part}{text}}}}}\n\n',
        'event: response.output_item.done\ndata: {"type":"response.output_item.done","sequence_number":8,'
        f'"output_index":0,"item":{item}"completed","content":[{part}{text}}}],"role":"assistant"}}}}\n\n',
    ]


def test_the_last_event_has_the_whole_response() -> None:
    made = draft()
    made.begin()
    made.push(Said("a"))
    last = parsed(made.push(Ended("stop", USAGE)))[-1]
    assert last["type"] == "response.completed"
    response = last["response"]
    assert list(response)[:5] == ["id", "object", "created_at", "status", "background"]
    assert (response["status"], response["completed_at"]) == ("completed", 9)
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 7,
    }
    Response.model_validate(response, strict=False)
    needed = {name for name, row in Response.model_fields.items() if row.is_required()}
    assert needed <= set(response)


def test_thoughts_and_calls_are_items_of_their_own() -> None:
    made = draft()
    events = made.begin()
    for piece in (Thought("hm"), Called(0, "call_0", "look"), Arguments(0, '{"a"'), Arguments(0, ":1}")):
        events += made.push(piece)
    events += made.push(Called(1, "call_1", "rest"))
    found = parsed(events + made.push(Ended("tool_calls", USAGE)))
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert found[-1]["response"]["output"] == [
        {
            "id": "rs_a0000",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": None,
            "status": "completed",
        },
        {
            "id": "fc_a0001",
            "type": "function_call",
            "status": "completed",
            "arguments": '{"a":1}',
            "call_id": "call_0",
            "name": "look",
        },
        {
            "id": "fc_a0002",
            "type": "function_call",
            "status": "completed",
            "arguments": "",
            "call_id": "call_1",
            "name": "rest",
        },
    ]


def test_log_probabilities_go_with_their_text() -> None:
    made = draft()
    made.begin()
    events = made.push(Said("a", (TokenLogprobs(97, -0.5, ((97, -0.5), (98, -1.5))),)))
    events += made.push(Ended("length", USAGE))
    entry = {
        "token": "a",
        "bytes": [97],
        "logprob": -0.5,
        "top_logprobs": [
            {"token": "a", "bytes": [97], "logprob": -0.5},
            {"token": "b", "bytes": [98], "logprob": -1.5},
        ],
    }
    _, _, delta, done, part, item, end = parsed(events)
    assert delta["logprobs"] == done["logprobs"] == part["part"]["logprobs"] == [entry]
    assert item["item"]["content"][0]["logprobs"] == [entry]
    assert (item["item"]["status"], end["type"]) == ("incomplete", "response.incomplete")
    assert end["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_answer_of_nothing_is_an_empty_text() -> None:
    made = draft()
    made.begin()
    *_, last = parsed(made.push(Ended("stop", USAGE)))
    (message,) = last["response"]["output"]
    assert message["content"][0]["text"] == ""


def test_errors_have_the_clients_words() -> None:
    for status, code in (
        (500, "server_error"),
        (429, "rate_limit_exceeded"),
        (400, "invalid_prompt"),
        (408, "server_error"),
    ):
        made = draft()
        made.begin()
        fault, failed = parsed(made.fail(status, FAULT))
        assert fault == {
            "type": "error",
            "sequence_number": 2,
            "code": "device_unavailable",
            "message": "it burns",
            "param": None,
        }
        assert failed["response"]["error"] == {"code": code, "message": "it burns"}
    over = draft()
    over.push(Ended("stop", USAGE))
    assert [event["type"] for event in parsed(over.fail(500, FAULT))] == ["error"]
    assert over.response().status == "completed"


def test_a_cancelled_response_says_so() -> None:
    made = draft()
    made.begin()
    made.push(Said("a"))
    *_, item, last = parsed(made.cancel())
    assert item["item"]["status"] == "incomplete"
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")


@given(st.lists(RUNS, max_size=6), st.sampled_from(["stop", "length", "tool_calls", "cancel", "fail"]))
def test_events_are_in_order_whatever_the_model_does(runs: list[list[Any]], ending: str) -> None:
    pieces: list[Piece] = []
    calls = 0
    for run in runs:
        if run and isinstance(run[0], Said | Thought):
            pieces += run
        else:
            pieces += [Called(calls, f"call_{calls}", "f"), *(Arguments(calls, text) for text in run)]
            calls += 1
    made = draft()
    events = made.begin()
    for piece in pieces:
        events += made.push(piece)
    if ending == "cancel":
        events += made.cancel()
    elif ending == "fail":
        events += made.fail(500, FAULT)
    else:
        events += made.push(Ended(ending, USAGE))  # type: ignore[arg-type]
    assert made.over
    found = sent(events)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    last = found[-1]
    if ending == "fail":
        assert found[-2]["type"] == "error"
        del found[-2]
    output = _replayed(found[2:-1])
    assert output == last["response"]["output"]
    assert _texts(Said, pieces) == _joined(output, "message")
    assert _texts(Thought, pieces) == _joined(output, "reasoning")
    assert [item["arguments"] for item in output if item["type"] == "function_call"] == [
        "".join(piece.text for piece in pieces if isinstance(piece, Arguments) and piece.index == call)
        for call in range(calls)
    ]


def _replayed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build the output as a client does, which lets no event come out of its turn."""
    output: list[dict[str, Any]] = []
    stage, text = "done", ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind != "output_item.added":
            assert event["output_index"] == len(output) - 1
        if "item_id" in event:
            assert event["item_id"] == output[-1]["id"]
        match kind:
            case "output_item.added":
                assert stage == "done"
                assert event["output_index"] == len(output)
                assert event["item"]["status"] == "in_progress"
                output.append(event["item"])
                stage, text = "added", ""
            case "content_part.added":
                assert stage == "added"
                assert event["part"]["text"] == ""
                stage = "grows"
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                assert stage == ("added" if "arguments" in kind else "grows")
                text += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert stage == "grows"
                assert event["text"] == text
                stage = "told"
            case "content_part.done":
                assert stage == "told"
                assert event["part"]["text"] == text
                stage = "part done"
            case "function_call_arguments.done":
                assert stage == "added"
                assert (event["name"], event["arguments"]) == (output[-1]["name"], text)
                stage = "part done"
            case "output_item.done":
                assert stage == "part done"
                output[-1] = event["item"]
                stage = "done"
            case _:
                raise AssertionError(kind)
    assert stage == "done"
    return output


def _texts(kind: type[Said | Thought], pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))  # type: ignore[union-attr]


def _joined(output: list[dict[str, Any]], kind: str) -> str:
    return "".join(item["content"][0]["text"] for item in output if item["type"] == kind)
