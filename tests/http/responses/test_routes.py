"""/v1/responses by the official client, against a live server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from live import Gated, Live, serve, wait_until
from tierd.settings import ModelSettings, ResponsesSettings
from tiny import write_llama

ROOM = 1024
LOOK = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {
        "type": "object",
        "properties": {"near": {"type": "boolean"}},
        "required": ["near"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Verdict(BaseModel):
    good: bool


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose model has room for tools in its prompts."""
    path = write_llama(tmp_path_factory.mktemp("roomy") / "tiny.gguf", context=ROOM)
    with serve([ModelSettings(id="tiny", path=path, default=True)]) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with live.client() as client:
        yield client


@pytest.fixture(scope="module")
def roomy_client(roomy: Live) -> Iterator[openai.OpenAI]:
    with roomy.client() as client:
        yield client


def respond(client: openai.OpenAI, input: object = "Say something.", **arguments: Any) -> Any:
    settings = {
        "model": "tiny",
        "input": input,
        "max_output_tokens": 12,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    return client.responses.create(**settings | arguments)


def refusal(live: Live, **fields: object) -> dict[str, Any]:
    status, error = live.refusal("/v1/responses", {"input": "x"} | fields)
    assert status == 400
    return error


def calls(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if item.type == "function_call"]


def test_a_response_has_all_that_the_client_knows(client: openai.OpenAI) -> None:
    response = respond(client, instructions="Be brief.", metadata={"a": "b"}, user="me")
    assert Response.model_validate(response.to_dict()) == response
    assert response.id.startswith("resp_")
    assert response.object == "response"
    assert response.model == "tiny"
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert len(response.output_text) > 5
    assert response.usage.output_tokens == 12
    assert response.usage.total_tokens == response.usage.input_tokens + 12
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert (response.instructions, response.metadata, response.user) == ("Be brief.", {"a": "b"}, "me")
    assert (response.temperature, response.top_p, response.truncation) == (0, 1, "disabled")
    assert (response.tools, response.tool_choice, response.parallel_tool_calls) == ([], "auto", True)
    assert response.text.format.type == "text"


def test_the_answer_is_that_of_the_chat(client: openai.OpenAI) -> None:
    response = respond(client, [{"role": "user", "content": "Hello?"}], instructions="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    chat = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    whole = respond(client)
    with client.responses.stream(
        model="tiny",
        input="Say something.",
        max_output_tokens=12,
        temperature=0,
        extra_body={"ignore_eos": True},
    ) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == whole.output_text == events[-1].response.output_text
    assert len(kinds) > 12


def test_it_is_kept_until_it_is_deleted(live: Live, client: openai.OpenAI) -> None:
    response = respond(client)
    assert client.responses.retrieve(response.id) == response
    with pytest.raises(openai.BadRequestError, match="was not made in the background") as refused:
        client.responses.cancel(response.id)
    assert refused.value.param == "id"
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(response.id)
    assert missing.value.code == "response_not_found"
    for ask in (client.responses.delete, client.responses.cancel, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(response.id)
    assert live.http.delete(f"/v1/responses/{response.id}").status_code == 404


def test_a_deletion_says_so(live: Live, client: openai.OpenAI) -> None:
    id = respond(client).id
    assert live.http.delete(f"/v1/responses/{id}").json() == {
        "id": id,
        "object": "response",
        "deleted": True,
    }
    assert live.post(f"/v1/responses/{id}", {}).status_code == 405


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI) -> None:
    response = respond(client, store=False)
    assert response.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_conversation_goes_on_from_a_response(client: openai.OpenAI) -> None:
    first = respond(client, "Hello?", instructions="Be brief.")
    second = respond(client, "And then?", previous_response_id=first.id)
    third = respond(client, "Why?", previous_response_id=second.id)
    spelled = respond(
        client,
        [
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": [{"type": "input_text", "text": "And then?"}]},
            second.output[0].to_dict(),
            {"role": "user", "content": "Why?"},
        ],
    )
    assert third.output_text == spelled.output_text
    assert third.usage.input_tokens == spelled.usage.input_tokens
    assert third.previous_response_id == second.id
    pages = client.responses.input_items.list(third.id, order="asc", limit=2)
    items = list(pages)
    latest = client.responses.input_items.list(third.id)
    assert pages.has_more
    texts = [item.content[0].text for item in items]
    assert texts == ["Hello?", first.output_text, "And then?", second.output_text, "Why?"]
    assert len({item.id for item in items}) == 5
    assert [item.id for item in latest.data] == [item.id for item in reversed(items)]


def test_one_does_not_go_on_from_what_is_not_there(live: Live) -> None:
    error = refusal(live, previous_response_id="resp_none")
    assert error["code"] == "previous_response_not_found"
    assert error["param"] == "previous_response_id"


def test_the_oldest_make_room(tiny_model: ModelSettings) -> None:
    with serve([tiny_model], responses=ResponsesSettings(capacity=2)) as live, live.client() as client:
        ids = [respond(client).id for _ in range(3)]
        assert [client.responses.retrieve(id).id for id in ids[1:]] == ids[1:]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[0])
        with pytest.raises(openai.BadRequestError):
            respond(client, previous_response_id=ids[0])


def test_log_probabilities_are_told_where_they_are_included(client: openai.OpenAI) -> None:
    response = respond(client, include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = response.output[0].content
    assert len(part.logprobs) == 12
    assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode(errors="replace") == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert part.logprobs[0].top_logprobs[0].logprob == part.logprobs[0].logprob
    assert respond(client, top_logprobs=2).output[0].content[0].logprobs == []


def test_text_obeys_its_schema(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(
        model="tiny", input="Good?", text_format=Verdict, max_output_tokens=60, temperature=0
    )
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, Verdict)
    assert parsed.text.format.type == "json_schema"
    free = respond(client, text={"format": {"type": "json_object"}})
    assert free.output_text.startswith("{")
    assert free.text.format.type == "json_object"


def test_a_call_is_answered_and_the_conversation_goes_on(roomy_client: openai.OpenAI) -> None:
    asked = {"tools": [LOOK], "tool_choice": "required", "parallel_tool_calls": False}
    response = respond(roomy_client, max_output_tokens=60, extra_body={}, **asked)
    (call,) = calls(response)
    assert response.status == "completed"
    assert (call.name, call.status) == ("look", "completed")
    assert set(json.loads(call.arguments)) == {"near"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "nothing"}
    after = respond(roomy_client, [output], previous_response_id=response.id, tools=[LOOK])
    spelled = respond(
        roomy_client, [{"role": "user", "content": "Say something."}, call.to_dict(), output], tools=[LOOK]
    )
    assert after.output_text == spelled.output_text
    assert after.tools[0].name == "look"
    kept = roomy_client.responses.input_items.list(after.id, order="asc").data
    assert [item.type for item in kept] == ["message", "function_call", "function_call_output"]
    assert kept[2].output == "nothing"


def test_a_named_function_is_called_in_a_stream(roomy_client: openai.OpenAI) -> None:
    other = LOOK | {"name": "listen"}
    with roomy_client.responses.stream(
        model="tiny",
        input="Listen.",
        tools=[LOOK, other],
        tool_choice={"type": "function", "name": "listen"},
        parallel_tool_calls=False,
        max_output_tokens=60,
        temperature=0,
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[2] == "response.output_item.added"
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[3:-3]) == {"response.function_call_arguments.delta"}
    (call,) = calls(final)
    assert call.name == "listen"
    assert "".join(event.delta for event in events[3:-3]) == call.arguments == events[-3].arguments


def test_only_allowed_tools_are_called(roomy_client: openai.OpenAI) -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    response = respond(
        roomy_client,
        tools=[LOOK | {"name": "listen"}, LOOK],
        tool_choice=allowed,
        parallel_tool_calls=False,
        max_output_tokens=60,
        extra_body={},
    )
    assert [call.name for call in calls(response)] == ["look"]
    assert response.to_dict()["tool_choice"] == allowed


def test_a_response_in_the_background_is_asked_for_later(gated: Gated) -> None:
    with gated.live.client() as client:
        response = respond(client, background=True, max_output_tokens=5)
        assert (response.status, response.background) == ("queued", True)
        wait_until(lambda: client.responses.retrieve(response.id).status == "in_progress")
        with pytest.raises(openai.ConflictError, match="on its way"):
            respond(client, previous_response_id=response.id)
        gated.gate.open()
        wait_until(lambda: client.responses.retrieve(response.id).status == "incomplete")
        done = client.responses.retrieve(response.id)
        assert done.output_text == respond(client, max_output_tokens=5).output_text


def test_a_stream_in_the_background_is_taken_up_again(gated: Gated) -> None:
    with gated.live.client() as client:
        stream = respond(client, background=True, stream=True, max_output_tokens=5)
        gated.gate.step(8)
        first = [next(stream) for _ in range(5)]
        id = first[0].response.id
        stream.close()
        gated.gate.open()
        rest = list(client.responses.retrieve(id, stream=True, starting_after=4))
        again = list(client.responses.retrieve(id, stream=True))
        done = client.responses.retrieve(id)
        nothing = list(client.responses.retrieve(id, stream=True, starting_after=len(again) - 1))
    assert [event.sequence_number for event in [*first, *rest]] == list(range(len(again)))
    assert [*first, *rest] == again
    assert rest[-1].response == done
    assert done.status == "incomplete"
    assert nothing == []


def test_whoever_reads_in_the_background_sees_how_it_ends(gated: Gated) -> None:
    with gated.live.client() as client:
        cancelled = respond(client, background=True, stream=True)
        id = next(cancelled).response.id
        client.responses.cancel(id)
        assert list(cancelled)[-1].response.status == "cancelled"
        failed = respond(client, background=True, stream=True)
        next(failed)
        gated.gate.error = ValueError("out of smoke")
        gated.gate.open()
        *_, fault, last = failed
    assert (fault.type, last.type) == ("error", "response.failed")
    assert last.response.status == "failed"


def test_a_response_in_the_background_is_cancelled(gated: Gated) -> None:
    live = gated.live
    with live.client() as client:
        response = respond(client, background=True, max_output_tokens=100)
        assert client.responses.cancel(response.id).status == "cancelled"
        assert client.responses.cancel(response.id).status == "cancelled"
        gated.gate.open()
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 0)
        assert client.responses.retrieve(response.id).status == "cancelled"
        deleted = respond(client, background=True, max_output_tokens=100)
        client.responses.delete(deleted.id)
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 0)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(deleted.id)


def test_a_response_in_the_background_that_has_ended_is_not_cancelled(gated: Gated) -> None:
    gated.gate.open()
    with gated.live.client() as client:
        id = respond(client, background=True).id
        wait_until(lambda: client.responses.retrieve(id).status == "incomplete")
        with pytest.raises(openai.BadRequestError, match="this response is incomplete"):
            client.responses.cancel(id)


def test_a_response_in_the_background_fails_for_all_to_see(
    gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    with gated.live.client() as client:
        response = respond(client, background=True)
        gated.gate.error = ValueError("out of smoke")
        gated.gate.open()
        wait_until(lambda: client.responses.retrieve(response.id).status == "failed")
        error = client.responses.retrieve(response.id).error
    assert error.code == "server_error"
    assert "out of smoke" in error.message
    assert any(response.id in record.getMessage() for record in caplog.records)


def test_a_server_ends_though_responses_run_in_the_background(gated: Gated) -> None:
    with gated.live.client() as client:
        respond(client, background=True, max_output_tokens=100)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncation": "auto"}, "truncation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "no"}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "guided_regex"),
        ({"reasoning": {"effort": "immense"}}, "reasoning.effort"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name"),
        ({"tools": [LOOK | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [LOOK] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools[0].name",
        ),
        ({"max_output_tokens": 1000}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"model": "plain"}, "model"),
    ],
)
def test_what_is_not_there_is_refused_by_name(live: Live, fields: dict[str, object], param: str) -> None:
    assert refusal(live, **fields)["param"] == param


def test_items_that_are_kept_may_be_named(client: openai.OpenAI) -> None:
    first = respond(client, "Hello?")
    (hello,) = client.responses.input_items.list(first.id).data
    names = [{"type": "item_reference", "id": item.id} for item in (hello, *first.output)]
    user = {"role": "user", "content": "And then?"}
    named = respond(client, [*names, user])
    after = respond(client, [user], previous_response_id=first.id)
    assert named.output_text == after.output_text
    assert named.usage.input_tokens == after.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as gone:
        respond(client, names)
    assert gone.value.param == "input[0].id"


def test_a_stream_that_is_over_is_not_made_once_more(live: Live, client: openai.OpenAI) -> None:
    response = respond(client)
    assert live.get(f"/v1/responses/{response.id}?stream=true").json()["error"]["param"] == "stream"
    assert live.get(f"/v1/responses/{response.id}?stream=false").status_code == 200
    kept = live.post(
        "/v1/responses", {"input": "x", "background": True, "stream": True, "max_output_tokens": 1}
    )
    id = f"resp_{kept.headers['x-request-id']}"
    error = live.get(f"/v1/responses/{id}?stream=true&starting_after=x").json()["error"]
    assert error["param"] == "starting_after"
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nobody"):
        error = live.get(f"/v1/responses/{response.id}/input_items?{query}").json()["error"]
        assert error["param"] == query.partition("=")[0]


def test_what_a_response_would_be_made_from_is_counted(client: openai.OpenAI) -> None:
    first = respond(client, "one two")
    fields: dict[str, Any] = {"model": "tiny", "input": "three", "instructions": "Be brief."}
    for more in ({}, {"previous_response_id": first.id}):
        made = respond(client, **{**fields, **more})
        counted = client.responses.input_tokens.count(**fields, **more)
        assert counted.object == "response.input_tokens"
        assert counted.input_tokens == made.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="input: empty"):
        client.responses.input_tokens.count(model="tiny")
