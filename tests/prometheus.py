"""A real Prometheus that scrapes what a test serves, and its tool."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
RULES = REPOSITORY / "deploy" / "prometheus" / "tierd.rules.yml"
PATIENCE_S = 20.0


def command(name: str) -> str:
    """Return the path of "prometheus" or "promtool"."""
    path = REPOSITORY / "build" / "prometheus" / name
    if not path.exists():
        pytest.fail(f"{path} is missing; `make build/prometheus/.unpacked` brings it", pytrace=False)
    return str(path)


def promtool(*arguments: str, given: str = "", folder: Path = REPOSITORY) -> str:
    """Run it on what it is given, and return what it says; it must have nothing to object."""
    run = subprocess.run(
        [command("promtool"), *arguments],
        input=given,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    return said


@dataclass(frozen=True)
class Prometheus:
    """One that runs. interval_s: between two scrapes."""

    http: httpx.Client
    interval_s: float

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        response = self.http.get(f"/api/v1/{path}", params=parameters)
        answer = response.json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that there are now; each has a "metric" and a "value"."""
        result: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return result

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """Wait until a query has data, and return it."""
        end = time.monotonic() + PATIENCE_S
        while not (found := self.query(expression)):
            assert time.monotonic() < end, f"no data for {expression}"
            time.sleep(self.interval_s / 4)
        return found


@contextmanager
def scraping(folder: Path, targets: Sequence[str], interval_s: float = 0.25) -> Iterator[Prometheus]:
    """Run a Prometheus on a free port that scrapes the targets, "host:port", by the job of the rules."""
    config = folder / "prometheus.yml"
    every = f"{round(1000 * interval_s)}ms"
    rules = RULES.read_text().replace("interval: 30s", f"interval: {every}")
    (folder / "tierd.rules.yml").write_text(rules)
    config.write_text(
        f"global: {{scrape_interval: {every}, evaluation_interval: {every}}}\n"
        "rule_files: [tierd.rules.yml]\n"
        f"scrape_configs: [{{job_name: tierd, static_configs: [{{targets: {list(targets)}}}]}}]\n"
    )
    arguments = [
        command("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    log = folder / "prometheus.log"
    with log.open("w") as errors, subprocess.Popen(arguments, stderr=errors) as process:
        try:
            end = time.monotonic() + PATIENCE_S
            while "ready to receive web requests" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.01)
            place = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
            assert place is not None, log.read_text()
            with httpx.Client(base_url=f"http://{place[1]}", trust_env=False) as client:
                yield Prometheus(client, interval_s)
        finally:
            process.kill()
