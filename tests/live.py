"""A live server on a free port, for tests: real sockets, a real engine, by default the null device."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tierd.backends.null import NullBackend
from tierd.backends.protocol import Backend
from tierd.core import Batch
from tierd.engine import Engine
from tierd.http import AdminServer, Mailboxes, Operations, Roster, Server, create_admin_app, create_app
from tierd.http.listeners import listen
from tierd.metrics import Metrics
from tierd.settings import ModelSettings, Settings
from tierd.slot import Slot, open_slot
from tierd.tier.host_site import HostSite

if TYPE_CHECKING:
    import openai

LONG_WAIT_S = 20


@dataclass(frozen=True)
class Live:
    """A running server, and a client of it. operations: what its admin API has begun."""

    url: str
    engine: Engine
    server: Server
    http: httpx.Client
    operations: Operations

    def post(self, path: str, body: object) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(path, content=content)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def refusal(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Post what will be refused; return the status and the error."""
        response = self.post(path, body)
        return response.status_code, error_of(response)

    def client(self) -> openai.OpenAI:
        import openai  # most tests do without, and it takes long

        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=LONG_WAIT_S)

    def connect(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=LONG_WAIT_S)

    def send(self, path: str, body: object) -> socket.socket:
        """Post a body by hand and leave the connection open."""
        content = json.dumps(body).encode()
        connection = self.connect()
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        )
        return connection


@contextmanager
def serve(
    models: Sequence[ModelSettings],
    *,
    backend: Backend | None = None,
    admin: Sequence[tuple[socket.socket, str | None]] = (),
    before_open: Callable[[ModelSettings], None] = lambda model: None,
    open_one: Callable[[ModelSettings], Slot] | None = None,
    parts: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Iterator[Live]:
    """Run a server. admin: listeners of the admin API, each with its token, None for none.

    before_open: called in the worker that opens a model; may wait, and may raise to play a fault.
    open_one: opens models otherwise than from their files for the backend. parts: of the engine, other than
    those that all servers here have.
    sections: of the settings, other than models and admin.
    """
    settings = Settings(models=tuple(models), **sections)
    mailboxes = Mailboxes()
    metrics = Metrics("test")
    site = HostSite(backend or NullBackend())

    def opened(model: ModelSettings) -> Slot:
        before_open(model)
        return open_slot(model, settings, site) if open_one is None else open_one(model)

    engine = Engine(
        mailboxes.deliver,
        open_slot=opened,
        metrics=metrics,
        settings=settings,
        **(parts or {}),
    )
    engine.start()
    for model in models:
        engine.load(model).result(LONG_WAIT_S)
    listening: list[str] = []
    begun = threading.Event()

    def on_listening(server: Server, url: str) -> None:
        listening.append(url)
        begun.set()

    with closing(listen("127.0.0.1:0")) as listener:
        roster, operations = Roster(settings), Operations()
        app = create_app(engine, mailboxes, metrics, roster, settings, (parts or {}).get("traces"))
        beside = [
            AdminServer(create_admin_app(engine, roster, operations, metrics, token), door)
            for door, token in admin
        ]
        server = Server(app, engine, listener, on_listening, beside, settings.server)
        thread = threading.Thread(target=server.serve_until_stopped)
        thread.start()
        try:
            assert begun.wait(LONG_WAIT_S)
            with httpx.Client(base_url=listening[0], timeout=LONG_WAIT_S, trust_env=False) as client:
                yield Live(listening[0], engine, server, client, operations)
        finally:
            server.stop()
            thread.join(LONG_WAIT_S)
            assert not thread.is_alive()


class Gate:
    """Holds the null device's steps back, or lets them fail."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._permits = threading.Semaphore(0)
        self._open = threading.Event()

    def __call__(self, batch: Batch) -> None:
        while not self._open.is_set() and not self._permits.acquire(timeout=0.01):
            pass
        if self.error is not None:
            raise self.error

    def step(self, count: int = 1) -> None:
        """Let some steps pass."""
        self._permits.release(count)

    def open(self) -> None:
        """Let all steps pass from now on."""
        self._open.set()


@dataclass(frozen=True)
class Gated:
    """A server whose device waits for the test."""

    live: Live
    gate: Gate


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to make something true."""
    pause = threading.Event()
    for _ in range(LONG_WAIT_S * 200):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not come true in time")


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a response, whose shape is OpenAI's."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    return error
