"""The device as a place for models: what each of them gets there, and how it gets there."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Mapping

from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.image import default_directory
from tierd.backends.vkapi import Device
from tierd.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    ModelError,
    NoDeviceError,
    SettingsError,
    UnsupportedModelError,
)
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.kv.sizing import check_context
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.progress import logged
from tierd.settings import ModelSettings, Settings
from tierd.slot import Placed
from tierd.tier.availability import Availability, Verdict, products_of
from tierd.tier.budget import Need, Placement, Room, share_out, shrink
from tierd.tier.device_home import DeviceHome
from tierd.tier.needs import need_of, shape_of
from tierd.tier.status import TierStatus
from tierd.tier.want import Want


class DeviceSite:
    """The device, opened when it is first asked for, and what was promised to the models on it.

    Room is dealt out to all configured models at once, in their order, so that it does not matter which of
    them comes first. May be used from any thread.

    When the device was given up and a fresh one has been found, models get on that what they had, if there is
    room for all; else it is dealt out anew.
    """

    outcome = "gpu:resident"

    def __init__(self, settings: Settings, pool: ThreadPool, bank: Bank, gone: Gone) -> None:
        """pool: threads that pack and copy weights. bank: takes rows that no region has room for.

        gone: remembers those that are lost. The engine thread alone uses these two.
        """
        self._settings = settings
        self._pool = pool
        self._bank = bank
        self._gone = gone
        self._availability = Availability(settings.gpu)
        self._opening = threading.Lock()  # held while the device is opened and dealt out, which takes seconds
        self._lock = threading.Lock()  # of what follows
        self._backend: ResidentBackend | None = None
        self._shares: dict[str, Placement | str] = {}
        self._putting = threading.Lock()  # held while a model is put there

    @property
    def reason(self) -> str:
        """Why there is no device that could serve, "" when there is one."""
        return self._availability.backend_available("resident").reason

    def shares(self) -> Mapping[str, Placement | str]:
        """Return what each configured model gets, or why it gets nothing.

        What is no sound model has no share. Raises DeviceError when there is no device.
        """
        self._open()
        return dict(self._shares)

    def put(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Placed:
        """See `Site`. Raises DeviceError when there is no device, or no room on it.

        UnsupportedModelError for what the device path lacks, SettingsError for a context that is too long.
        """
        check_context(model.context, plan.context)
        want = Want.of(model, settings)
        backend = self._open()
        need = need_of(want, plan, backend.demand(plan, file, KV_CODECS[want.kv_dtype]))
        placement = self._promise(model.id, need, backend.device)
        with self._putting:
            try:
                executor, placement = _compile(model.id, backend, want, plan, file, need, placement)
            except BaseException:
                self._availability.lost("resident")
                self.release(model.id)
                raise
            with self._lock:
                self._shares[model.id] = placement
            with contextlib.suppress(DeviceError):  # they are compiled again at the next start then
                backend.device.save_pipelines()
        home = DeviceHome(
            executor,
            model=model.id,
            origin=_origin(backend.device, want.kv_dtype),
            bank=self._bank,
            gone=self._gone,
            regions=want.regions,
            keeps=settings.kv.prefix_cache,
            device=backend.device,
        )
        return Placed(
            home=home,
            context=_context(want, placement),
            outcome=self.outcome,
            device=backend.device.facts.name,
            codec=want.kv_dtype,
            regions=want.regions,
            region_positions=placement.positions,
            scratch=want.regions if want.scratch else None,
            prefill_window=executor.max_rows,
        )

    def release(self, model: str) -> None:
        """Give a model's share back: it has ended, or never came. Waits for nothing."""
        with self._lock:
            self._shares.pop(model, None)

    def lost(self) -> float | None:
        """See `Availability.lost`."""
        return self._availability.lost("resident")

    def probe(self) -> None:
        """See `Availability.probe`. Raises DeviceLostError where there is no device after that either."""
        verdict = self._availability.probe("resident")
        if verdict.device is None:
            raise _none_error(verdict)

    def status(self) -> TierStatus:
        """Return how the device stands. Waits for nothing and opens nothing."""
        verdict, due = self._availability.known("resident"), self._availability.retry_at("resident")
        faults, fault = self._availability.faults("resident")
        status = TierStatus(
            reason=verdict.reason,
            faults=faults,
            fault=fault,
            retry_s=None if due is None else max(0.0, due - time.monotonic()),
        )
        device = verdict.device
        if device is None:
            return status
        try:
            budget = device.budget()
        except DeviceLostError as error:  # it was given up a moment ago
            return dataclasses.replace(status, reason=str(error))
        shares = dict(self._shares)
        return dataclasses.replace(
            status,
            backend="resident",
            device=device.facts.name,
            products=products_of(device),
            used=device.used,
            budget=budget,
            reservations={
                model: share.bytes for model, share in shares.items() if isinstance(share, Placement)
            },
        )

    def close(self) -> None:
        """Close the device, if it was opened. All executors on it have been closed."""
        self._availability.close()

    def _open(self) -> ResidentBackend:
        """Open the device and deal it out, the first time, or a fresh one. Raises DeviceError without one."""
        with self._opening:
            verdict = self._availability.backend_available("resident")
            if verdict.device is None:
                raise _none_error(verdict)
            backend, before = self._backend, self._shares
            if backend is None or backend.device is not verdict.device:
                backend = ResidentBackend(verdict.device, self._pool, images=default_directory())
                kept = self._backend is not None and _fit(before, self._backend.device, backend.device)
                shares = before if kept else _deal(backend, self._settings)
                with self._lock:
                    self._backend, self._shares = backend, dict(shares)
            return backend

    def _promise(self, model: str, need: Need, device: Device) -> Placement:
        """Return a model's share; one that has got none so far gets of what the others leave.

        So does one whose share holds less than the context that it insists on now.
        """
        with self._lock:
            share = self._shares.get(model)
            if not isinstance(share, Placement) or share.context < need.least:
                others = {other: each for other, each in self._shares.items() if other != model}
                share = share_out({model: need}, _room(device, others))[model]
                self._shares[model] = share
        if isinstance(share, str):
            raise DeviceMemoryError(share)
        return share


def _context(want: Want, placement: Placement) -> int:
    """Return the positions of a stream: those of a region, or more where longer streams may be elsewhere."""
    return placement.context if want.require != "none" else want.ctx_max or placement.context


def _origin(device: Device, codec: str) -> str:
    """Name what computes rows; those of one name may go on with each other's."""
    return f"{device.facts.name}, {products_of(device)}, {codec}"


def _none_error(verdict: Verdict) -> DeviceError:
    return DeviceLostError(verdict.reason) if verdict.lost else NoDeviceError(verdict.reason)


def _fit(shares: Mapping[str, Placement | str], before: Device, device: Device) -> bool:
    """Whether shares of a device can be had on another as they are."""
    room = _room(device, shares)
    return before.facts == device.facts and room.taken <= room.total


def _room(device: Device, shares: Mapping[str, Placement | str]) -> Room:
    taken = sum(share.bytes for share in shares.values() if isinstance(share, Placement))
    return Room(total=device.budget(), taken=taken, allocation=device.facts.limits.allocation)


def _deal(backend: ResidentBackend, settings: Settings) -> dict[str, Placement | str]:
    """Deal a device out to the configured models."""
    needs: dict[str, Need] = {}
    declines: dict[str, Placement | str] = {}
    for model in settings.models:
        want = Want.of(model, settings)
        try:
            with GGUFFile.open(model.path) as file:
                plan = build_plan(file)
                check_context(model.context, plan.context)
                try:
                    demand = backend.demand(plan, file, KV_CODECS[want.kv_dtype])
                    needs[model.id] = need_of(want, plan, demand)
                except UnsupportedModelError as error:
                    declines[model.id] = str(error)
        except (ModelError, SettingsError):
            continue  # it will be said when it is loaded
    return declines | share_out(needs, _room(backend.device, {}))


def _compile(
    model: str,
    backend: ResidentBackend,
    want: Want,
    plan: Plan,
    file: GGUFFile,
    need: Need,
    placement: Placement,
) -> tuple[ResidentExecutor, Placement]:
    """Put a model where its share says, or on a little less where that does not fit in pieces."""
    room = _room(backend.device, {})
    while True:
        try:
            executor = backend.compile(
                plan,
                file,
                codec=KV_CODECS[want.kv_dtype],
                shape=shape_of(want, placement.positions),
                packing=logged(f"model={model} packing its weights for the device"),
                uploading=logged(f"model={model} uploading its weights"),
            )
            return executor, placement
        except DeviceMemoryError:
            shorter = shrink(need, placement, room)
            if shorter is None:
                raise
            placement = shorter
