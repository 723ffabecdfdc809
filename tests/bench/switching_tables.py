"""The tables of switching.py's results: returns to a conversation, phases of switches, calls meanwhile."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from table import Result, Table, duration, processor

FOLDER = Path(__file__).resolve().parent / "results" / "switching"
PARTS = {"p50": "half", "p99": "99 of 100", "most": "all"}


def returns(result: Result) -> list[list[str]]:
    """Return a row for each conversation: its first prompt, and its later ones."""
    heading = ["", "first prompt", "read in", "goes on in", "at most", "for a cold one"]
    body = []
    for tier, measured in result["tiers"].items():
        for talk in measured["conversations"]:
            cold, turns = talk["cold"], [turn["first"] for turn in talk["returns"]]
            back = statistics.median(turns)
            row = [f"{_title(result, talk['model'])}, {_where(tier, measured)}", f"{cold['prompt']:,} tokens"]
            times = [duration(cold["first"]), duration(back), duration(max(turns))]
            body.append([*row, *times, f"1/{cold['first'] / back:.0f}"])
    return [heading, *body]


def phases(result: Result) -> list[list[str]]:
    """Return a row for each model that comes: what each phase took."""
    switches = _switches(result)
    names = list(dict.fromkeys(name for switch in switches for name in switch["phases"]))
    body = []
    for came in dict.fromkeys(switch["came"] for switch in switches):
        those = [switch for switch in switches if switch["came"] == came]
        found = [[switch["phases"].get(name, 0.0) for switch in those] for name in names]
        found.append([switch["seconds"] for switch in those])
        body.append([f"{_title(result, came)} comes", *(duration(statistics.median(one)) for one in found)])
    return [["", *names, "in all"], *body]


def calls(result: Result) -> list[list[str]]:
    """Return a row for each path: within what time how many of its calls are answered, by tier."""
    tiers = result["tiers"]
    heading = [f"{_where(tier, one)}, {words}" for tier, one in tiers.items() for words in PARTS.values()]
    paths = next(iter(tiers.values()))["calls"]["paths"]
    body = [
        [
            f"`{path}`",
            *(duration(one["calls"]["paths"][path][part]) for one in tiers.values() for part in PARTS),
        ]
        for path in paths
    ]
    return [["", *heading], *body]


def _returns_note(result: Result) -> str:
    return (
        f"Time to the first token over HTTP on {result['date'][:10]}, with {processor(result)}: of a first "
        "prompt, and of the conversation's later turns, before each of which the other model answered; "
        f"medians of {result['options']['returns']}. The GPU's memory was limited so that it held one model."
    )


def _phases_note(result: Result) -> str:
    options = result["options"]
    return (
        f"Medians of {options['returns']} switches each by `POST /models/activate`, while the first "
        f"conversation has a stream, behind more than {options['conversation']:,} tokens."
    )


def _calls_note(result: Result) -> str:
    counts = [(_where(tier, one), one["calls"]["during"]) for tier, one in result["tiers"].items()]
    during = "; ".join(
        f"{where}: {', '.join(f'{count:,} in a {what}' for what, count in found.items() if count)}"
        for where, found in counts
    )
    return (
        f"{result['options']['calls']} calls of each, one after the other, all while a stream runs and a "
        f"model is loaded or switched ({during})."
    )


def _switches(result: Result) -> list[dict[str, Any]]:
    return [switch for measured in result["tiers"].values() for switch in measured["switches"]]


def _title(result: Result, model: str) -> str:
    titles: list[str] = [file["title"] for file in result["files"] if file["id"] == model]
    return titles[0]


def _where(tier: str, measured: dict[str, Any]) -> str:
    return "CPU" if tier == "cpu" else str(measured["device"]).partition(" (")[0]


RETURNS = Table(FOLDER, "made by tests/bench/tables.py, returns", returns, _returns_note)
PHASES = Table(FOLDER, "made by tests/bench/tables.py, phases", phases, _phases_note)
CALLS = Table(FOLDER, "made by tests/bench/tables.py, calls", calls, _calls_note)
