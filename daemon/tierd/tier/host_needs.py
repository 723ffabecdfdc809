"""What a model needs of the machine's own memory, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from tierd.backends.protocol import SCORED_ROWS, Backend
from tierd.errors import ModelError
from tierd.kv.sizing import CacheSize, PromisedMemory, available_memory, memory_budget, size_cache
from tierd.models import GGUFFile
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.settings import ModelSettings, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeed:
    """A model's, in bytes but for max_rows.

    max_rows: of a step. weights: packed. step: the buffers of a step. page: positions of K/V of every layer,
    so many as page_positions.
    """

    model: ModelSettings
    trained: int
    max_rows: int
    weights: int
    step: int
    page: int
    page_positions: int

    @property
    def working(self) -> int:
        """What it takes besides K/V."""
        return self.weights + self.step

    def budget(self, settings: Settings) -> int:
        """Return the bytes that there are for its K/V, as memory is now."""
        return memory_budget(settings.kv.memory_mb, max(1, len(settings.models)), self.working)

    def cache(self, budget: int) -> CacheSize:
        """Return the pages that it gets of a budget. See `size_cache`."""
        return size_cache(
            trained=self.trained,
            asked=self.model.context,
            streams=self.model.streams,
            page_positions=self.page_positions,
            page_bytes=self.page,
            budget=budget,
        )

    def check_working(self) -> None:
        """Raise ModelError where taking its working memory would leave the machine without any."""
        there = available_memory()
        if self.working > there:
            raise ModelError(
                f"its weights and the buffers of a step of {self.max_rows} rows need "
                f"{self.working >> 20:,} MiB, but only {there >> 20:,} MiB are free; serve fewer models or "
                "smaller ones, or lower engine.chunk_rows"
            )

    def promise(self, promised: PromisedMemory, pages: int) -> None:
        """Promise the model so many pages, and what it takes besides. Raises ModelError."""
        promised.promise(self.model.id, pages * self.page, self.working, available_memory())


def host_need(
    backend: Backend, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile
) -> HostNeed:
    """Return what a model needs, which takes its file's header only.

    Raises UnsupportedModelError where its heads do not fit the codec.
    """
    max_rows = settings.engine.chunk_rows + model.streams
    return HostNeed(
        model=model,
        trained=plan.context,
        max_rows=max_rows,
        weights=backend.weight_bytes(plan, file),
        step=backend.step_bytes(plan, max_rows, model.streams + SCORED_ROWS),
        page=backend.page_bytes(plan, KV_CODECS[model.codec]),
        page_positions=backend.page_positions,
    )
