"""What `tierd size` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tierd.cli.size import SizeReport
from tierd.cli.tables import columns, say, standard_output
from tierd.kv.sizing import mib
from tierd.tier.footprint import Footprint
from tierd.tier.rails_footprint import RailsFootprint

SUSTAINED = (
    "not in a file's header, so it is measured: serve the model, send it your load, and take the rate of "
    "tierd_generated_tokens_total at /metrics; or run `make bench` in tierd's source"
)

_ROWS: Mapping[str, Callable[[Footprint], str]] = {
    "weights": lambda place: mib(place.weights),
    "keys and values": lambda place: mib(place.kv),
    "what steps compute with": lambda place: mib(place.working),
    "together": lambda place: mib(place.total),
    "there is": lambda place: mib(place.room),
    "positions of a stream": lambda place: f"{place.context:,}",
    "streams whose K/V is there at a time": lambda place: f"{place.streams:,}",
    "most that there is room for": lambda place: f"{place.most_streams:,}",
}


def document(report: SizeReport) -> dict[str, Any]:
    """Return a report with its sums, as `--json` prints it."""
    places = {"host": report.host, "device": report.device}
    sums = {
        name: None if place is None else dataclasses.asdict(place) | {"total": place.total}
        for name, place in places.items()
    }
    return dataclasses.asdict(report) | sums | {"sustained": None, "sustained_by": SUSTAINED}


def print_report(report: SizeReport) -> None:
    """Print a report for people."""
    console = standard_output()
    say(
        console,
        f"{report.model}: {report.architecture}, trained for {report.trained:,} positions; "
        f"{report.streams} streams, K/V {report.kv}\n",
    )
    places = [place for place in (report.host, report.device) if place is not None]
    table = columns("", right=tuple(place.place for place in places))
    for label, of in _ROWS.items():
        table.add_row(label, *(of(place) for place in places))
    console.print(table)
    say(console, f"\nBesides, tokenizer and template take {mib(report.text)} of the machine's memory.")
    for place in places:
        if place.decline:
            whole = "" if place is report.host else " whole"
            say(console, f"It cannot be{whole} on {place.place}: {place.decline}.")
    if report.no_device:
        say(console, f"It cannot be whole on a GPU: {report.no_device}.")
    if report.rails is not None:
        say(console, _on_rails(report.rails))
    say(console, "\nHow many it serves is bounded by each of these:")
    for limit in _limits(report, places):
        say(console, f"- {limit}")


def _on_rails(rails: RailsFootprint) -> str:
    if rails.decline:
        return f"Nor can a part of it be on a GPU, on rails: {rails.decline}."
    return (
        f"On rails, a GPU with {mib(rails.room)} for it has the matmuls of {rails.layers} of "
        f"{rails.all_layers} layers, for prompts. Of these bytes {mib(rails.taken)} are taken: "
        f"{mib(rails.tensors)} there, and for {mib(rails.copies)} of copies that Kompute keeps where the "
        f"machine sees them, besides {mib(rails.shared)} to carry them and the {mib(rails.host)} that the "
        f"model takes of its memory."
    )


def _limits(report: SizeReport, places: Sequence[Footprint]) -> Iterator[str]:
    memory = [
        f"{place.streams:,} on {place.place}, which has room for {place.most_streams:,}"
        for place in places
        if not place.decline
    ]
    yield f"Streams resident by memory, of {report.streams:,}: {'; '.join(memory) or 'none'}."
    yield (
        f"Rows of a step: {report.host.rows:,}, one for each of {report.streams} streams that generate and "
        f"{report.prompt_rows:,} of prompts (engine.chunk_rows)."
    )
    yield f"Queue: {report.queue} more requests wait (queue.capacity), further ones are answered with 429."
    yield f"Tokens a second: {SUSTAINED}."
