"""What the log of a daemon says, and what it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from http_daemon import Daemon, daemon
from live import LONG_WAIT_S, wait_until
from tierd.http.keys import line_of, make_key

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
WORD = "Xanthippe"  # is said by nobody but the client


@dataclass
class Logging:
    """A daemon that logs all there is, as JSON, and a client of it who has a key."""

    daemon: Daemon
    http: httpx.Client
    key: str

    @property
    def text(self) -> str:
        return (self.daemon.folder / "tierd.log").read_text()

    def lines(self, **having: object) -> list[dict[str, Any]]:
        """Return the lines that have these fields."""
        found = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in found if having.items() <= line.items()]

    def await_lines(self, **having: object) -> list[dict[str, Any]]:
        wait_until(lambda: bool(self.lines(**having)))
        return self.lines(**having)


@pytest.fixture(scope="module")
def logging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logging]:
    folder, key = tmp_path_factory.mktemp("logs"), make_key()
    keys = folder / "api.keys"
    keys.touch(0o600)
    keys.write_text(f"{line_of('alice', key)}\n")
    settings = (
        "server.api_keys_file = 'api.keys'\nengine.threads = 1\ngpu.mode = 'off'\n"
        "log = {level = 'debug', format = 'json'}\n[[models]]"
    )
    with (
        daemon(folder, context=256, settings=settings) as served,
        httpx.Client(
            base_url=served.url, timeout=LONG_WAIT_S, trust_env=False, headers={"x-api-key": key}
        ) as client,
    ):
        yield Logging(served, client, key)


def test_a_request_s_line_has_its_id_model_key_and_trace(logging: Logging) -> None:
    asked = {"prompt": "the of", "max_tokens": 3, "ignore_eos": True}
    header = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    answer = logging.http.post("/v1/completions", json=asked, headers=header)
    id = answer.headers["x-request-id"]
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", answer.headers["traceparent"])
    assert PARENT not in answer.headers["traceparent"]
    (line,) = logging.await_lines(request=f"cmpl-{id}")
    assert (line["level"], line["model"], line["key"], line["trace"]) == ("info", "tiny", "alice", TRACE)
    assert (line["generated"], line["outcome"]) == (3, "length")
    assert line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
    (line,) = logging.await_lines(request=id)
    assert (line["level"], line["method"], line["path"], line["status"]) == (
        "debug", "POST", "/v1/completions", 200
    )  # fmt: skip


def test_a_refusal_s_line_has_them_too(logging: Logging) -> None:
    header = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    answer = logging.http.post("/v1/completions", json={"prompt": 7}, headers=header)
    assert answer.status_code == 400
    (line,) = logging.await_lines(request=answer.headers["x-request-id"], outcome="refused")
    assert (line["model"], line["key"], line["trace"], line["param"]) == (None, "alice", TRACE, "prompt")


def test_a_trace_that_is_not_valid_counts_for_nothing(logging: Logging) -> None:
    header = {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}
    answer = logging.http.post("/v1/completions", json={"prompt": "the", "max_tokens": 1}, headers=header)
    assert answer.status_code == 200
    assert "traceparent" not in answer.headers
    (line,) = logging.await_lines(request=f"cmpl-{answer.headers['x-request-id']}")
    assert "trace" not in line


def chat(**more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": f"I am {WORD}"}], "max_tokens": 12, **more}


ASKED: dict[str, tuple[str, object]] = {
    "completion": ("/v1/completions", {"prompt": f"I am {WORD}", "max_tokens": 12, "ignore_eos": True}),
    "chat": ("/v1/chat/completions", chat()),
    "response": ("/v1/responses", {"input": f"I am {WORD}", "max_output_tokens": 12}),
    "message": ("/v1/messages", {"model": "tiny", **chat()}),
    "embedding": ("/v1/embeddings", {"input": f"I am {WORD}"}),
    "tokens": ("/tokenize", {"content": f"I am {WORD}"}),
    "model": ("/v1/completions", {"model": WORD, "prompt": "x"}),
    "field": ("/v1/completions", {WORD: 1, "prompt": WORD, "max_tokens": WORD}),
    "role": ("/v1/chat/completions", {"messages": [{"role": WORD, "content": WORD}]}),
    "stop": ("/v1/completions", {"prompt": WORD, "stop": [WORD, ""]}),
    "schema": ("/v1/chat/completions", chat(response_format={"type": WORD})),
    "regex": ("/v1/completions", {"prompt": WORD, "guided_regex": f"({WORD}"}),
    "grammar": ("/v1/completions", {"prompt": WORD, "guided_grammar": f"start: {WORD}"}),
    "tool": ("/v1/chat/completions", chat(tools=[{"type": "function", "function": {"name": WORD + " "}}])),
    "bias": ("/v1/completions", {"prompt": "x", "logit_bias": {WORD: 1}}),
    "part": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": WORD, WORD: 1}]}]}),
    "property": (
        "/v1/chat/completions",
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"properties": {WORD: {"type": WORD}}}},
            }
        ),
    ),
    "length": ("/v1/completions", {"prompt": f"{WORD} " * 300}),
}


@pytest.mark.parametrize("what", ASKED)
def test_nothing_that_is_asked_or_answered_is_in_it(logging: Logging, what: str) -> None:
    path, body = ASKED[what]
    answer = logging.http.post(path, json=body)
    assert answer.status_code < 500, answer.text
    logging.await_lines(request=answer.headers["x-request-id"])
    assert WORD not in logging.text
    if what == "completion":
        text = answer.json()["choices"][0]["text"]
        assert len(text) > 3
        assert json.dumps(text, ensure_ascii=False)[1:-1] not in logging.text


def test_nor_is_what_is_no_json_and_no_key(logging: Logging) -> None:
    for headers, content in (
        ({}, f'{{"prompt": "{WORD}'),
        ({}, f'{{"prompt": "{WORD}\\ud800"}}'),
        ({"x-api-key": WORD}, "{}"),
        ({"x-api-key": "", "authorization": f"Bearer {WORD}"}, "{}"),
    ):
        answer = logging.http.post("/v1/completions", content=content, headers=headers)
        assert answer.status_code in (400, 401)
        logging.await_lines(request=answer.headers["x-request-id"], outcome="refused")
    assert WORD not in logging.text
    assert logging.key not in logging.text
