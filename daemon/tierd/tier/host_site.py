"""The host as a place for models."""

from __future__ import annotations

from tierd.backends.protocol import Backend
from tierd.errors import ModelError
from tierd.kv.paged import PagedHome
from tierd.kv.sizing import PromisedMemory, available_memory, memory_budget, size_cache
from tierd.models import GGUFFile
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.progress import logged
from tierd.settings import ModelSettings, Settings
from tierd.slot import Placed


class HostSite:
    """A backend in the machine's own memory. May be used from any thread."""

    outcome = "cpu"

    def __init__(self, backend: Backend, promised: PromisedMemory | None = None) -> None:
        """promised: what the models of the process may still take; None: a site has its own."""
        self._backend = backend
        self._promised = promised or PromisedMemory()

    def put(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Placed:
        """See `Site`. ModelError where memory does not hold it, SettingsError for too long a context."""
        backend, promised = self._backend, self._promised
        max_rows = settings.engine.chunk_rows + model.streams
        working = backend.working_bytes(plan, file, max_rows)
        _check_memory(working, max_rows)
        codec = KV_CODECS[model.codec]
        page_bytes = backend.page_bytes(plan, codec)
        size = size_cache(
            trained=plan.context,
            asked=model.context,
            streams=model.streams,
            page_positions=backend.page_positions,
            page_bytes=page_bytes,
            budget=memory_budget(settings.kv.memory_mb, max(1, len(settings.models)), working),
        )
        pool = size.pages * page_bytes
        promised.promise(model.id, pool, working, available_memory())
        try:
            executor = backend.compile(
                plan,
                file,
                codec=codec,
                pages=size.pages,
                max_rows=max_rows,
                progress=logged(f"model={model.id} packing its weights"),
            )
        except BaseException:
            promised.settle(model.id, 0)
            raise
        promised.settle(model.id, pool)
        return Placed(
            home=PagedHome(executor, prefix_cache=settings.kv.prefix_cache),
            context=size.context,
            outcome=self.outcome,
            device=backend.name,
            codec=codec.name,
            prefill_window=max_rows,
        )

    def release(self, model: str) -> None:
        """Note that a model is not there any more."""
        self._promised.settle(model, 0)


def _check_memory(needed: int, max_rows: int) -> None:
    """Raise ModelError where taking so many bytes would leave the machine without memory."""
    there = available_memory()
    if needed > there:
        raise ModelError(
            f"its weights and the buffers of a step of {max_rows} rows need {needed >> 20:,} MiB, but only "
            f"{there >> 20:,} MiB are free; serve fewer models or smaller ones, or lower engine.chunk_rows"
        )
