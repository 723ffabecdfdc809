"""The handle on the engine thread that other threads hold: it only puts messages into the inbox."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from tierd.core import Request
from tierd.engine.catalogue import Catalogue, CatalogueEntry
from tierd.engine.loop import Loop
from tierd.engine.messages import (
    Activate,
    Beat,
    Cancel,
    Configure,
    Drain,
    Finish,
    Flush,
    Load,
    Message,
    Resume,
    Stop,
    Submit,
    Taken,
    Unload,
)
from tierd.engine.models import OpenSlot
from tierd.engine.operation import Operation
from tierd.engine.snapshot import Snapshot
from tierd.engine.streams import Deliver
from tierd.errors import UnavailableError
from tierd.kv.bank import Bank
from tierd.metrics import Metrics
from tierd.service.traces import Traces
from tierd.settings import ModelSettings, Settings
from tierd.tier.status import TierStatus

log = logging.getLogger(__name__)

T = TypeVar("T")


class Engine:
    """Serves requests over the models it has loaded. Every method may be called from any thread.

    deliver: called from the engine thread, at most once a turn, with the turn's (request id, event)
    pairs in order; must not block. Every request ends in exactly one terminal event.
    open_slot: turns settings into a Slot; called from worker threads.
    settings: of queue and readers. inbox: where the bank's spill posts what it has done, if there is one.
    bank: what the models' homes use. tier: tells how the device stands, from any thread. release: called
    from a worker with the name of a model that has been freed. traces: take the spans of requests.
    """

    def __init__(
        self,
        deliver: Deliver,
        *,
        open_slot: OpenSlot,
        metrics: Metrics,
        settings: Settings | None = None,
        inbox: SimpleQueue[Message] | None = None,
        bank: Bank | None = None,
        tier: Callable[[], TierStatus] = TierStatus,
        release: Callable[[str], None] = lambda _: None,
        traces: Traces | None = None,
    ) -> None:
        settings = settings or Settings()
        self.reader_backlog = settings.server.reader_backlog
        self._save_s = settings.state.save_s if bank is not None and bank.saves else 0.0
        self._inbox: SimpleQueue[Message] = inbox or SimpleQueue()
        self._tier = tier
        self._loop = Loop(self._inbox, deliver, open_slot, metrics, settings, bank, tier, release, traces)
        self._thread = threading.Thread(target=self._run, name="tierd-engine", daemon=True)
        # No command may follow a Stop into the inbox, where nobody would take it out any more.
        self._lock = threading.Lock()
        self._open = False
        self._stopped_at: float | None = None  # when it was told to stop, monotonic seconds

    @property
    def catalogue(self) -> Catalogue:
        """The models that answer now; empty once the engine stops."""
        return self._loop.models.catalogue

    @property
    def snapshot(self) -> Snapshot:
        """Streams and pages as of the last turn."""
        return self._loop.snapshot

    @property
    def tier(self) -> TierStatus:
        """How the device stands now."""
        return self._tier()

    def start(self) -> None:
        """Start the thread; once only. Before that, and after `stop`, all commands are refused."""
        self._open = True
        self._thread.start()

    def drain(self, operation: Operation | None = None, *, ending: bool = False) -> Future[None]:
        """Admit nothing more: requests that wait end with UnavailableError, as do those that still come.

        ending: the server is shutting down, which they are told. The future is done once the last running
        stream has ended, by itself or by `stop`, and, unless `stop` follows, what is kept over a restart is
        written; StateError where that takes longer than state.save_s. operation: is told how far it is.
        """
        drained: Future[None] = _promise()
        with self._lock:
            if self._open:
                self._inbox.put(Drain(drained, operation, ending))
            else:
                drained.set_result(None)
        return drained

    def stop(self, timeout: float) -> bool:
        """End all requests with UnavailableError, then free every model. Nothing happens when it has stopped.

        Requests end at once, but a step that is running, or a file being opened, is waited for, at
        most `timeout` seconds, and state.save_s beyond that for K/V to be written, both from the first call
        on. Returns False when one runs still: its backend must not be closed then.
        """
        now = time.monotonic()
        with self._lock:
            first = self._stopped_at is None
            if self._stopped_at is None:
                self._stopped_at = now
            until = self._stopped_at + timeout + self._save_s
            if self._open:
                self._open = False
                self._inbox.put(Stop())
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - now))
        if not self._thread.is_alive():
            return True
        if first:
            log.error("left behind what still runs %g s after the engine was told to stop", until - now)
        return False

    def resume(self) -> Future[None]:
        """Admit requests again after `drain`. Raises UnavailableError when the engine is not running."""
        resumed: Future[None] = _promise()
        self._put(Resume(resumed))
        return resumed

    def load(
        self, settings: ModelSettings, operation: Operation | None = None, *, activate: bool = False
    ) -> Future[CatalogueEntry]:
        """Open a model in a worker and serve it. Raises UnavailableError when the engine is not running.

        activate: it comes to its device too, whoever must leave for it; where it cannot, it is removed again
        and those who left come back. operation: is told how far it is.
        The future is done once the catalogue lists the model, or holds a ModelError, SettingsError,
        DeviceError or UnavailableError.
        """
        loaded: Future[CatalogueEntry] = _promise()
        self._put(Load(settings, loaded, operation, activate))
        return loaded

    def unload(
        self, model: str, operation: Operation | None = None, *, limit_s: float | None = None
    ) -> Future[None]:
        """Serve a model no more: its requests are refused, its streams waited for, then all of it is freed.

        limit_s: then streams that still run end with UnavailableError. Raises that when the engine is not
        running. The future holds a ModelNotFoundError where there is no such model, a StateError where a file
        of its K/V cannot be removed.
        """
        unloaded: Future[None] = _promise()
        until = None if limit_s is None else time.monotonic() + limit_s
        self._put(Unload(model, until, unloaded, operation))
        return unloaded

    def activate(self, model: str, operation: Operation | None = None) -> Future[Mapping[str, float]]:
        """Bring a model to its device now, whoever must leave for it.

        Raises UnavailableError when the engine is not running. The future gets the seconds of each phase of
        the switch, none where it was there, or holds a ModelNotFoundError, DeviceError or UnavailableError.
        """
        activated: Future[Mapping[str, float]] = _promise()
        self._put(Activate(model, activated, operation))
        return activated

    def flush(self, model: str | None = None) -> Future[int]:
        """Empty the prefix cache of a model, or of all; what files have of them is gone for good, too.

        Raises UnavailableError when the engine is not running. The future holds the number of pages freed
        (a page that a stream uses is freed with it, later), or a ModelNotFoundError or UnavailableError, or a
        StateError where a file cannot be removed.
        """
        freed: Future[int] = _promise()
        self._put(Flush(model, freed))
        return freed

    def configure(self, settings: Settings) -> Future[None]:
        """Go by other settings from now on, as far as they are live; see `settings`.

        Raises UnavailableError when the engine is not running. The future holds one where it fails meanwhile.
        """
        configured: Future[None] = _promise()
        self._put(Configure(settings, configured))
        return configured

    def beat(self) -> Future[float]:
        """Have the engine thread take a turn, and tell with it for how long the slowest device is at a step.

        Raises UnavailableError when the engine is not running. The future gets the seconds, 0 where nothing
        is computed, or holds an UnavailableError.
        """
        turned: Future[float] = _promise()
        self._put(Beat(turned))
        return turned

    def submit(self, request: Request) -> None:
        """Serve a request; its id is unique among the live ones.

        Raises UnavailableError when the engine is not running; no event comes then. Whatever else is
        wrong comes as the request's FailedEvent.
        """
        self._put(Submit(request, time.monotonic()))

    def cancel(self, request_id: str) -> None:
        """End a request with reason CANCELLED; nothing happens when it has ended or is not known."""
        with self._lock:
            if self._open:
                self._inbox.put(Cancel(request_id))

    def finish(self, request_id: str) -> None:
        """End a request with reason STOP; nothing happens when it has ended or is not known."""
        with self._lock:
            if self._open:
                self._inbox.put(Finish(request_id))

    def taken(self, request_id: str, count: int) -> None:
        """Note that `count` more of a request's TextEvents have reached its client.

        A stream is paused while `reader_backlog` of them have not; nothing happens when it has ended.
        """
        with self._lock:
            if self._open:
                self._inbox.put(Taken(request_id, count))

    def _put(self, message: Message) -> None:
        with self._lock:
            if not self._open:
                raise UnavailableError("the server is starting or shutting down; try again later")
            self._inbox.put(message)

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception:
            log.critical("the engine thread has failed", exc_info=True)
            with self._lock:
                self._open = False
            self._loop.break_down()


def _promise() -> Future[T]:
    """Return a future that nobody can cancel."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future
