"""`tierd size`: what a model would take, in bytes, and the limits that follow from that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierd.backends import library
from tierd.backends.host import HostBackend
from tierd.chat.renderer import build_renderer
from tierd.chat.tokenizer import build_tokenizer
from tierd.cli.tables import columns, say, standard_output
from tierd.kv.sizing import mib, private_memory
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import Plan
from tierd.settings import ModelSettings, Settings, model_at_run_time, models_directory
from tierd.slot import read_template
from tierd.tier.footprint import Footprint, host_footprint

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeReport:
    """A model's. Sizes are bytes.

    trained: positions it was trained for. streams: served at a time. prompt_rows: of a step. queue: requests
    that wait besides. text: what tokenizer and chat template take of the machine's memory, wherever it runs.
    host, device: what it would take there; no_device: why there is none that could have it, "" when it could.
    """

    model: str
    path: str
    architecture: str
    trained: int
    kv: str
    streams: int
    prompt_rows: int
    queue: int
    text: int
    host: Footprint
    device: Footprint | None
    no_device: str


def describe(settings: Settings, name: str, table: Mapping[str, Any]) -> SizeReport:
    """Foresee a model of the settings, or of a file. table: keys of [[models]] that have other values.

    Raises ModelError for what is no sound model, SettingsError for values that cannot be.
    """
    model = _model(settings, name, table)
    with GGUFFile.open(model.path) as file, closing(HostBackend(1)) as backend:
        plan = build_plan(file)
        host = host_footprint(backend, model, settings, plan, file)
        text = _text_bytes(model, file)
        device = _device(model, settings, plan, file)
    return SizeReport(
        model=model.id,
        path=str(model.path),
        architecture=plan.architecture,
        trained=plan.context,
        kv=model.codec,
        streams=model.streams,
        prompt_rows=settings.engine.chunk_rows,
        queue=settings.queue.capacity,
        text=text,
        host=host,
        device=device if isinstance(device, Footprint) else None,
        no_device="" if isinstance(device, Footprint) else device,
    )


def _model(settings: Settings, name: str, table: Mapping[str, Any]) -> ModelSettings:
    configured = next((model for model in settings.models if model.id == name), None)
    if configured is not None:
        return model_at_run_time(settings, table, configured)
    beside = Path(name).absolute()
    elsewhere = not beside.exists() and (models_directory() / name).exists()
    return model_at_run_time(settings, {"path": name if elsewhere else str(beside), **table})


def _text_bytes(model: ModelSettings, file: GGUFFile) -> int:
    """Return what tokenizer and template take: they are built, as their size is no sum of the file's."""
    library.trim()
    before = private_memory()
    tokenizer = build_tokenizer(file)
    built = tokenizer, build_renderer(file, tokenizer, read_template(model))
    library.trim()
    grown = private_memory() - before
    del built
    return max(0, grown)


def _device(model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Footprint | str:
    if settings.gpu.mode == "off":
        return "gpu.mode is off"
    from tierd.tier.availability import Availability
    from tierd.tier.device_footprint import device_footprint

    with closing(Availability(settings.gpu)) as availability:
        verdict = availability.backend_available("resident")
        if verdict.device is None:
            return verdict.reason
        return device_footprint(verdict.device, model, settings, plan, file)


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
        f"{report.model}: {report.architecture}, trained for {report.trained} positions; "
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
            say(console, f"It cannot be on {place.place}: {place.decline}")
    if report.no_device:
        say(console, f"It cannot be on a GPU: {report.no_device}")
    say(
        console,
        f"\nRows of a step: {report.host.rows}, one for each of {report.streams} streams that generate and "
        f"{report.prompt_rows} of prompts (engine.chunk_rows).\n"
        f"Queue: {report.queue} more requests wait (queue.capacity), further ones are answered with 429.\n"
        f"Tokens a second: {SUSTAINED}.",
    )
