"""What a scrape costs: CPU time of the server for /metrics, by how many models there are.

Usage: python tests/bench/scrape.py [--models N...] [--rounds N]

All models have all their series, those of a device too. "longest" is the longest that streams wait for a
scrape: between two metrics the loop goes on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from prometheus_client import generate_latest

from tierd.core import PassReason
from tierd.http.exposition import PLAIN, Exposition
from tierd.metrics import Metrics


def full(models: int) -> Metrics:
    """Return metrics of so many models."""
    metrics = Metrics("bench")
    for id in map(str, range(models)):
        metrics.enter(id, device=True)
        for reason in PassReason:
            metrics.passes.labels(id, reason)
        for count in range(100):
            metrics.inter_token.labels(id).observe(count / 100)
    return metrics


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median CPU time of this thread."""
    times = []
    for _ in range(rounds + 1):  # the first one does not count
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return 1000 * statistics.median(times[1:])


def longest(exposition: Exposition, rounds: int) -> float:
    """Return the median of the longest part, in milliseconds."""
    worst = []
    for _ in range(rounds):
        parts, slowest, more = exposition.parts(PLAIN), 0.0, True
        while more:
            began = time.thread_time()
            more = next(parts, None) is not None
            slowest = max(slowest, time.thread_time() - began)
        worst.append(slowest)
    return 1000 * statistics.median(worst)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, nargs="+", default=[1, 2, 4, 8], help="how many (1 2 4 8)")
    parser.add_argument("--rounds", type=int, default=50, help="scrapes that count (50)")
    options = parser.parse_args()
    print("models  series  KiB   scrape ms  longest ms  client library's ms")
    for models in options.models:
        metrics = full(models)
        exposition = Exposition(metrics.registry)
        text = "".join(exposition.parts(PLAIN))
        series = sum(not line.startswith("#") for line in text.splitlines())
        scrape = milliseconds(lambda: "".join(exposition.parts(PLAIN)), options.rounds)  # noqa: B023
        theirs = milliseconds(lambda: generate_latest(metrics.registry), options.rounds)  # noqa: B023
        print(
            f"{models:6}  {series:6}  {len(text) / 1024:3.0f}  {scrape:10.2f}"
            f"  {longest(exposition, options.rounds):10.2f}  {theirs:19.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
