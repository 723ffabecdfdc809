"""`tierd models`: what the configured files are, and whether they can be served."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from tierd.chat.renderer import build_renderer
from tierd.chat.tokenizer import build_tokenizer
from tierd.errors import ModelError, SettingsError
from tierd.models.families import build_plan
from tierd.models.gguf import GGUFFile
from tierd.settings import ModelSettings, Settings
from tierd.slot import read_template
from tierd.tier.placing import Foreseen, foresee, required_error
from tierd.tier.status import BIT_FOR_BIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model file. What could not be read is None.

    size: bytes of the file. weights: format name -> its share of the weights' bytes, largest first.
    context: positions it was trained for. problem: why it cannot be served; None when it can.
    outcome: where it would run if it were loaded now. decline: why not on the device, "" when it would or is
    not meant to. products: how the device would multiply by its matrices, "" on the host. turns: whether it
    may have to leave the device for others.
    """

    id: str
    path: str
    default: bool
    architecture: str | None = None
    size: int | None = None
    weights: Mapping[str, float] | None = None
    context: int | None = None
    chat: bool | None = None
    outcome: str | None = None
    decline: str = ""
    products: str = ""
    turns: bool = False
    problem: str | None = None


def describe(settings: Settings) -> list[ModelReport]:
    """Say of all models what they are and where they would run."""
    foreseen = foresee(settings)
    return [
        _place(report, foreseen.get(report.id), settings.required(model))
        for model, report in ((model, _describe(model)) for model in settings.models)
    ]


def _place(report: ModelReport, foreseen: Foreseen | None, required: str) -> ModelReport:
    """Add where a model would run, unless it cannot be served."""
    if report.problem is not None or foreseen is None:
        return report
    if foreseen.decline and required != "none":
        return dataclasses.replace(report, problem=str(required_error(required, foreseen.decline)))
    return dataclasses.replace(report, **dataclasses.asdict(foreseen))


def _describe(model: ModelSettings) -> ModelReport:
    """Open a model's file and see whether a plan and a tokenizer can be made of it."""
    report = ModelReport(id=model.id, path=str(model.path), default=model.default)
    try:
        with GGUFFile.open(model.path) as file:
            architecture = file.text("general.architecture")
            report = dataclasses.replace(
                report,
                architecture=architecture,
                size=model.path.stat().st_size,
                weights=_weight_shares(file),
                context=file.integer(f"{architecture}.context_length"),
            )
            build_plan(file)
            renderer = build_renderer(file, build_tokenizer(file), read_template(model))
            return dataclasses.replace(report, chat=renderer is not None)
    except (ModelError, SettingsError, OSError) as error:
        return dataclasses.replace(report, problem=str(error))


def _weight_shares(file: GGUFFile) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for tensor in file.tensors.values():
        counts[tensor.format.name] += tensor.nbytes
    return {name: round(count / counts.total(), 4) for name, count in counts.most_common()}


def print_json(reports: Sequence[ModelReport]) -> None:
    """Print the reports as a JSON array."""
    click.echo(json.dumps([dataclasses.asdict(report) for report in reports], indent=2))


def print_table(reports: Sequence[ModelReport]) -> None:
    """Print the reports as a table; below it, what cannot be served, or not as expected, and why."""
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "architecture", "size", "weights", "context", "serves", "runs on"):
        justify: JustifyMethod = "right" if heading in ("size", "context") else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading == "runs on")
    for report in reports:
        table.add_row(
            escape(report.id) + (" (default)" if report.default else ""),
            escape(report.architecture or "?"),
            "?" if report.size is None else f"{report.size / 1e6:,.0f} MB",
            "?" if report.weights is None else _mix(report.weights),
            "?" if report.context is None else f"{report.context:,}",
            _serves(report),
            report.outcome or "",
        )
    console = Console(highlight=False)
    console.print(table)
    for report in reports:
        if report.problem is not None:
            console.print(f"\n{report.id}: {report.problem}", style="red", markup=False, soft_wrap=True)
    for remark, models in _by_remark(reports).items():
        console.print(f"\n{', '.join(models)}: {remark}", style="yellow", markup=False, soft_wrap=True)


def _by_remark(reports: Sequence[ModelReport]) -> dict[str, list[str]]:
    """Return the models that run in another way than one would expect, by what is to be said of them."""
    remarks: dict[str, list[str]] = {}
    for report in reports:
        if report.decline:
            where = "not on the GPU" if report.outcome == "cpu" else "not whole on the GPU"
            remarks.setdefault(f"{where}: {report.decline}", []).append(report.id)
        if report.turns:
            remarks.setdefault("take turns on the GPU, which does not hold all models", []).append(report.id)
        if report.products not in ("", BIT_FOR_BIT):
            remarks.setdefault(f"products are {report.products}", []).append(report.id)
    return remarks


def _mix(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in weights.items() if share >= 0.005)


def _serves(report: ModelReport) -> str:
    if report.problem is not None:
        return "[red]no[/red]"
    return "chat, completions" if report.chat else "completions"
