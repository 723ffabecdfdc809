"""The device as a place for models: what each of them gets there, and how it gets there."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tierd.backends.host import ThreadPool
from tierd.backends.protocol import Executor
from tierd.backends.rails.card import Card
from tierd.backends.resident.backend import ResidentBackend, absent
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.image import default_directory
from tierd.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    NoDeviceError,
    OrderError,
)
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.kv.origin import origin_of
from tierd.kv.sizing import check_context, mib
from tierd.models import GGUFFile
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.progress import logged
from tierd.settings import ModelSettings, Settings
from tierd.slot import Placed
from tierd.tier.availability import Availability, Verdict, products_of
from tierd.tier.budget import Need, Placement, Room, share_out, shrink
from tierd.tier.dealing import all_fit, deal
from tierd.tier.device_home import DeviceHome
from tierd.tier.marks import DeviceMarks
from tierd.tier.needs import need_of
from tierd.tier.reservations import Reservations
from tierd.tier.seat import DeviceSeat
from tierd.tier.status import TierStatus
from tierd.tier.want import Want

log = logging.getLogger(__name__)


class DeviceSite:
    """The device, opened when it is first asked for, and what was promised to the models on it.

    Room is dealt out to all configured models at once, in their order, so that it does not matter which of
    them comes first. May be used from any thread. It is the stage that `seat.DeviceSeat` needs.

    When the device was given up and a fresh one has been found, models get on that what they had, if there is
    room for all; else it is dealt out anew.

    reservations: of the models that are there now.
    """

    outcome = "gpu:resident"

    def __init__(self, settings: Settings, pool: ThreadPool, bank: Bank, gone: Gone) -> None:
        """pool: threads that pack and copy weights. bank: takes rows that no region has room for.

        gone: remembers those that are lost. The engine thread alone uses these two.
        """
        self.reservations = Reservations(self._budget)
        self._settings = settings
        self._pool = pool
        self._bank = bank
        self._gone = gone
        self._availability = Availability(settings.gpu)
        self._opening = threading.Lock()  # held while the device is opened and dealt out, which takes seconds
        self._arming = threading.Lock()  # held while a model is put there
        self._lock = threading.Lock()  # of what follows
        self._backend: ResidentBackend | None = None
        self._total = 0  # bytes for models, as it was opened
        self._shares: dict[str, Placement | str] = {}
        self._seats: dict[str, DeviceSeat[Any]] = {}
        self._parts: set[str] = set()  # models that are here in part, by `lend`
        self._marks: dict[str, DeviceMarks] = {}  # of those that have a seat, the latest

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
        """See `Site`. Raises DeviceError when there is no device, or not enough room on it.

        A model that has room beside the others is there at once, unless it is not to be loaded early. Any
        other is away, with its marks, until it is its turn. A lost device is tried again if that is due.
        UnsupportedModelError for what the device path lacks, SettingsError for a context that is too long.
        """
        check_context(model.context, plan.context)
        want = Want.of(model, settings)
        codec = KV_CODECS[want.kv_dtype]
        self._availability.probe("resident")
        backend = self._open()
        need = need_of(want, plan, backend.demand(plan, file, codec))
        try:
            placement = self._promise(model.id, need)
            packing = logged(f"model={model.id} packing its weights for the device")
            prepared = backend.prepare(plan, file, codec, packing)
            marks = DeviceMarks(
                settings=model,
                identity=file.identity(),
                want=want,
                need=need,
                placement=placement,
                prepared=prepared,
            )
            seat = DeviceSeat(model.id, self)
            with self._lock:
                self._seats[model.id], self._marks[model.id] = seat, marks
            placed = self.come(seat, marks, at_once=model.preload and not placement.turns)
            if placed.marks is None:
                seat.settle()
            return placed
        except BaseException:
            self.release(model.id)
            raise

    def come(self, seat: DeviceSeat[DeviceMarks], marks: DeviceMarks, *, at_once: bool = True) -> Placed:
        """Put a model there whose seat is AWAY: then that is ARMED. Raises what `DeviceSeat.rearm` does.

        Where it cannot be beside those that are there, and unless `at_once`, it is away until it is its turn:
        what is returned has its marks.
        """
        seat.restore(self.renew(marks))
        if at_once:
            others = self.reservations.held
            try:
                return seat.rearm()
            except OrderError:
                pass
            except DeviceMemoryError:
                if not (others or self.reservations.held):
                    raise
        return self.wait(seat)

    def wait(self, seat: DeviceSeat[DeviceMarks]) -> Placed:
        """Leave a model away whose seat is RESTORED; return what it has until its turn comes, and its marks.

        Raises DeviceError where there is no device any more.
        """
        marks = self._note(seat.save().told())
        log.info("model=%s takes its turn on the device when it is asked for", marks.model)
        placed = self._placed(marks, self._open(), absent(marks.prepared, marks.shape))
        return dataclasses.replace(placed, seat=seat, marks=marks)

    def card(self) -> Card:
        """Return the device as Kompute has it, a fresh one if that is due. DeviceError where it has not."""
        self._availability.backend_available("kompute")
        verdict = self._availability.probe("kompute")
        if verdict.card is None:
            raise _none_error(verdict)
        return verdict.card

    @property
    def card_barred(self) -> float:
        """See `Availability.barred`: of the device as Kompute has it."""
        return self._availability.barred("kompute")

    def lend(self, seat: DeviceSeat[Any], size_of: Callable[[int], int], *, pinned: bool) -> Placement:
        """Promise a part of a model what it makes of the bytes that others leave, or of all but the pinned.

        size_of: how many of so many it takes, 0 for none. The second makes it take turns. Raises
        DeviceMemoryError where it takes none of either.
        """
        self._open()
        with self._lock:
            placement = self._part(seat.model, size_of, pinned)
            self._shares[seat.model], self._seats[seat.model] = placement, seat
            self._parts.add(seat.model)
            return placement

    def foresee(self, model: str, size_of: Callable[[int], int]) -> Placement:
        """Return what `lend` would promise a model. Raises what that does."""
        self._open()
        with self._lock:
            return self._part(model, size_of, pinned=False)

    def _part(self, model: str, size_of: Callable[[int], int], pinned: bool) -> Placement:
        room = self._room({other: share for other, share in self._shares.items() if other != model})
        beside = size_of(min(room.free, self.reservations.free))
        size = beside or size_of(room.alone)
        if not size:
            raise DeviceMemoryError(f"{mib(room.alone)} of the device hold not one of its layers")
        stays = pinned and bool(beside)
        # Whoever needs the room of another may have it: it serves without.
        return Placement(context=0, positions=0, bytes=size, pinned=stays, turns=not stays)

    def bytes_of(self, model: str) -> int:
        """See `Stage`."""
        share, marks = self._shares.get(model), self._marks.get(model)
        if isinstance(share, Placement):
            return share.bytes
        return 0 if marks is None else marks.bytes

    def renew(self, marks: DeviceMarks) -> DeviceMarks:
        """See `Stage`."""
        backend = self._open()
        marks = marks.on(backend.device.facts)
        return marks.place(self._promise(marks.model, marks.need))

    def arm(self, marks: DeviceMarks) -> tuple[Placed, DeviceMarks]:
        """See `Stage`. It gets a little less than its placement where that does not fit in pieces."""
        backend = self._open()
        with self._arming:
            try:
                executor, placement = _arm(backend, marks, self._room({}))
            except BaseException as error:
                self._availability.lost("resident")
                if backend.device.abandoned and isinstance(error, DeviceMemoryError):
                    raise DeviceLostError(backend.device.abandoned) from error
                raise
        with contextlib.suppress(DeviceError):  # they are compiled again at the next start then
            backend.device.save_pipelines()
        marks = self._note(marks.place(placement).told())
        return self._placed(marks, backend, executor), marks

    def release(self, model: str) -> None:
        """Give back all that a model has here: it has ended, or never came. Waits for nothing."""
        with self._lock:
            self._parts.discard(model)
            self._shares.pop(model, None)
            seat, marks = self._seats.pop(model, None), self._marks.pop(model, None)
        if seat is not None:
            seat.release()
        if marks is not None:
            marks.prepared.close()

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
        known, ways = self._availability, ("resident", "kompute")
        verdict = known.known("resident")
        faults, fault = zip(*map(known.faults, ways), strict=True)
        due = [time for time in map(known.retry_at, ways) if time is not None]
        status = TierStatus(
            reason=verdict.reason,
            faults=sum(faults),
            fault=next(filter(None, fault), ""),
            retry_s=max(0.0, min(due) - time.monotonic()) if due else None,
        )
        device = verdict.device
        if device is None:
            return status
        if device.abandoned:  # a moment ago
            return dataclasses.replace(status, reason=device.abandoned)
        held = self.reservations.held
        return dataclasses.replace(
            status,
            backend="resident",
            device=device.facts.name,
            products=products_of(device),
            used=device.used + sum(held.get(model, 0) for model in self._parts.copy()),
            budget=self._total,
            reservations=held,
            away={model: seat.bytes for model, seat in self._seats.copy().items() if model not in held},
        )

    def close(self) -> None:
        """Close the device, if it was opened. All executors on it have been closed."""
        self._availability.close()

    def _open(self) -> ResidentBackend:
        """Open the device and deal it out, the first time, or a fresh one. Raises DeviceError without one."""
        with self._opening:
            verdict = self._availability.backend_available("resident")
            if verdict.device is not None and verdict.device.abandoned:
                self._availability.lost("resident")
                verdict = self._availability.known("resident")
            if verdict.device is None:
                raise _none_error(verdict)
            backend = self._backend
            if backend is None or backend.device is not verdict.device:
                backend = ResidentBackend(verdict.device, self._pool, images=default_directory())
                self._take_up(backend)
            return backend

    def _take_up(self, backend: ResidentBackend) -> None:
        """Deal out a device that has just been opened, and is empty."""
        before, device = self._backend, backend.device
        total, facts = device.budget(), device.facts
        with self._lock:
            shares, marks = dict(self._shares), dict(self._marks)
        if before is None or before.device.facts != facts or not all_fit(shares, total):
            parts = {model: shares[model] for model in self._parts & shares.keys()}
            pinned = _bytes_of_pinned(parts)
            room = Room(total=total, taken=pinned, pinned=pinned, allocation=facts.limits.allocation)
            shares = deal(backend, self._settings, marks, room, besides=parts)
        with self._lock:
            shares |= {model: self._shares[model] for model in self._parts}  # they stay as they were promised
            self._backend, self._total, self._shares = backend, total, shares

    def _budget(self) -> int:
        """Return the bytes for models on the device that there is now. What was dealt out may be taken."""
        device = self._availability.known("resident").device
        return 0 if device is None or device.abandoned else self._total

    def _promise(self, model: str, need: Need) -> Placement:
        """Return a model's share; one that has got none so far gets of what the others leave.

        So does one whose share holds less than the context that it insists on now.
        """
        with self._lock:
            share = self._shares.get(model)
            if not isinstance(share, Placement) or share.context < need.least:
                share = self._share(model, need)
                if need.pinned:
                    self._make_way()
        if isinstance(share, str):
            raise DeviceMemoryError(share)
        return share

    def _share(self, model: str, need: Need) -> Placement | str:
        """Give a model of what the others leave."""
        others = {other: share for other, share in self._shares.items() if other != model}
        self._shares[model] = share = share_out({model: need}, self._room(others))[model]
        return share

    def _make_way(self) -> None:
        """Give models less whose shares do not fit any more beside those that never leave."""
        alone = self._room(self._shares).alone
        for model, marks in self._marks.items():
            share = self._shares.get(model)
            if isinstance(share, Placement) and not share.pinned and share.bytes > alone:
                self._share(model, marks.need)

    def _room(self, shares: Mapping[str, Placement | str]) -> Room:
        """Return the device's memory, of which these shares are taken."""
        assert self._backend is not None
        there = [share for share in shares.values() if isinstance(share, Placement)]
        return Room(
            total=self._total,
            taken=sum(share.bytes for share in there if share.pinned or not share.turns),
            pinned=_bytes_of_pinned(shares),
            allocation=self._backend.device.facts.limits.allocation,
        )

    def _note(self, marks: DeviceMarks) -> DeviceMarks:
        """Remember a model's latest marks, unless it has ended meanwhile; return them."""
        with self._lock:
            if marks.model in self._marks:
                self._marks[marks.model], self._shares[marks.model] = marks, marks.placement
        return marks

    def _placed(self, marks: DeviceMarks, backend: ResidentBackend, executor: Executor) -> Placed:
        want, device, facts = marks.want, backend.device, backend.device.facts
        place = f"{facts.name}, driver {facts.driver} {facts.driver_uuid}, {products_of(device)}"
        home = DeviceHome(
            executor,
            model=marks.model,
            origin=origin_of(marks.identity, want.kv_dtype, place),
            bank=self._bank,
            gone=self._gone,
            regions=want.regions,
            keeps=self._settings.kv.prefix_cache,
            device=device,
        )
        return Placed(
            home=home,
            context=marks.context,
            outcome=self.outcome,
            device=device.facts.name,
            codec=want.kv_dtype,
            regions=want.regions,
            region_positions=marks.placement.positions,
            scratch=want.regions if want.scratch else None,
            prefill_window=executor.max_rows,
        )


def _bytes_of_pinned(shares: Mapping[str, Placement | str]) -> int:
    return sum(share.bytes for share in shares.values() if isinstance(share, Placement) and share.pinned)


def _none_error(verdict: Verdict) -> DeviceError:
    return DeviceLostError(verdict.reason) if verdict.lost else NoDeviceError(verdict.reason)


def _arm(backend: ResidentBackend, marks: DeviceMarks, room: Room) -> tuple[ResidentExecutor, Placement]:
    """Put a model where its placement says, or on a little less where that does not fit in pieces."""
    while True:
        try:
            uploading = logged(f"model={marks.model} uploading its weights")
            return backend.arm(marks.prepared, marks.shape, uploading), marks.placement
        except DeviceMemoryError:
            shorter = shrink(marks.need, marks.placement, room)
            if shorter is None:
                raise
            marks = marks.place(shorter)
