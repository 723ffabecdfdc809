"""A `tierd serve` of its own process, and calls to servers, with nothing but the standard library."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = 600


@dataclass(frozen=True)
class Answer:
    """first_s: seconds from the request to the first text of its answer. prompt, cached: tokens."""

    first_s: float
    text: str
    prompt: int
    cached: int


class Served:
    """A daemon with these settings until it is left. folder: an empty one, for its files."""

    def __init__(self, folder: Path, settings: str) -> None:
        config = folder / "tierd.toml"
        config.write_text(
            f"server.listen = '127.0.0.1:0'\nlog.level = 'warning'\n{settings}", encoding="utf-8"
        )
        self._socket = folder / "tierd" / "admin.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tierd", "serve", "--config", str(config)],
            env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Served:
        """Wait until its models are loaded."""
        assert self._process.stdout is not None
        listens = re.search(r"http://([\d.]+):(\d+)", self._process.stdout.readline())
        if listens is None:
            raise SystemExit(f"tierd serve ended with code {self._process.wait()}")
        self._address = listens[1], int(listens[2])
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def public(self) -> http.client.HTTPConnection:
        """Return a new connection to the public address."""
        return http.client.HTTPConnection(*self._address, timeout=PATIENCE_S)

    def lasting(self, _: int) -> dict[str, Any]:
        """Return the fields of a request that make its stream last for all tokens asked for."""
        return {"ignore_eos": True}

    def admin(self) -> http.client.HTTPConnection:
        """Return a new connection to the admin API."""
        return _UnixConnection(self._socket)

    def get(self, path: str) -> Any:
        """Return the JSON of a path of the admin API."""
        with contextlib.closing(self.admin()) as connection:
            return json.loads(call(connection, "GET", path))

    def post(self, path: str, body: object, *, public: bool = False) -> Any:
        """Post JSON to the admin API, or to the public one, and return the JSON of the answer."""
        with contextlib.closing(self.public() if public else self.admin()) as connection:
            return json.loads(call(connection, "POST", path, body))

    def complete(self, model: str, prompt: Sequence[int], tokens: int) -> Answer:
        """Stream so many tokens behind a prompt, the likeliest ones."""
        began, first, text, usage = time.perf_counter(), 0.0, "", {}
        for event in self._events(model, prompt, tokens):
            piece = "".join(choice["text"] for choice in event["choices"])
            if piece and not text:
                first = time.perf_counter() - began
            text += piece
            usage = event.get("usage") or usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return Answer(first, text, usage["prompt_tokens"], cached)

    @contextlib.contextmanager
    def streaming(self, model: str, prompt: Sequence[int], tokens: int) -> Iterator[None]:
        """Have a stream run in the background, asked for again when it ends; begin once it runs."""
        runs, over = threading.Event(), threading.Event()

        def read() -> None:
            try:
                while not over.is_set():
                    for _ in self._events(model, prompt, tokens):
                        runs.set()
                        if over.is_set():
                            return
            finally:
                runs.set()

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            runs.wait()
            try:
                yield
            finally:
                over.set()
            reading.result()

    def _events(self, model: str, prompt: Sequence[int], tokens: int) -> Iterator[dict[str, Any]]:
        body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        with contextlib.closing(self.public()) as connection:
            yield from events(connection, body)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: object = None
) -> http.client.HTTPResponse:
    """Send a request and return its answer. SystemExit where it is no success."""
    content = None if body is None else json.dumps(body).encode()
    connection.request(method, path, content, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status not in (200, 202):
        raise SystemExit(f"{method} {path} was answered {response.status}: {response.read().decode()}")
    return response


def call(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> bytes:
    """Send a request and return what it is answered."""
    with ask(connection, method, path, body) as response:
        return response.read()


def events(connection: http.client.HTTPConnection, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a completion as they come. body: of its request. SystemExit where it fails."""
    with ask(connection, "POST", "/v1/completions", body | {"stream": True}) as response:
        for line in response:
            data = line.removeprefix(b"data: ").strip()
            if line.startswith(b"data: ") and data != b"[DONE]":
                event = json.loads(data)
                if "error" in event:
                    raise SystemExit(f"a stream of {body['model']} ended: {event['error']['message']}")
                yield event


def settings(models: Sequence[tuple[str, Path]], sections: str, *, context: int, streams: int = 2) -> str:
    """Return settings that serve these files under these names, so many streams of each at a time."""
    tables = [
        f"[[models]]\nid = {json.dumps(name)}\npath = {json.dumps(str(path.resolve()))}\n"
        f"context = {context}\nstreams = {streams}\nregions = {streams}\n"
        for name, path in models
    ]
    return "\n".join([sections, *tables])
