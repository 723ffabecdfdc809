"""The device as a place for parts of models: the large matmuls of as many layers as it has room for."""

from __future__ import annotations

import dataclasses
import logging
import threading
from dataclasses import dataclass

from tierd.backends.host import HostBackend
from tierd.backends.rails.backend import Demand, Part, RailsBackend, demand_of
from tierd.backends.rails.card import Card
from tierd.backends.rails.cuts import of_layers
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.rails.products import Products
from tierd.errors import DeviceMemoryError, NoDeviceError, OrderError
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
    """What a model holds of the device; see `seat.Marks`. part: of it. placed: on the host."""

    model: str
    bytes: int
    part: Part
    placed: Placed


class RailsSeat(DeviceSeat[RailsMarks]):
    """See DeviceSeat. No rows leave with the model, and none come.

    Streams go on on the host while it is away, unless it is required that it is there: then they wait.
    """

    holds_rows = False

    def __init__(self, model: str, stage: RailsSite, refusal: str) -> None:
        """refusal: see `slot.Seat`."""
        super().__init__(model, stage)
        self.refusal = refusal
        self._site = stage

    @property
    def barred(self) -> float:
        """See `slot.Seat`."""
        return self._site.barred

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
        self._host = host
        self._backend = backend
        self._rows = settings.gpu.rails_rows
        self._device = device
        self._lock = threading.Lock()  # held while a model is put there

    def foresee(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> None:
        """Raise what keeps a model from having layers there: DeviceError, SettingsError or ModelError."""
        demand = _demand(model, settings, plan, file)
        self._device.card()
        self._device.foresee(model.id, lambda room: demand.bytes_of(demand.within(room)))

    def put(
        self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile, decline: str = ""
    ) -> Placed:
        """See `Site`. Raises DeviceError where no layer can be there, and what `HostSite.put` does.

        decline: why it is not there whole, "" where it is not to be.

        Where there is no room now, the model is away from the device until there is, and serves.
        """
        card = self._device.card()
        demand = _demand(model, settings, plan, file)
        required = settings.required(model)
        refusal = f"`require` demands that it is {required} on the GPU" if required != "none" else ""
        seat = RailsSeat(model.id, self, refusal)
        share = self._device.lend(seat, lambda room: demand.bytes_of(demand.within(room)), pinned=model.pin)
        try:
            part = demand.part(demand.within(share.bytes), card.place)
            site = self._host.over(RailsBackend(self._backend, self._rows, part))
            placed = site.put(model, settings, plan, file)
            placed = dataclasses.replace(
                placed, outcome=self.outcome, device=card.name, seat=seat, resident_decline=decline
            )
            executor = _executor(placed)
            executor.strict = refusal != ""
            try:
                marks = RailsMarks(model=model.id, bytes=share.bytes, part=part, placed=placed)
                return self._come(seat, marks, at_once=model.preload)
            except BaseException:
                executor.close()
                self._host.release(model.id)
                raise
        except BaseException:
            self._device.release(model.id)
            raise

    @property
    def barred(self) -> float:
        """See `slot.Seat`."""
        return self._device.card_barred

    def bytes_of(self, model: str) -> int:
        """See `Stage`."""
        return self._device.bytes_of(model)

    def renew(self, marks: RailsMarks) -> RailsMarks:
        """See `Stage`. Layers come to another device than before only with the model: its rows say which."""
        self._card(marks)
        return marks

    def arm(self, marks: RailsMarks) -> tuple[Placed, RailsMarks]:
        """See `Stage`."""
        executor, layers = _executor(marks.placed), marks.part.layers
        groups = of_layers(executor.groups, layers)
        uploading = logged(f"model={marks.model} uploading the weights of its matmuls")
        with self._lock:
            executor.lay(Products(self._card(marks), groups, executor.host, uploading), groups)
        log.info(
            "model=%s has the matmuls of %d of %d layers on the device",
            marks.model,
            len(layers),
            len(executor.all_layers),
        )
        return marks.placed, marks

    def _card(self, marks: RailsMarks) -> Card:
        card = self._device.card()
        if card.place != marks.part.place:
            raise NoDeviceError(
                f"{marks.model} was loaded for {marks.part.place}, and the device is {card.place} now; load "
                "it again"
            )
        return card

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


def _executor(placed: Placed) -> RailsExecutor:
    executor = placed.home.executor
    assert isinstance(executor, RailsExecutor)
    return executor


def _demand(model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Demand:
    check_context(model.context, plan.context)
    rows = settings.engine.chunk_rows + model.streams
    demand = demand_of(plan, file, KV_CODECS[model.codec], rows)
    if not demand.layers:
        raise DeviceMemoryError(
            f"no layer's matmuls are such that Kompute can bind them for steps of {rows} rows; lower "
            "engine.chunk_rows"
        )
    return demand
