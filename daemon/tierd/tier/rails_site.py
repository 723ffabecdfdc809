"""The device as a place for parts of models: the large matmuls of as many layers as it has room for."""

from __future__ import annotations

import dataclasses
import logging
import threading
from dataclasses import dataclass

from tierd.backends.host import HostBackend
from tierd.backends.rails.backend import Demand, RailsBackend, demand_of
from tierd.backends.rails.cuts import of_layers
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.rails.products import Products
from tierd.errors import DeviceMemoryError, OrderError
from tierd.kv.home import Home
from tierd.kv.sizing import check_context
from tierd.models import GGUFFile
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.progress import logged
from tierd.settings import ModelSettings, Settings
from tierd.slot import Placed
from tierd.tier.device_site import DeviceSite
from tierd.tier.host_site import HostSite
from tierd.tier.seat import DeviceSeat

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RailsMarks:
    """What a model holds of the device; see `seat.Marks`. layers: whose matmuls. placed: on the host."""

    model: str
    bytes: int
    layers: tuple[int, ...]
    placed: Placed


class RailsSeat(DeviceSeat[RailsMarks]):
    """See DeviceSeat. Streams go on on the host while the model is away: no rows leave, none come."""

    holds_rows = False

    def _free(self, home: Home) -> None:
        executor = home.executor
        assert isinstance(executor, RailsExecutor)
        executor.lift()


class RailsSite:
    """Models are on the host and stay there; of the device they have what others leave. For any thread.

    It is the stage that RailsSeat needs. reservations: of all models on the device.
    """

    outcome = "gpu:rails"

    def __init__(self, settings: Settings, host: HostSite, backend: HostBackend, device: DeviceSite) -> None:
        """host, backend: where models run. device: whose room it is."""
        self.reservations = device.reservations
        self._host = host.over(RailsBackend(backend, settings.gpu.rails_rows))
        self._device = device
        self._lock = threading.Lock()  # held while a model is put there

    def foresee(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> None:
        """Raise what keeps a model from having layers there: DeviceError, SettingsError or ModelError."""
        demand = _demand(model, settings, plan, file)
        self._device.card()
        self._device.foresee(model.id, lambda room: demand.bytes_of(demand.within(room)))

    def put(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Placed:
        """See `Site`. Raises DeviceError where no layer can be there, and what `HostSite.put` does.

        Where there is no room now, the model is away from the device until there is, and serves.
        """
        card = self._device.card()
        demand = _demand(model, settings, plan, file)
        seat = RailsSeat(model.id, self)
        share = self._device.lend(seat, lambda room: demand.bytes_of(demand.within(room)), pinned=model.pin)
        try:
            placed = self._host.put(model, settings, plan, file)
            placed = dataclasses.replace(placed, outcome=self.outcome, device=card.name, seat=seat)
            marks = RailsMarks(
                model=model.id, bytes=share.bytes, layers=demand.within(share.bytes), placed=placed
            )
            try:
                return self._come(seat, marks, at_once=model.preload)
            except BaseException:
                placed.home.executor.close()
                self._host.release(model.id)
                raise
        except BaseException:
            self._device.release(model.id)
            raise

    def bytes_of(self, model: str) -> int:
        """See `Stage`."""
        return self._device.bytes_of(model)

    def renew(self, marks: RailsMarks) -> RailsMarks:
        """See `Stage`."""
        return marks

    def arm(self, marks: RailsMarks) -> tuple[Placed, RailsMarks]:
        """See `Stage`."""
        executor = marks.placed.home.executor
        assert isinstance(executor, RailsExecutor)
        groups = of_layers(executor.groups, marks.layers)
        uploading = logged(f"model={marks.model} uploading the weights of its matmuls")
        with self._lock:
            executor.lay(Products(self._device.card(), groups, executor.host, uploading), groups)
        log.info(
            "model=%s has the matmuls of %d of %d layers on the device",
            marks.model,
            len(marks.layers),
            len(executor.all_layers),
        )
        return marks.placed, marks

    def _come(self, seat: RailsSeat, marks: RailsMarks, *, at_once: bool) -> Placed:
        """Put a model there, or leave it away where others are in its room."""
        seat.restore(marks)
        if at_once:
            others = self.reservations.held
            try:
                placed = seat.rearm()
                seat.settle()
                return placed
            except OrderError:
                pass
            except DeviceMemoryError:
                if not (others or self.reservations.held):
                    raise
        log.info("model=%s has its layers on the device when there is room", marks.model)
        return dataclasses.replace(marks.placed, marks=seat.save())


def _demand(model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Demand:
    check_context(model.context, plan.context)
    rows = settings.engine.chunk_rows + model.streams
    demand = demand_of(plan, file, KV_CODECS[model.codec], rows)
    if not demand.layers:
        raise DeviceMemoryError("none of its matmuls is one that Kompute can bind")
    return demand
