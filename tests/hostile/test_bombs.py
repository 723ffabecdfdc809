"""Requests that are sound as HTTP and JSON and ask for much: each takes bounded time, others are served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from hostile.attempts import post as request_of
from hostile.daemon import Daemon, daemon
from hostile.wire import Wire
from live import wait_until
from tierd.chat.stops import text_stream
from tierd.http.body import MAX_BODY_BYTES
from tierd.http.generation.translate import MAX_CONTENT, MAX_STOP_CHARACTERS, MAX_STOPS
from tiny import write_gemma3, write_llama

# Templates that render a prompt, unless they are told to do what no template should.
TEMPLATES = {
    "loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{% set n = messages|length + 8 %}{{ n ** (n ** (n + 1)) }}",
    "memory": "{{ (messages[0].content * 200000000)|length }}",
    "width": "{{ messages[0].content|center(999999999) }}",
    "format": "{{ '%999999999d' % messages|length }}",
    "output": "{% for a in range(99999) %}{{ messages[0].content * 100 }}{% endfor %}",
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "attributes": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
}
SLEEP_S = 0.3
ROOM = MAX_BODY_BYTES - 200
TEXTS = {
    "letter": "a" * ROOM,
    "digit": "1" * ROOM,
    "space": "a" + " " * ROOM + "a",
    "line": "a" + "\n" * (ROOM // 2) + "a",
    "word": "the " * (ROOM // 4),
    "control": "<|im_end|>" * (ROOM // 10),
    "bytes": "<0x0A>" * (ROOM // 6),
    "emoji": "\U0001f642" * (ROOM // 4),
    "null": "\0" * (ROOM // 6),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("bombs")
    write_llama(folder / "llama.gguf", context=512)
    write_gemma3(folder / "gemma.gguf", context=512)
    write_llama(folder / "long.gguf", context=131_072)
    settings = "[kv]\nmemory_mb = 1100\n"
    for name in ("llama", "gemma", "long"):
        settings += f'[[models]]\nid = "{name}"\npath = "{name}.gguf"\nstreams = 2\n'
    for name, bomb in TEMPLATES.items():
        template = "{% if messages[0].content == 'bomb' %}" + bomb + "{% endif %}the"
        (folder / f"{name}.jinja").write_text(template)
        settings += f'[[models]]\nid = "{name}"\npath = "llama.gguf"\nchat_template = "{name}.jinja"\n'
    with daemon(folder, settings) as running:
        yield running


@contextmanager
def pulse(address: tuple[str, int], process: int, worst: list[float]) -> Iterator[None]:
    """Ask for /health all the while; then put into `worst` the longest answer, as `pulse` measures it."""
    host, port = address
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("pulse.py")), host, str(port), str(process)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:
        try:
            yield
        finally:
            printed, _ = asking.communicate()
    assert asking.returncode == 0
    worst.append(float(printed))


@contextmanager
def responsive(served: Daemon) -> Iterator[None]:
    """Ask for /health all the while; every answer must come within a second."""
    worst: list[float] = []
    with pulse(served.address, served.process.pid, worst):
        yield
    assert worst[0] < 1.0


def refused(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text[:300]
    error: dict[str, Any] = response.json()["error"]
    return error


def post(served: Daemon, path: str, body: bytes) -> httpx.Response:
    with served.client() as client:
        return client.post(path, content=body)


class Slow(BaseHTTPRequestHandler):
    """Answers once it has slept."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.set()  # type: ignore[attr-defined]
        time.sleep(SLEEP_S)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_pulse_feels_who_is_slow() -> None:
    worst: list[float] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.asked = threading.Event()  # type: ignore[attr-defined]
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        with pulse(("127.0.0.1", server.server_port), os.getpid(), worst):
            assert server.asked.wait(20)  # type: ignore[attr-defined]
        server.shutdown()
        serving.join()
    assert worst[0] > SLEEP_S / 2


@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_prompts_of_eight_mebibytes(served: Daemon, model: str) -> None:
    requests: list[tuple[str, bytes]] = []
    for text in TEXTS.values():
        chat = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        plain = {"model": model, "prompt": text, "max_tokens": 1}
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", plain)):
            requests.append((path, json.dumps(body, ensure_ascii=False).encode()))
    start = time.monotonic()
    with responsive(served), ThreadPoolExecutor(4) as clients:
        responses = list(clients.map(lambda request: post(served, *request), requests))
    assert time.monotonic() - start < 30
    for response in responses:
        error = refused(response)
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]


def test_millions_of_ids_and_messages(served: Daemon) -> None:
    ids = b",".join([b"5"] * (ROOM // 2))
    message = b'{"role":"user","content":""}'
    bodies = {
        "/v1/completions": b'{"prompt": [' + ids + b"]}",
        "/detokenize": b'{"model": "llama", "tokens": [' + ids + b"]}",
        "/v1/chat/completions": b'{"messages": ['
        + b",".join([message] * (ROOM // (len(message) + 1)))
        + b"]}",
        "/apply-template": b'{"messages": [{"role": "user", "content": ['
        + b",".join([b'{"type":"text","text":""}'] * (ROOM // 27))
        + b"]}]}",
        "/tokenize": b'{"content": "", "unheard_of": [' + ids + b"]}",
    }
    with responsive(served), ThreadPoolExecutor(2) as clients:
        responses = dict(
            zip(bodies, clients.map(lambda path: post(served, path, bodies[path]), bodies), strict=True)
        )
    assert refused(responses["/v1/completions"])["code"] == "context_length_exceeded"
    assert refused(responses["/v1/chat/completions"])["param"] == "messages"
    assert refused(responses["/detokenize"])["param"] == "tokens"
    assert responses["/apply-template"].json()["prompt"]
    assert responses["/tokenize"].json() == {"tokens": []}


@pytest.mark.parametrize(
    "field", ["guided_json", "prompt", "logit_bias", "allowed_token_ids", "stop", "unheard_of"]
)
def test_millions_of_values(served: Daemon, field: str) -> None:
    values = (b"[]", b"{}", b'"a"', b"1e9")
    bodies = [
        b'{"prompt": "a", "max_tokens": 1, "%b": [%b]}'
        % (field.encode(), b",".join([value] * (ROOM // (len(value) + 1))))
        for value in values
    ]
    bodies.append(
        b'{"prompt": "a", "max_tokens": 1, "%b": {%b}}'
        % (field.encode(), b",".join(b'"%d":1' % n for n in range(700_000)))
    )
    with responsive(served):
        for body in bodies:
            response = post(served, "/v1/completions", body)
            assert response.status_code == (200 if field == "unheard_of" else 400)


@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_a_text_to_encode_is_bounded(served: Daemon, model: str) -> None:
    with served.client() as client, responsive(served):
        whole = client.post("/tokenize", json={"model": model, "content": "a" * MAX_CONTENT})
        assert len(whole.json()["tokens"]) > 1000
        longer = {"model": model, "content": "a" * (MAX_CONTENT + 1)}
        assert refused(client.post("/tokenize", json=longer))["param"] == "content"


def test_a_prompt_of_a_hundred_thousand_tokens_delays_nobody_and_can_be_dropped(served: Daemon) -> None:
    prompt = {"model": "long", "prompt": "a" * 100_000, "max_tokens": 5, "stream": True}

    def running(client: httpx.Client) -> bool:
        return 'tierd_requests_running{model="long"} 1.0' in client.get("/metrics").text

    with served.client() as client, responsive(served):
        with Wire(served.address) as wire:
            wire.send(request_of("/v1/completions", json.dumps(prompt).encode()))
            wait_until(lambda: running(client))
            start = time.monotonic()
            answer = client.post("/v1/completions", json={"model": "llama", "prompt": "the", "max_tokens": 5})
            assert answer.status_code == 200
            assert time.monotonic() - start < 5
            assert running(client)
            wire.drop()
        wait_until(lambda: not running(client))


def test_templates_that_go_too_far(served: Daemon) -> None:
    def chat(model: str, content: str) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1}
        with served.client() as client:
            return client.post("/v1/chat/completions", json=body)

    start = time.monotonic()
    with responsive(served), ThreadPoolExecutor(4) as clients:
        responses = dict(
            zip(TEMPLATES, clients.map(lambda model: chat(model, "bomb"), TEMPLATES), strict=True)
        )
    assert time.monotonic() - start < 30
    for name, response in responses.items():
        assert refused(response)["message"].startswith("the chat template failed: "), name
    for name in TEMPLATES:
        assert chat(name, "peace").status_code == 200


def test_stop_strings_that_nearly_match_cost_little(served: Daemon) -> None:
    def complete(stop: list[str]) -> tuple[str, float]:
        body = {"model": "llama", "prompt": "the", "max_tokens": 450, "temperature": 0, "ignore_eos": True}
        start = time.monotonic()
        with served.client() as client:
            answer = client.post("/v1/completions", json={**body, "stop": stop})
        text: str = answer.json()["choices"][0]["text"]
        return text, time.monotonic() - start

    plain, seconds = complete([])
    period = plain[-200:]
    nearly = [(period[shift:] * 9)[: MAX_STOP_CHARACTERS - 1] + "\0" for shift in range(MAX_STOPS)]
    with responsive(served):
        stopped, longer = complete(nearly)
    assert stopped == plain
    assert longer < 3 * seconds + 1
    with served.client() as client:
        body = {"prompt": "the", "stop": ["a", "b" * (MAX_STOP_CHARACTERS + 1)]}
        assert refused(client.post("/v1/completions", json=body))["param"] == "stop[1]"


def test_the_search_for_stop_strings_takes_time_that_grows_with_the_text_alone() -> None:
    class Letters:
        """One letter a token."""

        def token_bytes(self, token: int) -> bytes:
            return b"a"

    def seconds(stop: list[str]) -> float:
        stream = text_stream(Letters(), stop)  # type: ignore[arg-type]
        start = time.process_time()
        for _ in range(20_000):
            stream.push(0)
        return time.process_time() - start

    assert seconds(["a" * 10_000 + "b"]) < 10 * seconds(["b"]) + 0.1
