"""The official client for Node, against a live server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from live import Live, serve
from tierd.settings import ModelSettings
from tiny import write_llama

TESTS = Path(__file__).resolve().parent.parent
SCRIPT = TESTS / "clients" / "node" / "openai_client.cjs"
MODULES = TESTS.parent / "build" / "node" / "node_modules"
CONTEXT = 1024


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = write_llama(tmp_path_factory.mktemp("node") / "tiny.gguf", context=CONTEXT)
    with serve([ModelSettings(id="tiny", path=path, default=True)]) as live:
        yield live


@pytest.fixture(scope="module")
def answers(live: Live) -> dict[str, Any]:
    """What the script tells, by scenario."""
    if not MODULES.is_dir():
        pytest.fail(f"{MODULES} is missing; `make build/node/.installed` makes it", pytrace=False)
    run = subprocess.run(
        ["node", str(SCRIPT), live.url],
        env=os.environ | {"NODE_PATH": str(MODULES)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_models_are_listed(answers: dict[str, Any]) -> None:
    assert answers["models"] == ["tiny"]


def test_a_chat_is_answered_whole_and_streamed_alike(answers: dict[str, Any]) -> None:
    whole, chunks = answers["chat"], answers["chunks"]
    said = whole["choices"][0]["message"]["content"]
    assert len(said) > 10
    assert whole["usage"]["completion_tokens"] == 16
    *texts, counts = chunks
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in texts) == said
    assert texts[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert counts["choices"] == []
    assert counts["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


@pytest.mark.parametrize("name", ["call", "streamedCall"])
def test_a_tool_is_called(answers: dict[str, Any], name: str) -> None:
    (choice,) = answers[name]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "look")
    assert call["id"]
    assert list(json.loads(call["function"]["arguments"])) == ["near"]


def test_a_response_is_made_whole_and_streamed_alike(answers: dict[str, Any]) -> None:
    whole, events = answers["response"], answers["events"]
    assert whole["status"] == "incomplete"
    assert len(whole["output_text"]) > 10
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.incomplete"
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output_text"]


def test_a_response_is_kept_and_forgotten(answers: dict[str, Any]) -> None:
    stored = answers["stored"]
    assert stored["same"]
    assert [item["content"][0]["text"] for item in stored["items"]] == ["Say something."]
    assert (stored["status"], stored["code"]) == (404, "response_not_found")


def test_texts_become_vectors(answers: dict[str, Any], live: Live) -> None:
    as_numbers = live.post("/v1/embeddings", {"input": ["the of", "and"]}).json()["data"]
    assert [one["embedding"] for one in answers["embeddings"]["data"]] == [
        pytest.approx(one["embedding"], abs=1e-6) for one in as_numbers
    ]


def test_refusals_are_the_clients_own_errors(answers: dict[str, Any]) -> None:
    unknown, bad = answers["refusals"]
    assert unknown == {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"}
    assert (bad["name"], bad["status"], bad["param"]) == ("BadRequestError", 400, "n")


def test_a_stream_can_be_left(answers: dict[str, Any]) -> None:
    assert answers["aborted"] == 3
