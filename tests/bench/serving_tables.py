"""The table of serving.py's results: what several clients get at the same time, of either server."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from contest import LLAMA
from table import Result, Table, duration, processor

FOLDER = Path(__file__).resolve().parent / "results" / "serving"
TIERD = "tierd"


def ratio(load: dict[str, Any]) -> float:
    """Return how many times llama.cpp's throughput tierd's is, with one number of clients."""
    ours, theirs = (statistics.median(load["sides"][name]["rates"]) for name in (TIERD, LLAMA))
    return ours / theirs


def turns(result: Result) -> tuple[float, float]:
    """Return the median seconds to the first token: of a second turn, and of a fresh prompt."""
    second, fresh = (
        statistics.median(turn[name]["first"] for turn in result["turns"]) for name in ("second", "fresh")
    )
    return second, fresh


def rows(result: Result) -> list[list[str]]:
    """Return a row for each number of clients and side: tokens per second, and what a client waits."""
    heading = ["", "tokens/s", "first token, half", "99 of 100", "next text, half", "99 of 100"]
    body = []
    for load in result["loads"]:
        clients = f"{load['clients']} client{'s' if load['clients'] > 1 else ''}"
        for name, side in load["sides"].items():
            rate = f"{statistics.median(side['rates']):,.0f}"
            if name == TIERD:
                rate += f" ({ratio(load):.2f})"
            waits = [duration(side[what][part]) for what in ("first", "gap") for part in ("p50", "p99")]
            body.append([f"{clients}, {name}", rate, *waits])
    return [heading, *body]


def _note(result: Result) -> str:
    options, server = result["options"], result["server"]
    note = (
        f"{result['files'][0]['title']} over HTTP on {result['date'][:10]}, both with {options['threads']} "
        f"threads on {processor(result)}. All clients ask at once, each with a prompt of {options['prompt']} "
        f"words of its own, for {options['tokens']} tokens. Tokens per second of all clients together, "
        f"reading of prompts included, in parentheses times llama.cpp's; medians of {options['rounds']} "
        "rounds. Waits are those of all clients of all rounds. llama.cpp's server is "
        f"{server['name']} ({server['version']})"
    )
    if server["one_at_a_time"]:
        note += ", which computes one stream at a time while others wait for their first token"
    second, fresh = turns(result)
    return (
        f"{note}. A second turn of {options['prompt']} tokens behind a first of {options['turn']:,} has its "
        f"first token from tierd after {duration(second)}, a fresh prompt of as many after "
        f"{duration(fresh)}: {second / fresh:.2f} times; medians of {options['turns']}."
    )


SERVING = Table(FOLDER, "made by tests/bench/tables.py, serving", rows, _note)
