"""Everybody who has to do with a daemon over the day: who talks, dawdles, leaves, errs, switches, watches."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from hostile.daemon import Daemon

# What may be answered: served, refused as wrong, not there while it is loaded anew, too much, not now.
EXPECTED = {200, 400, 404, 409, 413, 429, 503}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
PAUSE_S, DAWDLE_S, PATIENCE_S = 1.0, 3.0, 300.0


@dataclass
class Town:
    """Lets people loose on a daemon. did: how often each thing was done, by what became of it."""

    daemon: Daemon
    models: tuple[str, ...]  # that take turns on the GPU, and one that is on the CPU
    seed: int
    did: Counter[str] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)
    _rounds: int = 0

    def live(self, seconds: float) -> None:
        """Let them do for so long; what one of them meets that must not be is raised."""
        self._over.clear()
        self._rounds += 1
        people: list[Callable[[Random], None]] = [
            *[self._talk] * 3, self._dawdle, self._leave, self._err, self._administer, self._watch
        ]  # fmt: skip
        with ThreadPoolExecutor(len(people)) as threads:
            running = [
                threads.submit(self._busy, each, Random(f"{self.seed} {self._rounds} {n}"))
                for n, each in enumerate(people)
            ]
            self._over.wait(seconds)
            self._over.set()
        for each in running:
            each.result()

    def _busy(self, each: Callable[[Random], None], random: Random) -> None:
        try:
            while not self._over.wait(random.uniform(0.0, PAUSE_S)):
                each(random)
        except BaseException:
            self._over.set()
            raise

    def _note(self, what: str, answer: httpx.Response) -> None:
        assert answer.status_code in EXPECTED, (what, answer.status_code, answer.text)
        self.did[f"{what} {answer.status_code}"] += 1

    def _talk(self, random: Random) -> None:
        """A conversation of some turns, in one of the APIs."""
        with self.daemon.client(PATIENCE_S) as client:
            turns = [
                random.choice(_ASKS)(random, random.choice(self.models)) for _ in range(random.randint(1, 4))
            ]
            for path, body in turns:
                if body.get("stream"):
                    self._stream(client, path, body)
                else:
                    self._note(path, client.post(path, json=body))
                if self._over.is_set():
                    return

    def _stream(self, client: httpx.Client, path: str, body: Mapping[str, Any]) -> None:
        with client.stream("POST", path, json=body) as response:
            response.read()
        lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
        if response.status_code == 200:
            last = lines[-1].removeprefix("data: ")
            ended = last == "[DONE]" or json.loads(last)["type"] in _LAST
            # An administrator who unloads a model gives its streams half a second.
            assert ended or "it is being unloaded" in last, lines[-3:]
        self._note(f"{path} streamed", response)

    def _dawdle(self, random: Random) -> None:
        """Ask for a stream and read it slowly, or not at all."""
        with self._raw(random) as connection:
            until = time.monotonic() + random.uniform(0.0, DAWDLE_S)
            reads = random.random() < 0.5
            connection.settimeout(0.1)
            while time.monotonic() < until and not self._over.wait(0.1):
                with suppress(TimeoutError):
                    if reads and not connection.recv(200):
                        break
        self.did["dawdled"] += 1

    def _leave(self, random: Random) -> None:
        """Ask, and hang up in the middle of anything."""
        with self._raw(random):
            self._over.wait(random.choice([0.0, 0.01, random.uniform(0.0, 1.0)]))
        self.did["left"] += 1

    def _raw(self, random: Random) -> socket.socket:
        asked = {"model": random.choice(self.models), "prompt": _words(random, 40)}
        body = json.dumps(asked | {"max_tokens": 400, "stream": True}).encode()
        connection = socket.create_connection(self.daemon.address, timeout=60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return connection

    def _err(self, random: Random) -> None:
        """Ask for what cannot be."""
        path, content = random.choice(_WRONG)
        with self.daemon.client(PATIENCE_S) as client:
            response = client.post(path, content=content)
        assert response.status_code >= 400
        self._note(f"wrong {path}", response)

    def _administer(self, random: Random) -> None:
        """Switch, flush, unload and load."""
        model = random.choice(self.models)
        path, body = random.choice([
            *[("/models/activate", {"model": random.choice(self.models[:-1])})] * 6,
            ("/flush", {}),
            ("/models/unload", {"model": model, "limit_s": 0.5}),
        ])  # fmt: skip
        with self.admin() as client:
            self._note(path, client.post(f"{path}?wait=true", json=body))
            if path == "/models/unload":
                self._note("/models/load", client.post("/models/load?wait=true", json={"id": model}))
        self._over.wait(random.uniform(0.5, 2.0))

    def _watch(self, random: Random) -> None:
        """Scrape, and look at the page."""
        with self.daemon.client(PATIENCE_S) as client:
            for path in ("/metrics", "/health", "/page/state.json", "/v1/models"):
                self._note(path, client.get(path))
        with self.admin() as client:
            for path in ("/status", "/slots", "/tier", "/regions", "/sessions", "/passes", "/operations"):
                self._note(path, client.get(path))
        self._over.wait(0.7)

    def admin(self) -> httpx.Client:
        """Return a client of the admin API."""
        transport = httpx.HTTPTransport(uds=str(self.daemon.socket))
        return httpx.Client(transport=transport, base_url="http://admin", timeout=PATIENCE_S)


# A path, and what is posted there.
Ask = tuple[str, dict[str, object]]
# How streams without a [DONE] end.
_LAST = {"response.completed", "response.incomplete", "message_stop"}
_WRONG: list[tuple[str, bytes]] = [
    ("/v1/chat/completions", b"{"),
    ("/v1/chat/completions", b'{"model": "nobody", "messages": []}'),
    ("/v1/completions", json.dumps({"prompt": "a", "guided_regex": "(" * 200}).encode()),
    ("/v1/completions", json.dumps({"prompt": "word " * 20_000}).encode()),
    ("/v1/messages", b'{"messages": 1}'),
    ("/v1/responses/none/cancel", b""),
    ("/v1/embeddings", json.dumps({"input": "a", "dimensions": -1}).encode()),
]


def _words(random: Random, most: int) -> str:
    """A text that begins like others do, so that there is something to be found in caches."""
    own = random.choices(["and", "so", "then", "but"], k=random.randint(1, most))
    return " ".join(["once", "upon", "a", "time"] * 8 + own)


def _sampled(random: Random) -> dict[str, object]:
    return {
        "temperature": random.choice([0, 1]),
        "seed": random.randrange(100),
        "stream": random.random() < 0.6,
    }


def _said(random: Random, words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": _words(random, words)}]


def _chat(random: Random, model: str) -> Ask:
    body = {"model": model, "messages": _said(random, 30), "max_tokens": random.randint(1, 40)}
    return "/v1/chat/completions", body | _sampled(random)


def _complete(random: Random, model: str) -> Ask:
    more = random.choice([{}, {"n": 2}, {"logprobs": 2}, {"echo": True, "logprobs": 1}])
    body = {"model": model, "prompt": _words(random, 60), "max_tokens": random.randint(1, 60)}
    return "/v1/completions", body | _sampled(random) | more


def _constrained(random: Random, model: str) -> Ask:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    body = {"model": model, "messages": _said(random, 5), "max_tokens": 30, "response_format": schema}
    return "/v1/chat/completions", body | _sampled(random)


def _respond(random: Random, model: str) -> Ask:
    body = {"model": model, "input": _words(random, 20), "max_output_tokens": random.randint(1, 30)}
    return "/v1/responses", body | random.choice([{"stream": True}, {}, {"background": True}])


def _message(random: Random, model: str) -> Ask:
    body = {"model": model, "messages": _said(random, 20), "max_tokens": random.randint(1, 30)}
    return "/v1/messages", body | {"stream": random.random() < 0.6}


def _embed(random: Random, model: str) -> Ask:
    return "/v1/embeddings", {"model": model, "input": [_words(random, 20) for _ in range(3)]}


_ASKS = [_chat, _chat, _complete, _complete, _constrained, _respond, _message, _embed]
