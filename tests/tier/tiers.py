"""Tiers over real sites, and the settings of a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tierd.backends.host import HostBackend
from tierd.settings import EngineSettings, GPUSettings, KVSettings, ModelSettings, Settings
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier

TierOf = Callable[..., tuple[Tier, Settings]]


def model(path: Path, id: str = "tiny", **options: object) -> ModelSettings:
    return ModelSettings(id=id, path=path, streams=2, **options)  # type: ignore[arg-type]


def build(stack: ExitStack, *models: ModelSettings, **gpu: object) -> tuple[Tier, Settings]:
    """Return a tier that the stack closes. gpu: settings of that section; software devices count."""
    settings = Settings(
        engine=EngineSettings(threads=1, chunk_rows=16),
        kv=KVSettings(memory_mb=16),
        gpu=GPUSettings(**{"allow_software": True, **gpu}),  # type: ignore[arg-type]
        models=models,
    )
    backend = HostBackend(settings.engine.threads)
    stack.callback(backend.close)
    tier = Tier(settings, HostSite(backend), backend.pool)
    stack.callback(tier.close)
    return tier, settings
