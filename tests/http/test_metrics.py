from __future__ import annotations

import random
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from live import Gated, Live, wait_until
from tierd.metrics import NO_MODEL

NAMES = ['"}', "\n", "\\", "é" * 300, "tiny\0", "../../etc/passwd", "{model=", NO_MODEL, "", " tiny", "🜁"]


def series(live: Live) -> Iterator[tuple[str, ...]]:
    for family in text_string_to_metric_families(live.get("/metrics").text):
        for sample in family.samples:
            yield sample.name, *sorted(sample.labels.items())


def test_metrics_are_prometheus_text(live: Live) -> None:
    live.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True})
    response = live.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'tierd_requests_total{model="tiny",outcome="length"}' in response.text
    assert response.text.count('tierd_build_info{version="test"} 1.0\n') == 1


def test_prometheus_gets_open_metrics(live: Live) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    response = live.http.get("/metrics", headers={"Accept": accept})
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert response.text.endswith("# EOF\n")


def test_a_scrape_waits_for_no_step(gated: Gated) -> None:
    with gated.live.send("/v1/completions", {"prompt": [1], "ignore_eos": True}):
        wait_until(lambda: gated.live.engine.snapshot.models["tiny"].running == 1)
        assert 'tierd_requests_running{model="tiny"} 1.0' in gated.live.get("/metrics").text


def test_a_scrape_loads_no_model_and_gives_the_engine_nothing_to_do(live: Live) -> None:
    wait_until(lambda: all(not model.running for model in live.engine.snapshot.models.values()))
    published = live.engine.snapshot
    for _ in range(3):
        live.get("/metrics")
    assert live.engine.snapshot is published


def hostile(chance: random.Random, name: str) -> httpx.Request:
    """Return a request that has a name wherever a client may put one."""
    path = chance.choice(
        ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/v1/responses"]
    )
    headers = {
        "Authorization": f"Bearer {name!a}",
        "X-Request-Id": f"{name!a}",
        "traceparent": f"00-{chance.getrandbits(128):032x}-{chance.getrandbits(64):016x}-01",
        "User-Agent": f"{name!a}",
    }
    body = {
        "model": name,
        "user": name,
        "prompt": name,
        "messages": [{"role": "user", "content": name}],
        "input": name,
        "max_tokens": 1,
        "stop": [name],
        "tools": [{"type": "function", "function": {"name": name}}],
        "metadata": {name: name},
    }
    kept = {key: value for key, value in body.items() if chance.random() < 0.6}
    return httpx.Request("POST", path, json=kept, headers=headers)


@pytest.mark.parametrize("seed", range(3))
def test_no_client_makes_a_series(live: Live, seed: int) -> None:
    """Whatever models, keys, users, tools and paths are called."""
    chance = random.Random(seed)
    before = set(series(live))
    for name in NAMES:
        for path in (f"/v1/models/{name!a}", f"/{name!a}", f"/metrics/{name!a}", f"/metrics?model={name!a}"):
            live.get(path)
        asked = hostile(chance, name)
        live.http.request("POST", asked.url.path, content=asked.content, headers=dict(asked.headers))
        live.http.request(f"X{chance.randrange(10**6)}", "/v1/completions")
    assert set(series(live)) == before
