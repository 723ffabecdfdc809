"""The status page over HTTP: its files, and what it is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from live import Gated, Live, serve, wait_until
from live_admin import TOKEN, Administered, administered, body
from tierd.http.keys import line_of
from tierd.http.page.files import INDEX, page_files
from tierd.http.page.routes import STATE
from tierd.settings import ModelSettings, ServerSettings

SECRET = "a-secret-prompt"
PATHS = ["/", *(f"/page/{name}" for name in page_files() if name != INDEX)]


@pytest.fixture(scope="module")
def guarded(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    keys = tmp_path_factory.mktemp("page") / "keys"
    keys.write_text(f"{line_of('alice', 'of-alice')}\n")
    keys.chmod(0o600)
    with serve([tiny_model], server=ServerSettings(api_keys_file=keys)) as live:
        yield live


@pytest.fixture(scope="module")
def admin(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tiny_model, tmp_path_factory.mktemp("page") / "admin.sock") as house:
        yield house


@pytest.mark.parametrize("path", PATHS)
def test_every_part_is_sent_with_a_strict_policy(live: Live, path: str) -> None:
    response = live.get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("path", PATHS)
def test_what_is_known_is_not_sent_again(live: Live, path: str) -> None:
    tag = live.get(path).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = live.http.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert live.http.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/../state.py", "/page/%2e%2e/state.py", "/page/index.html"]
)
def test_no_other_file_is_sent(live: Live, path: str) -> None:
    with live.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert connection.makefile("rb").readline() == b"HTTP/1.1 404 Not Found\r\n"


def test_nothing_comes_from_elsewhere() -> None:
    folder = Path(__file__).parents[3] / "daemon/tierd/http/page/static"
    texts = {file.name: file.read_text() for file in folder.iterdir()}
    assert set(texts) == set(page_files())
    for text in texts.values():
        assert not re.search(r"""["'(=]\s*(https?:)?//""", text.replace("http://www.w3.org/2000/svg", ""))
    index = texts[INDEX]
    assert not re.search(r"<style| style=| on[a-z]+=", index)
    assert re.findall("<script[^>]*>", index) == ['<script type="module" src="page/main.js">']


def test_the_state_tells_of_models_and_streams_but_not_what_is_said(gated: Gated) -> None:
    live = gated.live
    with live.send("/v1/completions", {"prompt": SECRET, "max_tokens": 9, "user": SECRET}):
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 1)
        response = live.get(STATE)
        assert response.headers["cache-control"] == "no-store"
        state = response.json()
        gated.gate.open()
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 0)
    assert (state["admin"], state["guarded"], state["draining"]) == (False, False, "")
    (model,) = state["models"]
    assert (model["id"], model["outcome"], model["running"], model["default"]) == ("tiny", "cpu", 1, True)
    (session,) = state["sessions"]
    assert (session["model"], session["generated"]) == ("tiny", 0)
    assert SECRET not in response.text


def test_the_page_tells_what_the_metrics_tell(gated: Gated) -> None:
    live = gated.live
    gated.gate.open()
    for tokens in (1, 5):
        live.post("/v1/completions", {"prompt": "a", "max_tokens": tokens, "ignore_eos": True})
    samples = {
        sample.name.removeprefix("tierd_"): sample.value
        for family in text_string_to_metric_families(live.get("/metrics").text)
        for sample in family.samples
        if sample.labels == {"model": "tiny"}
    }
    totals = live.get(STATE).json()["models"][0]["totals"]
    assert totals == {
        "generated": samples["generated_tokens_total"],
        "first_tokens": samples["time_to_first_token_seconds_count"],
        "first_token_s": samples["time_to_first_token_seconds_sum"],
        "gaps": samples["inter_token_seconds_count"],
        "gap_s": samples["inter_token_seconds_sum"],
    }
    assert totals["generated"] >= 6


def test_with_keys_the_page_is_open_and_tells_nothing_of_streams(guarded: Live) -> None:
    for path in PATHS:
        assert guarded.get(path).status_code == 200
    state = guarded.get(STATE).json()
    assert (state["guarded"], state["sessions"]) == (True, None)
    assert guarded.get("/v1/models").status_code == 401


def test_the_admin_listener_shows_the_page_to_all_and_the_state_to_who_has_the_token(
    admin: Administered,
) -> None:
    for path in PATHS:
        assert admin.tcp.get(path).status_code == 200
    assert admin.tcp.get(STATE).status_code == 401
    assert admin.tcp.get("/status").status_code == 401
    told = body(admin.tcp.get(STATE, headers={"authorization": f"Bearer {TOKEN}"}))
    assert (told["admin"], told["sessions"]) == (True, [])
    assert body(admin.unix.get(STATE))["admin"] is True


@pytest.mark.parametrize("path", [STATE, "/status", "/", "/page/main.js", "/metrics", "/v1/models"])
@pytest.mark.parametrize("behind", ["%0a", "%0d%0a", "%00", "%20", "%2f", ";"])
def test_a_path_with_something_behind_it_is_another(
    live: Live, admin: Administered, path: str, behind: str
) -> None:
    """So nobody gets past who decides by it: the token's gate, or a proxy."""
    assert live.get(path + behind).status_code == 404
    assert admin.unix.get(path + behind).status_code == 404
    assert admin.tcp.get(path + behind).status_code == 401


def test_no_command_is_taken_on_the_public_listener(live: Live) -> None:
    for path in ("/models/load", "/models/unload", "/models/activate", "/drain", "/resume"):
        response: httpx.Response = live.post(path, {})
        assert response.status_code == 404
