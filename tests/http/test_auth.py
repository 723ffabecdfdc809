"""Keys at the door of a live server: who passes, who is turned away, and how."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import openai
import pytest

from live import LONG_WAIT_S, Live, error_of, serve
from tierd.http.keys import line_of
from tierd.settings import ModelSettings, ServerSettings

ALICE, BOB = {"authorization": "Bearer of-alice"}, {"x-api-key": "of-bob"}
TEXT = {"prompt": "a b", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "model": "tiny"}
POSTS: dict[str, dict[str, object]] = {
    "/v1/completions": TEXT,
    "/v1/completions#stream": TEXT | {"stream": True},
    "/v1/chat/completions": CHAT,
    "/v1/embeddings": {"input": "a"},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/tokenize": {"content": "a"},
}


@pytest.fixture(scope="module")
def guarded(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = tmp_path_factory.mktemp("guarded") / "keys"
    path.write_text(f"{line_of('alice', 'of-alice')}\n{line_of('bob', 'of-bob')}\n")
    path.chmod(0o600)
    with serve([tiny_model], server=ServerSettings(api_keys_file=path)) as server:
        yield server


@pytest.mark.parametrize("path", POSTS)
def test_every_api_asks_for_a_key(guarded: Live, path: str) -> None:
    where, body = path.partition("#")[0], POSTS[path]
    for headers in (ALICE, BOB, ALICE | {"x-api-key": "wrong"}, BOB | {"authorization": "Bearer wrong"}):
        assert guarded.http.post(where, json=body, headers=headers).status_code == 200
    for headers in (
        {},
        {"authorization": "Basic of-alice"},
        {"x-api-key": ""},
        {"x-api-key": "of-alic"},
    ):
        response = guarded.http.post(where, json=body, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = error_of(response)
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_clients_of_anthropic_are_told_in_their_shape(guarded: Live, path: str) -> None:
    for headers in (ALICE, BOB):
        assert guarded.http.post(path, json=CHAT, headers=headers).status_code == 200
    for headers in ({}, {"x-api-key": "of-alice"[:-1]}):
        response = guarded.http.post(path, json=CHAT, headers=headers)
        assert response.status_code == 401
        told = response.json()
        assert (told["type"], told["error"]["type"]) == ("error", "authentication_error")


def test_what_is_not_there_asks_for_a_key_as_well(guarded: Live) -> None:
    for path in (
        "/v1/models",
        "/v1/models/tiny",
        "/v1/responses/x",
        "/status",
        "/nowhere",
        "/health/",
    ):
        assert guarded.get(path).status_code == 401
    assert guarded.http.get("/v1/models", headers=ALICE).status_code == 200
    assert guarded.http.get("/nowhere", headers=ALICE).status_code == 404


def test_who_watches_needs_no_key(guarded: Live) -> None:
    assert [guarded.get(path).status_code for path in ("/health", "/metrics")] == [200, 200]
    assert guarded.get("/").status_code != 401
    assert guarded.get("/openapi.json").status_code != 401


def test_the_document_says_where_a_key_is_asked_for(guarded: Live, live: Live) -> None:
    document = guarded.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            status = guarded.http.request(method, path).status_code
            assert ("security" in operation) == ("401" in operation["responses"]) == (status == 401), path
    text = live.get("/openapi.json").text
    assert "securitySchemes" not in text
    assert '"401"' not in text


def test_clients_of_openai_understand_it(guarded: Live) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=guarded.url + "/v1", api_key=key, max_retries=0, timeout=LONG_WAIT_S
        )  # fmt: skip

    assert [model.id for model in client("of-alice").models.list()] == ["tiny"]
    with pytest.raises(openai.AuthenticationError) as caught:
        client("of-eve").models.list()
    assert caught.value.code == "invalid_api_key"


def test_the_log_has_names_and_no_keys(guarded: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    guarded.http.post("/v1/completions", json=TEXT, headers=ALICE)
    guarded.http.post("/v1/completions", json=TEXT, headers={"x-api-key": "of-eve"})
    served, refused = (record.getMessage() for record in caplog.records if "request=" in record.getMessage())
    assert " key=alice " in served
    assert "outcome=refused status=401 code=invalid_api_key" in refused
    assert not any(key in caplog.text for key in ("of-alice", "of-eve"))


def test_responses_are_those_of_a_key(guarded: Live) -> None:
    made = guarded.http.post("/v1/responses", json=POSTS["/v1/responses"], headers=ALICE).json()
    place = f"/v1/responses/{made['id']}"
    followed = {"input": "b", "max_output_tokens": 2, "previous_response_id": made["id"]}
    for method, path in (
        ("GET", place),
        ("GET", f"{place}/input_items"),
        ("POST", f"{place}/cancel"),
        ("DELETE", place),
    ):
        assert guarded.http.request(method, path, headers=BOB).status_code == 404
    assert guarded.http.post("/v1/responses", json=followed, headers=BOB).status_code == 400
    assert guarded.http.post("/v1/responses", json=followed, headers=ALICE).status_code == 200
    assert guarded.http.delete(place, headers=ALICE).status_code == 200


def test_a_response_under_way_is_not_cancelled_by_others(guarded: Live) -> None:
    body = {"input": "a", "background": True, "ignore_eos": True}
    made = guarded.http.post("/v1/responses", json=body, headers=ALICE).json()
    place = f"/v1/responses/{made['id']}"
    assert guarded.http.post(f"{place}/cancel", headers=BOB).status_code == 404
    assert guarded.http.post(f"{place}/cancel", headers=ALICE).status_code == 200


def test_without_a_file_no_key_is_asked_for(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answer = live.http.post("/v1/completions", json=TEXT, headers=ALICE)
    assert answer.status_code == 200
    (line,) = (text for text in caplog.messages if answer.json()["id"] in text)
    assert "key=" not in line
