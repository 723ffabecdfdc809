from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tierd
from live import error_of, wait_until
from live_admin import TOKEN, Administered, administered, body, status_of
from tierd.settings import ModelSettings


@pytest.fixture(scope="module")
def server(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tiny_model, tmp_path_factory.mktemp("admin") / "admin.sock") as server:
        server.gate.open()
        yield server


@pytest.fixture
def held(tiny_model: ModelSettings, tmp_path: Path) -> Iterator[Administered]:
    """One of a test's own, whose device waits for it."""
    with administered(tiny_model, tmp_path / "admin.sock") as server:
        yield server


def ask(server: Administered, model: str) -> None:
    """Let a model answer, so that its prefix cache keeps something."""
    request = {"model": model, "prompt": list(range(1, 30)), "max_tokens": 2, "ignore_eos": True}
    assert server.live.post("/v1/completions", request).status_code == 200


def test_status_tells_how_the_models_stand(server: Administered) -> None:
    answer = body(server.unix.get("/status"))
    assert set(answer) == {
        "version", "uptime_s", "draining", "models", "loading", "unloaded", "switch", "switches", "bank",
        "restart_needed",
    }  # fmt: skip
    assert answer["restart_needed"] == []
    assert answer["version"] == tierd.__version__
    assert 0 < answer["uptime_s"] < 60
    assert answer["draining"] is False
    assert (answer["loading"], answer["unloaded"]) == ([], [])
    assert (answer["switch"], answer["switches"]) == (None, 0)
    assert [model["id"] for model in answer["models"]] == ["one", "two"]
    for model in answer["models"]:
        pages = model.pop("pages")
        assert model.pop("id")
        assert model == {
            "outcome": "cpu",
            "device": "null",
            "decline": "",
            "seat": "",
            "running": 0,
            "paused": 0,
            "preempted": 0,
            "preemptions": 0,
            "waiting": 0,
        }
        assert pages == {
            "total": pages["total"],
            "used": 0,
            "cached": 0,
            "free": pages["total"],
            "reserved": 0,
        }


def test_status_counts_streams_and_pages_while_they_run(held: Administered) -> None:
    request = {"model": "two", "prompt": [1, 2, 3], "max_tokens": 20, "ignore_eos": True}
    connections = [held.live.send("/v1/completions", request) for _ in range(3)]
    try:
        wait_until(lambda: (s := status_of(held, "two"))["running"] + s["waiting"] == 3)
        held.gate.step(3)  # streams are admitted between steps
        wait_until(lambda: (s := status_of(held, "two"))["running"] == 2 and s["waiting"] == 1)
        pages = status_of(held, "two")["pages"]
        assert pages["used"] > 0
        assert 0 <= pages["reserved"] <= pages["free"] + pages["cached"]
        assert pages["used"] + pages["cached"] + pages["free"] == pages["total"]
        assert status_of(held, "one")["running"] == 0
    finally:
        for connection in connections:
            connection.close()


def test_sessions_are_the_streams_that_run(held: Administered) -> None:
    request = {"model": "two", "prompt": [1, 2, 3], "max_tokens": 20, "ignore_eos": True}
    with closing(held.live.send("/v1/completions", request)):
        held.gate.step(3)
        wait_until(lambda: any(s["generated"] == 3 for s in body(held.unix.get("/sessions"))["sessions"]))
        (session,) = body(held.unix.get("/sessions"))["sessions"]
        assert session.pop("id").startswith("cmpl-")
        assert session == {
            "model": "two",
            "region": None,
            "positions": 5,
            "prompt": 3,
            "generated": 3,
            "paused": False,
            "moving": False,
            "away": False,
            "reason": None,
            "words": "",
        }
    held.gate.open()
    wait_until(lambda: body(held.unix.get("/sessions")) == {"sessions": []})


def test_slots_tell_what_the_models_are(server: Administered, tiny_model: ModelSettings) -> None:
    one, two = body(server.unix.get("/slots"))["slots"]
    assert one["created"] > 1.7e9
    assert one["pages"]["total"] > two["pages"]["total"]
    unchanging = {key: value for key, value in one.items() if key not in ("created", "pages")}
    assert unchanging == {
        "id": "one",
        "default": True,
        "path": str(tiny_model.path),
        "architecture": "llama",
        "outcome": "cpu",
        "device": "null",
        "decline": "",
        "seat": "",
        "context": 256,
        "streams": 16,
        "kv_dtype": "f16",
        "max_prompt_tokens": 256,
        "max_output_tokens": 256,
        "running": 0,
        "paused": 0,
        "preempted": 0,
        "preemptions": 0,
        "waiting": 0,
        "regions": 0,
        "region_positions": 0,
        "prefill_window": 256 + 16,
        "prefill_continues": True,
        "placement": None,
        "cpu_pages": None,
    }
    assert (two["id"], two["default"], two["streams"]) == ("two", False, 2)


def test_flush_frees_what_the_prefix_cache_keeps(server: Administered) -> None:
    for model in ("one", "two"):
        ask(server, model)
        wait_until(lambda model=model: status_of(server, model)["pages"]["cached"] > 0)
    kept = status_of(server, "one")["pages"]["cached"]
    assert body(server.unix.post("/flush", content=b'{"model": "one"}')) == {"pages_freed": kept}
    assert status_of(server, "one")["pages"]["cached"] == 0
    assert status_of(server, "two")["pages"]["cached"] == kept
    ask(server, "one")
    wait_until(lambda: status_of(server, "one")["pages"]["cached"] == kept)
    assert body(server.unix.post("/flush")) == {"pages_freed": 2 * kept}
    assert body(server.unix.post("/flush", content=b'{"model": null}')) == {"pages_freed": 0}


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b'{"model": "none"}', 404, "there is no model 'none'; models served: one, two"),
        (b'{"modle": "one"}', 400, "the body: object contains unknown field `modle`"),
        (b'{"model": 1}', 400, "model: expected `str | null`, got `int`"),
        (b"flush!", 400, "the body is not valid JSON: JSON is malformed: invalid character (byte 5)"),
    ],
)
def test_a_flush_that_is_refused_says_why(
    server: Administered, content: bytes, status: int, message: str
) -> None:
    response = server.unix.post("/flush", content=content)
    assert (response.status_code, error_of(response)["message"]) == (status, message)


def test_what_is_not_there_is_answered_in_the_same_shape(server: Administered) -> None:
    response = server.unix.get("/v1/models")
    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    response = server.unix.get("/flush")
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    [
        "/status",
        "/slots",
        "/tier",
        "/regions",
        "/sessions",
        "/passes",
        "/flush",
        "/models/load",
        "/models/unload",
        "/models/activate",
        "/drain",
        "/resume",
        "/operations",
        "/operations/load-1",
    ],
)
def test_the_public_listener_has_none_of_it(server: Administered, path: str) -> None:
    for method in ("GET", "POST"):
        assert server.live.http.request(method, path).status_code == 404


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xff",
    ],
)
def test_without_the_token_tcp_is_closed(server: Administered, shown: str | None) -> None:
    headers = {} if shown is None else {"authorization": shown.encode("latin-1")}
    for path in ("/status", "/nothing"):
        response = server.tcp.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = error_of(response)
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert TOKEN not in error["message"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_with_the_token_tcp_is_as_good_as_the_socket(server: Administered, scheme: str) -> None:
    server.tcp.headers["authorization"] = f"{scheme} {TOKEN}"
    assert body(server.tcp.get("/slots")) == body(server.unix.get("/slots"))
    assert body(server.tcp.post("/flush")) == {"pages_freed": 0}


def listens(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        return caller.connect_ex(address) == 0


def test_it_answers_while_the_server_ends(held: Administered, tmp_path: Path) -> None:
    host, _, port = held.live.url.removeprefix("http://").rpartition(":")
    request = {"model": "one", "prompt": [1, 2, 3], "stream": True, "ignore_eos": True}
    with closing(held.live.send("/v1/completions", request)):
        wait_until(lambda: status_of(held, "one")["running"] == 1)
        held.live.server.stop()
        wait_until(lambda: not listens(socket.AF_INET, (host, int(port))))
        # The engine waits for a step that the gate holds back.
        assert body(held.unix.get("/status"))["version"] == tierd.__version__
        held.gate.open()
        wait_until(lambda: not listens(socket.AF_UNIX, str(tmp_path / "admin.sock")))
