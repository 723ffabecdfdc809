"""/openapi.json, against what the server does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from described import Described
from live import Live, serve
from tierd.http.keys import line_of
from tierd.http.openapi import document as openapi
from tierd.settings import ModelSettings, ServerSettings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
FEW = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def described(live: Live) -> Described:
    response = live.get("/openapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    return Described(response.json())


def test_every_route_is_described_and_nothing_else(live: Live, described: Described) -> None:
    app = live.server.config.app
    assert isinstance(app, Starlette)
    served = {
        (method.lower(), route.path.replace(":path}", "}"))
        for route in app.routes
        if isinstance(route, Route) and route.include_in_schema  # the page's parts are not
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {(method, path) for path, methods in described.paths.items() for method in methods}


def test_operations_have_names_of_their_own(described: Described) -> None:
    names = [one["operationId"] for methods in described.paths.values() for one in methods.values()]
    assert "post_v1_chat_completions" in names
    assert len(set(names)) == len(names)


def test_parameters_of_paths_are_described(described: Described) -> None:
    for path, methods in described.paths.items():
        for operation in methods.values():
            places = [one["name"] for one in operation.get("parameters", []) if one["in"] == "path"]
            assert [f"{{{name}}}" in path for name in places] == [True] * path.count("{")


def test_all_schemas_are_schemas(described: Described) -> None:
    for schema in described.schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(described.document)
    referred = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert referred == set(described.schemas)


def test_keys_are_asked_for_where_they_are_described(tiny_model: ModelSettings, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{line_of('alice', 'of-alice')}\n")
    keys.chmod(0o600)
    with serve([tiny_model], server=ServerSettings(api_keys_file=keys)) as live:
        described = Described(live.get("/openapi.json").json())
        for path, methods in described.paths.items():
            for method, operation in methods.items():
                response = live.http.request(method, path.format(id="none"), content=b"")
                asked = response.status_code == 401
                assert asked == ("401" in operation["responses"]) == ("security" in operation)
                if asked:
                    described.check_answer(path, response.json(), method=method, status=401)


def test_it_is_made_once() -> None:
    assert openapi.document() is openapi.document()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HI, "temperature": 101}),
        (CHAT, {"messages": HI, "n": 17}),
        (CHAT, {"messages": HI, "audio": {}}),
        (CHAT, {"messages": HI, "tools": [{"type": "function", "function": {}}]}),
        (CHAT, {}),
        (TEXT, {"prompt": "a", "suffix": "b"}),
        (TEXT, {"prompt": "a", "logprobs": 21}),
        (RESPONSES, {"input": "a", "metadata": {"b": "c" * 513}}),
        (RESPONSES, {"input": "a", "truncation": "auto"}),
        (MESSAGES, {"messages": HI}),
        (MESSAGES, {"messages": HI, "max_tokens": 3, "temperature": 1.5}),
        (f"{MESSAGES}/count_tokens", {"messages": HI, "mcp_servers": [{}]}),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}),
        ("/tokenize", {"content": None}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_what_the_schemas_forbid_is_refused(
    live: Live, described: Described, path: str, body: dict[str, Any]
) -> None:
    assert not described.is_valid(described.body(path), body)
    response = live.post(path, body)
    assert response.status_code == 400
    described.check_answer(path, response.json(), status=400)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, FEW | {"messages": HI, "logprobs": True, "top_logprobs": 2, "n": 2}),
        (CHAT, FEW | {"messages": HI, "audio": None, "echo": False, "unknown": 1}),
        (TEXT, FEW | {"prompt": ["the of", "and"], "logprobs": 1, "echo": True}),
        (MESSAGES, {"messages": HI, "max_tokens": 3}),
        (f"{MESSAGES}/count_tokens", {"messages": HI}),
        (RESPONSES, {"input": "hi", "max_output_tokens": 3, "include": ["message.output_text.logprobs"]}),
        (f"{RESPONSES}/input_tokens", {"input": "hi", "instructions": "Be brief."}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [70]}),
        ("/apply-template", {"messages": HI}),
    ],
)
def test_answers_are_as_described(live: Live, described: Described, path: str, body: dict[str, Any]) -> None:
    assert described.is_valid(described.body(path), body)
    response = live.post(path, body)
    assert response.status_code == 200
    described.check_answer(path, response.json())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, FEW | {"messages": HI, "logprobs": True, "stream_options": {"include_usage": True}}),
        (CHAT, FEW | {"messages": HI, "n": 2}),
        (TEXT, FEW | {"prompt": "the of", "logprobs": 1, "stream_options": {"include_usage": True}}),
        (RESPONSES, {"input": "hi", "max_output_tokens": 3, "top_logprobs": 1}),
        (MESSAGES, {"messages": HI, "max_tokens": 3}),
    ],
)
def test_events_are_as_described(live: Live, described: Described, path: str, body: dict[str, Any]) -> None:
    response = live.post(path, body | {"stream": True})
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert response.text.count("data: ") > 3
    described.check_stream(path, response.text)


def test_a_stored_response_is_as_described(live: Live, described: Described) -> None:
    path = f"{RESPONSES}/{{id}}"
    id = live.post(RESPONSES, {"input": "hi", "max_output_tokens": 3}).json()["id"]
    described.check_answer(path, live.get(path.format(id=id)).json(), method="get")
    items = live.get(f"{RESPONSES}/{id}/input_items").json()
    assert len(items["data"]) == 1
    described.check_answer(f"{path}/input_items", items, method="get")
    refused = live.post(f"{RESPONSES}/{id}/cancel", b"")
    assert refused.json()["error"]["param"] == "id"
    described.check_answer(f"{path}/cancel", refused.json(), status=400)
    running = live.post(RESPONSES, {"input": "hi", "background": True, "ignore_eos": True}).json()["id"]
    described.check_answer(f"{path}/cancel", live.post(f"{RESPONSES}/{running}/cancel", b"").json())
    refused = live.get(f"{RESPONSES}/{id}?stream=perhaps")
    assert refused.json()["error"]["param"] == "stream"
    described.check_answer(path, refused.json(), method="get", status=400)
    described.check_answer(path, live.http.delete(f"{RESPONSES}/{id}").json(), method="delete")
    described.check_answer(path, live.get(f"{RESPONSES}/{id}").json(), method="get", status=404)


def test_what_is_there_to_look_at_is_as_described(live: Live, described: Described) -> None:
    described.check_answer("/v1/models", live.get("/v1/models").json(), method="get")
    described.check_answer("/v1/models/{id}", live.get("/v1/models/plain").json(), method="get")
    described.check_answer("/health", live.get("/health").json(), method="get")
    media_type = live.get("/metrics").headers["content-type"]
    assert media_type in described.paths["/metrics"]["get"]["responses"]["200"]["content"]
