"""The host as a place for models."""

from __future__ import annotations

from tierd.backends.protocol import Backend
from tierd.kv.bank import Bank
from tierd.kv.origin import origin_of
from tierd.kv.paged import PagedHome
from tierd.kv.sizing import PromisedMemory
from tierd.models import GGUFFile
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.progress import logged
from tierd.settings import ModelSettings, Settings
from tierd.slot import Placed
from tierd.tier.host_needs import host_need


class HostSite:
    """A backend in the machine's own memory. May be used from any thread."""

    outcome = "cpu"

    def __init__(
        self, backend: Backend, promised: PromisedMemory | None = None, *, bank: Bank | None = None
    ) -> None:
        """promised: what the models of the process may still take; None: a site has its own.

        bank: where rows may be found that no page has. The engine thread alone uses it.
        """
        self._backend = backend
        self._bank = bank
        self._promised = promised or PromisedMemory()

    @property
    def backend(self) -> Backend:
        """What models run on here."""
        return self._backend

    def over(self, backend: Backend) -> HostSite:
        """Return a site in the same memory whose models run on another backend."""
        return HostSite(backend, self._promised, bank=self._bank)

    def put(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Placed:
        """See `Site`. ModelError where memory does not hold it, SettingsError for too long a context."""
        backend, promised = self._backend, self._promised
        need = host_need(backend, model, settings, plan, file)
        need.check_working()
        size = need.cache(need.budget(settings))
        need.promise(promised, size.pages)
        codec = KV_CODECS[model.codec]
        try:
            executor = backend.compile(
                plan,
                file,
                codec=codec,
                pages=size.pages,
                max_rows=need.max_rows,
                progress=logged(f"model={model.id} packing its weights"),
            )
        except BaseException:
            promised.settle(model.id, 0)
            raise
        promised.settle(model.id, size.pages * need.page)
        return Placed(
            home=PagedHome(
                executor,
                model=model.id,
                origin=origin_of(file.identity(), codec.name, backend.numerics),
                bank=self._bank,
                prefix_cache=settings.kv.prefix_cache,
            ),
            context=size.context,
            outcome=self.outcome,
            device=backend.name,
            codec=codec.name,
            prefill_window=need.max_rows,
        )

    def release(self, model: str) -> None:
        """Note that a model is not there any more."""
        self._promised.settle(model, 0)
