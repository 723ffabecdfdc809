"""`tierd size`: what a model would take, in bytes, and what bounds the streams that it could serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierd.backends import library
from tierd.backends.host import HostBackend
from tierd.chat.renderer import build_renderer
from tierd.chat.tokenizer import build_tokenizer
from tierd.errors import ModelError
from tierd.kv.sizing import private_memory
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import Plan
from tierd.settings import ModelSettings, Settings, model_at_run_time, models_directory
from tierd.slot import read_template
from tierd.tier.footprint import Footprint, host_footprint
from tierd.tier.rails_footprint import RailsFootprint, rails_footprint
from tierd.tier.want import Want


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeReport:
    """A model's. Sizes are bytes.

    trained: positions it was trained for. streams: served at a time. prompt_rows: of a step. queue: requests
    that wait besides. text: what tokenizer and chat template take of the machine's memory, wherever it runs.
    host, device: what it would take there; no_device: why there is none that could have it, "" when it could.
    rails: what a part of it would take of a device that does not hold it whole, None where none may.
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
    rails: RailsFootprint | None


def describe(
    settings: Settings, name: str, table: Mapping[str, Any], vram_mb: int | None = None
) -> SizeReport:
    """Foresee a model of the settings, or of a file. table: keys of [[models]] that have other values.

    vram_mb: MiB of a device, instead of gpu.vram_limit_mb; 0 for all of it. Raises ModelError for what is no
    sound model, SettingsError for values that cannot be.
    """
    if vram_mb is not None:
        settings = dataclasses.replace(settings, gpu=dataclasses.replace(settings.gpu, vram_limit_mb=vram_mb))
    model = _model(settings, name, table)
    with GGUFFile.open(model.path) as file, closing(HostBackend(1)) as backend:
        plan = build_plan(file)
        host = host_footprint(backend, model, settings, plan, file)
        text = _text_bytes(model, file)
        device, room = _device(model, settings, plan, file)
        whole = isinstance(device, Footprint) and not device.decline
        may = Want.of(model, settings).rails and room and not whole
        rails = rails_footprint(model, plan, file, host, room) if may else None
    return SizeReport(
        model=name if model.id == name else model.path.stem,
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
        rails=rails,
    )


def _model(settings: Settings, name: str, table: Mapping[str, Any]) -> ModelSettings:
    configured = next((model for model in settings.models if model.id == name), None)
    if configured is not None:
        return model_at_run_time(settings, table, configured)
    places = [folder / name for folder in (Path.cwd(), models_directory())]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        ids = ", ".join(model.id for model in settings.models) or "of which there are none"
        raise ModelError(
            f"{name} is no file here or in {models_directory()}, nor a model of the settings ({ids})"
        )
    # A file may have any name, unlike a model that is served.
    return model_at_run_time(settings, {"id": "model", "path": str(path), **table})


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


def _device(
    model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile
) -> tuple[Footprint | str, int]:
    """Return what it takes of the device, or why it cannot be there whole, and the bytes for models there.

    Where there is no device, these are as many as are to be supposed.
    """
    if settings.gpu.mode == "off":
        return "gpu.mode is off", 0
    from tierd.tier.availability import Availability
    from tierd.tier.device_footprint import device_footprint

    with closing(Availability(settings.gpu)) as availability:
        verdict = availability.backend_available("resident")
        if verdict.device is None:
            return verdict.reason, settings.gpu.vram_limit_mb << 20
        if not Want.of(model, settings).whole:
            return "gpu.mode is rails", verdict.device.budget()
        return device_footprint(verdict.device, model, settings, plan, file), verdict.device.budget()
