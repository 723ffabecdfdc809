"""Streams of /v1/responses, byte by byte, and how they end before their time."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from chat import templates
from http_streams import read_until, unchunk
from live import Gated, Live, serve, wait_until
from live_script import ScriptedBackend
from tierd.http import sse
from tierd.http.responses.draft import Draft
from tierd.settings import ModelSettings, QueueSettings
from tiny import write_llama

BODY = {"input": "hi", "stream": True, "temperature": 0, "ignore_eos": True, "max_output_tokens": 60}
END = b"\r\n0\r\n\r\n"


def events_of(data: bytes) -> list[dict[str, Any]]:
    """Return the events of a whole answer, comments left out."""
    frames = unchunk(data.partition(b"\r\n\r\n")[2]).split(b"\n\n")
    assert frames.pop() == b""
    events = []
    for frame in frames:
        if frame != sse.KEEP_ALIVE.strip():
            named = re.fullmatch(rb"event: ([a-z_.]+)\ndata: (\{[^\n\r]*\})", frame)
            assert named is not None, frame
            events.append(json.loads(named[2]))
            assert events[-1]["type"] == named[1].decode()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def first_of(connection: socket.socket) -> tuple[str, bytes]:
    """Read until there is text; return the id of the response, and what was read."""
    data = read_until(connection, b"event: response.output_text.delta\n")
    found = re.search(rb'"id":"(resp_[0-9a-f]+)"', data)
    assert found is not None
    return found[1].decode(), data


def kept(live: Live, id: str) -> dict[str, Any]:
    response = live.get(f"/v1/responses/{id}").json()
    assert isinstance(response, dict)
    return response


def test_a_stream_byte_by_byte(live: Live) -> None:
    with live.send("/v1/responses", BODY | {"max_output_tokens": 3}) as connection:
        data = read_until(connection, END)
    head = data.partition(b"\r\n\r\n")[0].decode().lower()
    assert head.startswith("http/1.1 200 ok\r\n")
    assert "content-type: text/event-stream; charset=utf-8" in head
    events = events_of(data)
    assert f"x-request-id: {events[0]['response']['id'].removeprefix('resp_')}" in head
    assert b"[DONE]" not in data
    assert events[-1]["type"] == "response.incomplete"
    assert kept(live, events[0]["response"]["id"]) == events[-1]["response"]
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"


def test_a_quiet_stream_is_kept_open_with_comments(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    with gated.live.send("/v1/responses", BODY | {"max_output_tokens": 2}) as connection:
        data = read_until(connection, b": keep-alive\n\n\r\n")
        assert b"response.in_progress" in data
        assert b"response.output_item.added" not in data
        gated.gate.open()
        data = read_until(connection, END, data)
    assert events_of(data)[-1]["type"] == "response.incomplete"


def test_an_error_in_a_stream_is_told_and_kept(gated: Gated) -> None:
    with gated.live.send("/v1/responses", BODY) as connection:
        gated.gate.step(8)
        id, data = first_of(connection)
        gated.gate.error = ValueError("out of smoke")
        gated.gate.open()
        data = read_until(connection, END, data)
    *_, item, fault, failed = events_of(data)
    assert (item["type"], item["item"]["status"]) == ("response.output_item.done", "incomplete")
    assert (fault["type"], fault["param"]) == ("error", None)
    assert "out of smoke" in fault["message"]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": fault["message"]}
    assert kept(gated.live, id) == failed["response"]


def test_a_fault_of_ours_in_a_stream_is_told_too(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    with gated.live.send("/v1/responses", BODY) as connection:
        gated.gate.step(8)
        _, data = first_of(connection)
        monkeypatch.setattr(Draft, "push", lambda self, piece: 1 // 0)
        gated.gate.open()
        data = read_until(connection, END, data)
    *_, fault, failed = events_of(data)
    assert (fault["type"], failed["type"]) == ("error", "response.failed")
    assert "log" in fault["message"]


def test_an_error_before_the_first_text_has_its_own_status_and_is_not_kept(gated: Gated) -> None:
    gated.gate.error = ValueError("out of smoke")
    gated.gate.open()
    response = gated.live.post("/v1/responses", BODY)
    assert response.status_code == 500
    assert "out of smoke" in response.json()["error"]["message"]
    id = f"resp_{response.headers['x-request-id']}"
    assert gated.live.get(f"/v1/responses/{id}").status_code == 404


def test_what_is_refused_at_the_door_of_the_queue_is_not_kept(tiny_model: ModelSettings) -> None:
    with serve([tiny_model], queue=QueueSettings(capacity=0)) as live:
        live.engine.drain(ending=True).result(20)
        response = live.post("/v1/responses", BODY)
        assert response.status_code == 503
        id = f"resp_{response.headers['x-request-id']}"
        assert live.get(f"/v1/responses/{id}").status_code == 404


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_is_ended_from_elsewhere(gated: Gated, stream: bool) -> None:
    with gated.live.send("/v1/responses", BODY | {"stream": stream}) as connection:
        gated.gate.step(8)
        if stream:
            id, data = first_of(connection)
        else:
            data = b""
            wait_until(lambda: gated.live.engine.snapshot.models["tiny"].running == 1)
            (session,) = gated.live.engine.snapshot.models["tiny"].sessions
            id = session.request
        assert gated.live.post(f"/v1/responses/{id}/cancel", {}).status_code == 400
        assert kept(gated.live, id)["status"] == "in_progress"
        assert gated.live.http.delete(f"/v1/responses/{id}").status_code == 200
        if stream:
            last = events_of(read_until(connection, END, data))[-1]
            assert last["type"] == "response.incomplete"
            response = last["response"]
        else:
            response = json.loads(read_until(connection, b"}}").partition(b"\r\n\r\n")[2])
    assert response["status"] == "cancelled"
    assert gated.live.get(f"/v1/responses/{id}").status_code == 404
    gated.gate.open()
    wait_until(lambda: gated.live.engine.snapshot.models["tiny"].running == 0)


def test_a_client_that_hangs_up_ends_its_response(gated: Gated) -> None:
    with gated.live.send("/v1/responses", BODY) as connection:
        gated.gate.step(8)
        id, _ = first_of(connection)
        assert kept(gated.live, id)["status"] == "in_progress"
        assert kept(gated.live, id)["output"][0]["status"] == "in_progress"
    gated.gate.step(1)
    wait_until(lambda: gated.live.engine.snapshot.models["tiny"].running == 0)
    wait_until(lambda: kept(gated.live, id)["status"] == "cancelled")


def test_a_response_in_the_background_outlives_its_connection(gated: Gated) -> None:
    body = BODY | {"stream": False, "background": True, "max_output_tokens": 4}
    with gated.live.send("/v1/responses", body) as connection:
        head = read_until(connection, b'"metadata":{}}')
    id = json.loads(head.partition(b"\r\n\r\n")[2])["id"]
    gated.gate.open()
    wait_until(lambda: kept(gated.live, id)["status"] == "incomplete")


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, ScriptedBackend]]:
    """A server whose model thinks and calls tools, and says what it is told to."""
    folder = tmp_path_factory.mktemp("scripted")
    template = folder / "hermes.jinja"
    template.write_text(templates.HERMES.strip("\n"))
    path = write_llama(folder / "tiny.gguf", context=1024)
    backend = ScriptedBackend()
    model = ModelSettings(id="tiny", path=path, default=True, chat_template=template)
    with serve([model], backend=backend) as live:
        yield live, backend


def test_thoughts_texts_and_calls_are_streamed_in_turn(scripted: tuple[Live, ScriptedBackend]) -> None:
    live, backend = scripted
    called = '{"name": "look", "arguments": {"near": true}}'
    backend.says = f"<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{called}\n</tool_call>"
    body = {"input": "hi", "temperature": 0, "tools": [{"type": "function", "name": "look"}]}
    with live.send("/v1/responses", body | {"stream": True}) as connection:
        events = events_of(read_until(connection, END))
    whole = live.post("/v1/responses", body).json()
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    thought, text, call = events[-1]["response"]["output"]
    assert thought["content"][0]["text"].strip() == "hm"
    assert text["content"][0]["text"].strip() == "I look."
    assert (call["name"], json.loads(call["arguments"])) == ("look", {"near": True})
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][1]["content"] == text["content"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_a_strict_call_obeys_its_schema_where_it_is_chosen(scripted: tuple[Live, ScriptedBackend]) -> None:
    live, backend = scripted
    backend.says = '<tool_call>\n{"name": "look", "arguments": {"at": "them"}}\n</tool_call>'
    schema = {"properties": {"at": {"enum": ["me", "you"]}}, "required": ["at"]}
    look = {"type": "function", "name": "look", "parameters": schema}
    for strict, at in ((False, ["them"]), (True, ["me", "you"])):
        body = {"input": "hi", "temperature": 0, "tools": [look | {"strict": strict}]}
        call, *_ = live.post("/v1/responses", body | {"parallel_tool_calls": False}).json()["output"]
        assert json.loads(call["arguments"])["at"] in at


def test_a_call_that_is_cut_off_says_so(scripted: tuple[Live, ScriptedBackend]) -> None:
    live, backend = scripted
    backend.says = '<tool_call>\n{"name": "look", "arguments": {"at": "me"}}\n</tool_call>'
    body = {
        "input": "hi",
        "temperature": 0,
        "max_output_tokens": backend.says.index('me"}'),
        "tools": [{"type": "function", "name": "look"}],
    }
    with live.send("/v1/responses", body | {"stream": True}) as connection:
        *_, done, item, last = events_of(read_until(connection, END))
    (whole,) = live.post("/v1/responses", body).json()["output"]
    assert (whole["arguments"], whole["status"]) == ('{"at": "', "incomplete")
    assert (done["type"], done["arguments"]) == (
        "response.function_call_arguments.done",
        whole["arguments"],
    )
    assert item["item"]["status"] == "incomplete"
    assert last["type"] == "response.incomplete"
    (streamed,) = last["response"]["output"]
    assert {**streamed, "id": "", "call_id": ""} == {**whole, "id": "", "call_id": ""}


def test_a_call_is_answered_and_thoughts_are_given_back(scripted: tuple[Live, ScriptedBackend]) -> None:
    live, backend = scripted
    backend.says = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    tools = {"tools": [{"type": "function", "name": "look"}], "temperature": 0}
    first = live.post("/v1/responses", {"input": "hi"} | tools).json()
    (call,) = first["output"]
    backend.says = "Dark."
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "dark"}
    second = live.post(
        "/v1/responses", {"input": [output], "previous_response_id": first["id"]} | tools
    ).json()
    assert second["output"][-1]["content"][0]["text"] == "Dark."
    chat = live.post(
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": call["call_id"], "function": {"name": "look", "arguments": call["arguments"]}}
                    ],
                },
                {"role": "tool", "tool_call_id": call["call_id"], "content": "dark"},
            ],
            "tools": [{"type": "function", "function": {"name": "look"}}],
        },
    ).json()
    assert second["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_a_model_that_is_told_not_to_think_does_not(scripted: tuple[Live, ScriptedBackend]) -> None:
    live, backend = scripted
    backend.says = "Yes."
    plain = live.post("/v1/responses", {"input": "hi", "reasoning": {"effort": "none"}}).json()
    assert [item["type"] for item in plain["output"]] == ["message"]
    assert plain["reasoning"] == {"effort": "none", "summary": None}
