"""A live server with its admin API, for tests: by a Unix socket, and by TCP with a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from live import LONG_WAIT_S, Gate, Live, serve
from tierd.backends.null import NullBackend
from tierd.http.listeners import listen, listen_at, url
from tierd.settings import ModelSettings

TOKEN = "correct horse battery".replace(" ", "-")


@dataclass(frozen=True)
class Administered:
    """A server of the models "one" and "two", its admin API by socket and by TCP, and its device's gate."""

    live: Live
    unix: httpx.Client
    tcp: httpx.Client
    gate: Gate


@contextmanager
def administered(
    tiny_model: ModelSettings,
    path: Path,
    *,
    before_open: Callable[[ModelSettings], None] = lambda model: None,
    **sections: Any,
) -> Iterator[Administered]:
    """Run one. path: of its socket. before_open, sections: see `live.serve`."""
    models = [replace(tiny_model, id="one"), replace(tiny_model, id="two", default=False, streams=2)]
    gate = Gate()
    with (
        listen_at(path) as unix,
        closing(listen("127.0.0.1:0")) as tcp,
        serve(
            models,
            backend=NullBackend(before_step=gate),
            admin=[(unix, None), (tcp, TOKEN)],
            before_open=before_open,
            **sections,
        ) as live,
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://admin", timeout=LONG_WAIT_S
        ) as by_socket,
        httpx.Client(base_url=url(tcp), timeout=LONG_WAIT_S, trust_env=False) as by_tcp,
    ):
        try:
            yield Administered(live, by_socket, by_tcp, gate)
        finally:
            gate.open()


def body(response: httpx.Response, status: int = 200) -> Any:
    """Return the JSON of a response that has a status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def status_of(server: Administered, model: str) -> Any:
    """Return a model's part of /status."""
    (status,) = (entry for entry in body(server.unix.get("/status"))["models"] if entry["id"] == model)
    return status
