"""The models that are served: how they come, opened by a worker, and go, freed by one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from tierd.core import FailedEvent
from tierd.engine.answers import Answers
from tierd.engine.catalogue import Catalogue, describe
from tierd.engine.dance import Dance
from tierd.engine.devices import Devices
from tierd.engine.fallbacks import Fallbacks
from tierd.engine.flushing import Flushes
from tierd.engine.ledger import Ledger
from tierd.engine.messages import Activate, Flush, Load, LoadDone, Message, Unload, UnloadDone
from tierd.engine.streams import Streams
from tierd.errors import ConflictError, ModelError, TierdError, UnavailableError
from tierd.kv.bank import Bank
from tierd.progress import followed
from tierd.settings import LimitsSettings, ModelSettings
from tierd.slot import Slot

log = logging.getLogger(__name__)

OpenSlot = Callable[[ModelSettings], Slot]


class Models:
    """Loads, unloads, activates and flushes models. The engine thread's own, but for the catalogue.

    slots: by model, those that are loaded. catalogue: of those that answer; may be read anywhere.
    loads, unloads: by model, until they are done.
    """

    def __init__(
        self,
        inbox: SimpleQueue[Message],
        open_slot: OpenSlot,
        release: Callable[[str], None],
        *,
        streams: Streams,
        devices: Devices,
        fallbacks: Fallbacks,
        dance: Dance,
        flushes: Flushes,
        ledger: Ledger,
        answers: Answers,
        bank: Bank | None,
    ) -> None:
        """open_slot, release: see `engine.Engine`."""
        self.slots: dict[str, Slot] = {}
        self.catalogue = Catalogue()
        self.loads: dict[str, Load] = {}
        self.unloads: dict[str, Unload] = {}
        self._limits: LimitsSettings | None = None  # other than those that slots were opened with
        self._inbox = inbox
        self._open_slot = open_slot
        self._release = release
        self._streams = streams
        self._devices = devices
        self._fallbacks = fallbacks
        self._dance = dance
        self._flushes = flushes
        self._ledger = ledger
        self._answers = answers
        self._bank = bank

    @property
    def busy(self) -> bool:
        """Whether a worker is at work."""
        return bool(self.loads) or any(model not in self.slots for model in self.unloads)

    @property
    def deadline(self) -> float | None:
        """When streams are to be ended whose model goes, monotonic seconds; None: never."""
        waited_for = [it.until for it in self.unloads.values() if it.model in self.slots and not it.late]
        return min((until for until in waited_for if until is not None), default=None)

    def configure(self, limits: LimitsSettings) -> None:
        """Go by other limits of requests."""
        self._limits = limits
        for slot in self.slots.values():
            slot.limits = limits
        listed = [describe(self.slots[name]) for name in self.catalogue.entries]
        self.catalogue = self.catalogue.extend(*listed, loading=self.loads)

    def find(self, name: str) -> Slot:
        """Return the slot of a model that answers. Raises ModelNotFoundError and UnavailableError."""
        if self.catalogue.closed or name not in self.catalogue.entries:
            raise self.catalogue.missing(name)
        return self.slots[name]

    def close(self, reason: str) -> None:
        """Let no model answer, until they `reopen`. reason: what is said instead."""
        self.catalogue = self.catalogue.close(reason)

    def reopen(self) -> None:
        """Let all answer that are there to stay."""
        ready = [slot for model, slot in self.slots.items() if model not in (self.loads | self.unloads)]
        self.catalogue = Catalogue().extend(*map(describe, ready), loading=self.loads)

    def load(self, load: Load) -> None:
        """Have a model opened."""
        model = load.settings.id
        if self.catalogue.closed:
            load.loaded.set_exception(UnavailableError(self.catalogue.closed))
            return
        if model in self.slots or model in self.loads:
            load.loaded.set_exception(ConflictError(f"{model}: a model of that name is there already"))
            return
        if model in self.unloads:
            load.loaded.set_exception(UnavailableError(f"{model}: it is being unloaded; try again later"))
            return
        self.loads[model] = load
        if load.operation is not None:
            load.operation.enter("open")
        self.catalogue = self.catalogue.extend(loading=self.loads)
        # A daemon: opening a file from a hung disk must not keep the process from ending.
        threading.Thread(target=self._open, args=(load,), name=f"tierd-load-{model}", daemon=True).start()

    def loaded(self, load: Load, result: Slot | Exception) -> None:
        """Take in what came of opening a model."""
        if isinstance(result, Slot) and self.catalogue.closed:
            result.close()
            self._release(result.id)
            result = UnavailableError(self.catalogue.closed)
        if not isinstance(result, Slot):
            self._fail(load, result)
            return
        if self._limits is not None:
            result.limits = self._limits
        self.slots[result.id] = result
        self._fallbacks.enter(result)
        self._ledger.enter(result.id, device=result.id in self._fallbacks.passes)
        self._dance.enter(result)
        self._devices.enter(result)
        if not load.activate or result.seat is None or result.there:
            self._serve(load, result)
            return
        activated: Future[Mapping[str, float]] = Future()
        activated.add_done_callback(partial(self._activated, load, result))
        self._dance.activate(Activate(result.id, activated, load.operation))

    def activate(self, wanted: Activate) -> None:
        """Bring a model to its device."""
        if wanted.model in self.slots and wanted.model not in self.unloads:
            self._dance.activate(wanted)
        else:
            wanted.activated.set_exception(self.catalogue.missing(wanted.model))

    def flush(self, flush: Flush) -> None:
        """Forget the K/V of a model's streams that have ended, or of all models'."""
        if flush.model is not None and flush.model not in self.slots:
            flush.freed.set_exception(self.catalogue.missing(flush.model))
            return
        self._flushes.flush(flush, [slot for slot in self.slots.values() if flush.model in (None, slot.id)])

    def unload(self, unload: Unload) -> None:
        """Let a model answer no more, and be freed once its streams have ended."""
        model = unload.model
        if model not in self.slots or model in self.loads or model in self.unloads:
            unload.unloaded.set_exception(self.catalogue.missing(model))
            return
        self.unloads[model] = unload
        self.catalogue = self.catalogue.without(model)
        if unload.operation is not None:
            unload.operation.enter("wait")

    def unloaded(self, unload: Unload) -> None:
        """Take in that a worker has freed a model; its name can be used again once its files are gone."""

        def cleared() -> None:
            del self.unloads[unload.model]
            log.info("model=%s is unloaded", unload.model)

        self._flushes.answer_once_clear(unload.unloaded, None, cleared)

    def step(self) -> None:
        """Have models freed that are to go and whose streams have ended, once nothing works for them."""
        now = time.monotonic()
        for model, unload in list(self.unloads.items()):
            slot = self.slots.get(model)
            if slot is None:  # a worker has it
                continue
            if unload.until is not None and unload.until <= now:
                unload.late = True
                error = UnavailableError(f"{model}: it is being unloaded")
                for place, sequence in self._streams.at(model):
                    self._streams.end(place, sequence, FailedEvent(error))
            if self._streams.at(model) or self._is_at_work(slot):
                continue
            self._remove(slot)
            if unload.forgets:
                self._flushes.forget(model)
            if unload.operation is not None:
                unload.operation.enter("free")
            threading.Thread(
                target=self._free, args=(slot, unload), name=f"tierd-unload-{model}", daemon=True
            ).start()

    def break_down(self, error: TierdError) -> None:
        """The engine has failed: say so to those who wait, and to those who still ask for a model."""
        self.catalogue = Catalogue(closed=str(error))
        for load in self.loads.values():
            load.loaded.set_exception(error)
        for unload in self.unloads.values():
            unload.unloaded.set_exception(error)

    def _open(self, load: Load) -> None:
        """Run in a worker thread: touches nothing of the engine but its inbox."""
        result: Slot | Exception
        try:
            with followed(None if load.operation is None else load.operation.progress):
                result = self._open_slot(load.settings)
        except TierdError as error:
            result = error
        except Exception as error:
            log.exception("model=%s cannot be loaded", load.settings.id)
            result = ModelError(f"{load.settings.id}: {type(error).__name__} while it was loaded: {error}")
        self._inbox.put(LoadDone(load, result))

    def _activated(self, load: Load, slot: Slot, activated: Future[Mapping[str, float]]) -> None:
        """A model that was loaded is on its device, or cannot be there: then it is removed again."""
        error = activated.exception()
        if error is None:
            self._serve(load, slot)
            return
        unloaded: Future[None] = Future()
        unloaded.add_done_callback(lambda _: self._fail(load, error))
        self.unloads[slot.id] = Unload(slot.id, None, unloaded, forgets=False)

    def _serve(self, load: Load, slot: Slot) -> None:
        """Let requests come to a model that was loaded."""
        del self.loads[slot.id]
        if self._bank is not None:
            self._bank.review(slot.id, slot.home.origin, slot.executor.row_bytes)
        self._ledger.loaded(slot.id, failed=False)
        entry = describe(slot)
        self.catalogue = self.catalogue.extend(entry, loading=self.loads)
        self._answers.give(load.loaded, entry)

    def _fail(self, load: Load, error: BaseException) -> None:
        del self.loads[load.settings.id]
        self._ledger.loaded(load.settings.id, failed=True)
        self.catalogue = self.catalogue.extend(loading=self.loads)
        load.loaded.set_exception(error)

    def _is_at_work(self, slot: Slot) -> bool:
        """Whether anything is under way with a slot or its understudy."""
        return (
            any(each.steps or each.move or each.home.moves or each.leaving for each in _both(slot))
            or self._fallbacks.works_for(slot)
            or self._dance.holds(slot)
        )

    def _remove(self, slot: Slot) -> None:
        """Take a slot and its understudy out of all that the engine knows."""
        del self.slots[slot.id]
        for each in _both(slot):
            self._devices.leave(each)
        self._dance.forget(slot)
        self._fallbacks.forget(slot)
        self._ledger.forget(slot.id)

    def _free(self, slot: Slot, unload: Unload) -> None:
        """Run in a worker thread, which alone has the slot now."""
        try:
            slot.close()
            self._release(slot.id)
        except Exception:
            log.exception("model=%s could not be freed", slot.id)
        self._inbox.put(UnloadDone(unload))


def _both(slot: Slot) -> list[Slot]:
    """Return a slot and its understudy, if it has one."""
    return [slot] if slot.understudy is None else [slot, slot.understudy]
