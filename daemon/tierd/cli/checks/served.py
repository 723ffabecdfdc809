"""The models of the settings: whether each can be served, and where it would run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from tierd.backends.host import HostBackend
from tierd.chat.renderer import build_renderer
from tierd.chat.tokenizer import build_tokenizer
from tierd.cli.checks.finding import Finding, note, problem
from tierd.errors import ModelError, RequiredTierError, SettingsError
from tierd.models import GGUFFile, build_plan
from tierd.settings import ModelSettings, Settings
from tierd.slot import read_template
from tierd.tier.footprint import Footprint, host_footprint
from tierd.tier.placing import Foreseen, required_error


def served(settings: Settings, foreseen: Mapping[str, Foreseen] | str) -> list[Finding]:
    """Say of each model whether it reaches what it must. foreseen: by id, or why it is not known."""
    return [
        _served(model, settings, foreseen if isinstance(foreseen, str) else foreseen.get(model.id))
        for model in settings.models
    ]


def _served(model: ModelSettings, settings: Settings, place: Foreseen | str | None) -> Finding:
    subject, required = f"model {model.id}", settings.required(model)
    try:
        on_host = _read(model, settings)
    except (ModelError, SettingsError) as error:
        return problem(subject, str(error), "", type(error))
    if isinstance(place, str):
        return note(subject, f"it is not known where it would run: {place}")
    if place is not None and place.outcome != "cpu":
        turns = ", in turns with others" if place.turns else ""
        return Finding(subject=subject, text=f"runs as {place.outcome}{turns}")
    decline = "" if place is None else place.decline
    if required != "none":
        remedy = "lift what keeps the GPU from it, or set require = 'none'"
        return problem(subject, str(required_error(required, decline)), remedy, RequiredTierError)
    if on_host.decline:
        return problem(subject, on_host.decline, "", ModelError)
    return (
        note(subject, f"runs on the CPU: {decline}")
        if decline
        else Finding(subject=subject, text="runs on the CPU")
    )


def _read(model: ModelSettings, settings: Settings) -> Footprint:
    """Read what a model's file says, and foresee the model on the CPU. Raises ModelError, SettingsError."""
    with GGUFFile.open(model.path) as file, closing(HostBackend(1)) as backend:
        plan = build_plan(file)
        build_renderer(file, build_tokenizer(file), read_template(model))
        return host_footprint(backend, model, settings, plan, file)
