"""The Grafana dashboard: a real Prometheus that has scraped a daemon at work answers all its queries."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from make_dashboard import PLACE, dashboard

from http_daemon import Daemon, daemon
from prometheus import Prometheus, promtool, scraping
from tierd.cli.client import at_socket
from tiny import write_llama

# Of the two models, 8 MiB hold one. The second has fewer regions than streams.
SETTINGS = """
[gpu]
allow_software = true
vram_limit_mb = 8
[switch]
min_hold_s = 0.0
max_wait_s = 0.0
[kv]
memory_mb = 64
[[models]]
id = "one"
path = "one.gguf"
context = 4096
ctx_strict = true
streams = 2
[[models]]
context = 4096
ctx_strict = true
streams = 4
regions = 2
"""
PROMPT = "the of and to in is "
DASHBOARD: dict[str, Any] = json.loads(PLACE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in PANELS
    for target in panel["targets"]
]
# What nothing here is wrong enough for.
CALM = (
    "tierd_requests_preempted",
    "tierd_requests_waiting",
    "tierd_streams_paused",
    "tierd_preemptions_total",
    "tierd_kv_bank_dropped_total",
    "tierd_kv_bank_damaged_total",
    "tierd_kv_reprefilled_tokens_total",
    "tierd_gpu_faults_total",
    "tierd_rows_discarded_total",
    "tierd_requests_failed",
    "tierd_first_token_late",
    "tierd_requests_running",
    "tierd_kv_pages_used",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("watched")
    write_llama(folder / "one.gguf", context=4096, seed=1)
    with daemon(folder, context=4096, settings=SETTINGS) as served:
        yield served


@pytest.fixture(scope="module")
def watched(served: Daemon) -> Iterator[Prometheus]:
    """A Prometheus that has seen the daemon before and after it was at work."""
    with (
        scraping(served.folder, [served.url.removeprefix("http://")]) as prometheus,
        httpx.Client(base_url=served.url, timeout=60, trust_env=False) as client,
    ):
        prometheus.wait_for("up == 1")
        work(client, served.folder)
        yield prometheus


def work(client: httpx.Client, folder: Path) -> None:
    """Have both models answer in turns, one with more streams than regions; and let some things fail."""

    def complete(model: str, **changes: object) -> None:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 24, "ignore_eos": True} | changes
        client.post("/v1/completions", json=body).raise_for_status()

    with ThreadPoolExecutor(4) as pool:
        for model in ("one", "tiny", "one"):
            complete(model)
            complete(model, prompt=PROMPT * 2)
        while not passes(client):  # the CPU has yet to be made ready
            crowd = [
                pool.submit(complete, "tiny", prompt=f"{PROMPT * 9} {n}", max_tokens=100, temperature=100)
                for n in range(4)
            ]
            for each in crowd:
                each.result()
    client.post("/v1/embeddings", json={"model": "tiny", "input": PROMPT}).raise_for_status()
    assert client.post("/v1/completions", json={"model": "no such model", "prompt": ""}).status_code == 404
    (socket,) = folder.rglob("admin.sock")
    at_socket(socket).begin("/models/load", {"path": str(folder / "missing.gguf"), "id": "missing"})


def passes(client: httpx.Client) -> float:
    """Return how much has run on the CPU instead."""
    counts = re.findall(r"^tierd_gpu_cpu_passes_total\{.*\} (.*)$", client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, counts))


def filled(expression: str) -> str:
    """Put values in the place of Grafana's variables."""
    return re.sub(r"\$(instance|model)\b", ".*", expression.replace("$__rate_interval", "1m"))


def test_it_is_what_its_tool_makes() -> None:
    assert PLACE.read_text() == dashboard(), "run `make pages`"


def test_panels_lie_beside_and_below_each_other() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        assert max(x for x, _ in own) < 24
        cells |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert all(panel["description"].endswith(".") for panel in PANELS)


@pytest.mark.parametrize(("title", "expression", "legend"), QUERIES)
def test_each_query_gets_data(watched: Prometheus, title: str, expression: str, legend: str) -> None:
    assert not all(map(math.isnan, values(watched, filled(expression))))
    for series in watched.wait_for(filled(expression)):
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= set(series["metric"])
    if not any(word in expression for word in CALM):  # at some time in the last minutes
        seen = values(watched, f"max_over_time(({filled(expression)})[2m:1s])")
        assert max(value for value in seen if not math.isnan(value)) > 0


def values(prometheus: Prometheus, expression: str) -> list[float]:
    """Wait until an expression has values, one for each series; return them."""
    return [float(series["value"][1]) for series in prometheus.wait_for(expression)]


def test_each_variable_has_values(watched: Prometheus) -> None:
    names = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert asked is not None
            series = watched.ask("series", **{"match[]": filled(asked[1])})
            names[variable["name"]] = {one[asked[2]] for one in series}
    assert names["model"] == {"one", "tiny"}
    assert len(names["instance"]) == 1


def test_promtool_has_nothing_to_say_of_what_is_exported(served: Daemon, watched: Prometheus) -> None:
    text = httpx.get(f"{served.url}/metrics", trust_env=False).text
    assert promtool("check", "metrics", given=text) == ""


def test_prometheus_takes_all_that_is_exported(watched: Prometheus) -> None:
    """It asks for OpenMetrics, and refuses the whole of a scrape for one line that is wrong."""
    (target,) = watched.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    kinds = {name: entries[0]["type"] for name, entries in watched.ask("metadata").items()}
    assert kinds["tierd_requests"] == "counter"
    assert kinds["tierd_time_to_first_token_seconds"] == "histogram"
