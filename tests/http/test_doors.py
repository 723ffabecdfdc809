"""What pages in a browser may ask of a live server, and by what names it may be called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from live import Live, error_of, serve
from live_admin import administered
from tierd.http.doors import is_private
from tierd.settings import ModelSettings, ServerSettings

CHAT = "https://chat.example.org"
LISTED = ServerSettings(hosts=("llm.example.org",), cors_origins=(CHAT,))
BODY = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def listed(tiny_model: ModelSettings) -> Iterator[Live]:
    with serve([tiny_model], server=LISTED) as live:
        yield live


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "localhost:1", "LOCALHOST", "tierd",
             "box.local", "a.localhost", "llm.internal:80", "box.home.arpa", "localhost.", "[fe80::1%25eth0]"]
)  # fmt: skip
def test_addresses_and_names_that_nobody_can_have_pass(live: Live, host: str) -> None:
    assert live.http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example.org", "evil.example.org:8080", "127.0.0.1.evil.example.org", "local.example.org",
             "evil.example.org.", "1.2.3.4.5", "0x7f.1"]
)  # fmt: skip
def test_other_names_are_turned_away_whatever_they_ask(live: Live, host: str) -> None:
    for path in ("/", "/health", "/v1/models", "/none"):
        response = live.http.get(path, headers={"host": host})
        assert response.status_code == 403
        error = error_of(response)
        assert error["code"] == "forbidden"
        assert "server.hosts" in error["message"]


def test_a_listed_name_passes(listed: Live) -> None:
    for host in ("llm.example.org", "LLM.example.org:443", "llm.example.org."):
        assert listed.http.get("/health", headers={"host": host}).status_code == 200
    assert listed.http.get("/health", headers={"host": "example.org"}).status_code == 403


def test_any_name_passes_where_all_may(tiny_model: ModelSettings) -> None:
    with serve([tiny_model], server=ServerSettings(hosts=("*",), cors_origins=("*",))) as live:
        headers = {"host": "evil.example.org", "origin": "https://evil.example.org:1"}
        response = live.http.get("/health", headers=headers)
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize(
    "origin", ["https://evil.example.org", "null", "http://localhost", "chrome-extension://abc", ""]
)
def test_pages_of_others_are_turned_away(live: Live, origin: str) -> None:
    """A text/plain body is what a page may send without asking first."""
    headers = {"origin": origin, "content-type": "text/plain"}
    response = live.http.post("/v1/completions", json=BODY, headers=headers)
    assert response.status_code == 403
    assert "server.cors_origins" in error_of(response)["message"]
    assert "access-control-allow-origin" not in response.headers


def test_its_own_page_may_call(live: Live) -> None:
    assert live.http.post("/v1/completions", json=BODY, headers={"origin": live.url}).status_code == 200


def test_a_listed_origin_may_ask_and_read_errors_too(listed: Live) -> None:
    asked = listed.http.options(
        "/v1/completions",
        headers={
            "origin": CHAT,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
        },
    )
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == CHAT
    assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    for body, status in ((BODY, 200), ({"prompt": 1.5}, 400)):
        response = listed.http.post("/v1/completions", json=body, headers={"origin": CHAT})
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == CHAT
        assert "x-request-id" in response.headers["access-control-expose-headers"]
    other = listed.http.post("/v1/completions", json=BODY, headers={"origin": "https://chat.example.com"})
    assert other.status_code == 403


def test_without_a_list_nothing_is_said_of_origins(live: Live) -> None:
    headers = {"origin": CHAT, "access-control-request-method": "POST"}
    response = live.http.options("/v1/completions", headers=headers)
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control-")]


def test_the_admin_listener_takes_no_page_but_its_own(tiny_model: ModelSettings, tmp_path: Path) -> None:
    with administered(tiny_model, tmp_path / "admin.sock") as house:
        for headers in ({"origin": CHAT}, {"host": "evil.example.org"}):
            for client in (house.unix, house.tcp):
                assert client.post("/drain", headers=headers).status_code == 403
        assert house.unix.get("/status").json()["draining"] is False


def test_names_without_a_dot_are_private() -> None:
    assert all(map(is_private, ("", "tierd", "::1", "192.168.1.4")))
    assert not any(map(is_private, ("a.b", "evil.local.org", "localhost.evil.org", "1.2.3")))
