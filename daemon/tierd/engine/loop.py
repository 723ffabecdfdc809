"""The engine thread: it alone touches slots, sequences and K/V pages, so there are no locks here.

Messages come in through the inbox, the only thing it ever waits for. Events go out through `deliver`,
once a turn. What it knows is published as immutable values for other threads to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from tierd.core import FailedEvent, FinishReason, Request
from tierd.engine.answers import Answers
from tierd.engine.carrying import Carrier
from tierd.engine.dance import Dance
from tierd.engine.devices import Devices
from tierd.engine.draining import Drains
from tierd.engine.fallbacks import Fallbacks
from tierd.engine.flushing import Flushes
from tierd.engine.gauges import Gauges
from tierd.engine.keeping import Keeper
from tierd.engine.ledger import Ledger
from tierd.engine.messages import (
    Activate,
    Allowed,
    Beat,
    Cancel,
    Configure,
    Drain,
    Finish,
    Flush,
    Load,
    LoadDone,
    Message,
    MoveDone,
    RearmDone,
    Resume,
    StepDone,
    Stop,
    Stranded,
    Submit,
    SwitchDone,
    SwitchPhase,
    Taken,
    UnderstudyDone,
    Unload,
    UnloadDone,
)
from tierd.engine.models import Models, OpenSlot
from tierd.engine.parting import Parting
from tierd.engine.snapshot import Snapshot, observe
from tierd.engine.stepping import Steps
from tierd.engine.streams import Deliver, Streams
from tierd.errors import RequestError, TierdError, UnavailableError
from tierd.kv.bank import Bank
from tierd.kv.spill import SpillCleared, SpillDone
from tierd.metrics import Metrics
from tierd.service.traces import Traces
from tierd.settings import Settings
from tierd.tier.status import TierStatus

LONGEST_WAIT_S = 3600.0  # a lock cannot wait for as long as a float can say

CLOSED = "the server is shutting down; try again later"
DRAINING = "the server takes no requests for now; try again later"


class Loop:
    """All model state, and the turns in which it changes.

    snapshot, and the catalogue of `models`, may be read anywhere.
    """

    def __init__(
        self,
        inbox: SimpleQueue[Message],
        deliver: Deliver,
        open_slot: OpenSlot,
        metrics: Metrics,
        settings: Settings,
        bank: Bank | None,
        tier: Callable[[], TierStatus] = TierStatus,
        release: Callable[[str], None] = lambda _: None,
        traces: Traces | None = None,
    ) -> None:
        self.snapshot = Snapshot()
        self._inbox = inbox
        self._bank = bank
        self._ledger = Ledger(metrics, [model.id for model in settings.models], traces)
        self._gauges = Gauges(metrics, lambda: self.snapshot, tier, settings.queue)
        self._answers = Answers()
        self._devices = Devices(inbox, settings.engine.gap_ms / 1000)
        self._streams = Streams(inbox, deliver, self._ledger, settings)
        self._fallbacks = Fallbacks(inbox, metrics, self._streams)
        self._carrier = Carrier(self._fallbacks)
        self._dance = Dance(
            settings.switch,
            fallbacks=self._fallbacks,
            ledger=self._ledger,
            answers=self._answers,
            inbox=inbox,
            tier=tier,
        )
        self._steps = Steps(
            devices=self._devices,
            streams=self._streams,
            fallbacks=self._fallbacks,
            dance=self._dance,
            ledger=self._ledger,
        )
        self._flushes = Flushes(bank, self._answers)
        self.models = Models(
            inbox,
            open_slot,
            release,
            streams=self._streams,
            devices=self._devices,
            fallbacks=self._fallbacks,
            dance=self._dance,
            flushes=self._flushes,
            ledger=self._ledger,
            answers=self._answers,
            bank=bank,
        )
        self._keeper = Keeper(settings.state, bank)
        self._drains = Drains(self._keeper, settings.state)
        self._parting = Parting(settings.state)
        self._stopping = False

    def run(self) -> None:
        """Take turns until a Stop has come, and all that was going on then is over, and is kept."""
        while not self._stopping or self._busy or not self._keeper.finished:
            self._receive()
            self._turn()
        self._streams.stop()
        self._devices.stop()
        self._devices.join()
        for slot in self.models.slots.values():
            slot.close()

    @property
    def _busy(self) -> bool:
        """Whether a worker or a runner is at work."""
        return (
            self.models.busy
            or self._fallbacks.busy
            or self._dance.busy
            or self._flushes.busy
            or self._devices.busy
        )

    @property
    def _quiet(self) -> bool:
        """Whether all rows of streams that have ended are where they stay."""
        return self._dance.switch is None and not (self._devices.busy or self._devices.leaving)

    @property
    def _deadline(self) -> float | None:
        """When something is to be done though no message comes, monotonic seconds; None: never."""
        due = [
            self._streams.deadline(self.models.slots.values()),
            None if self._stopping else self._fallbacks.deadline,
            self._dance.deadline,
            self._keeper.deadline,
            self._drains.deadline,
            self._parting.deadline,
            self.models.deadline,
        ]
        return min((end for end in due if end is not None), default=None)

    def _receive(self) -> None:
        """Wait for a message, or until something is due; handle all that came."""
        due = self._deadline
        wait = None if due is None else min(max(0, due - time.monotonic()), LONGEST_WAIT_S)
        try:
            first = self._inbox.get(timeout=wait)
        except Empty:
            return
        self._take(first)
        for _ in range(self._inbox.qsize()):
            self._take(self._inbox.get())

    def _take(self, message: Message) -> None:
        """Handle a message; where that fails it goes back, for `break_down` to answer it."""
        try:
            self._handle(message)
        except Exception:
            self._inbox.put(message)
            raise

    def _turn(self) -> None:
        """Do what has become possible, and tell of it."""
        going = True
        while going:
            self._streams.expire(self.models.slots.values())
            if not self._stopping:
                self._fallbacks.retry(time.monotonic())
            self._parting.step(self._devices.slots)
            self._feed()
            while self._fallbacks.route() | self._dance.step() | self._keep():
                self._feed()
            self.models.step()
            self._publish()
            going = self._answers.send()

    def _keep(self) -> bool:
        """Have conversations written that are to outlive the process; return whether rows are to move."""
        return self._keeper.step(self._devices.slots, last=self._stopping and not self._busy)

    def _feed(self) -> None:
        """Give the devices what they can take."""
        self._fallbacks.invite()
        for device, here in self._devices:
            self._steps.feed(device, here)
            while self._carrier.carry(device, here):
                self._steps.feed(device, here)

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(request, submitted):
                self._submit(request, submitted)
            case Cancel(request_id):
                self._streams.close(request_id, FinishReason.CANCELLED)
            case Finish(request_id):
                self._streams.close(request_id, FinishReason.STOP)
            case Taken(request_id, count):
                self._streams.take(request_id, count)
            case Allowed():
                pass  # the turn gives its stream a row
            case Stranded(request_id, error):
                self._streams.fail(request_id, error)
            case StepDone():
                self._steps.done(message)
            case MoveDone(slot, move, failure):
                self._carrier.carried(slot, move, failure)
            case SpillDone():
                assert self._bank is not None
                self._bank.settle(message)
            case SpillCleared(then=then, problem=problem):
                then(problem)
            case UnderstudyDone(slot, result):
                understudy = self._fallbacks.understudied(slot, result)
                if understudy is not None:
                    self._devices.enter(understudy)
            case RearmDone(slot, placed):
                self._fallbacks.rearmed(slot, placed)
            case SwitchPhase():
                pass  # the turn publishes it
            case SwitchDone():
                self._dance.arrived(message)
            case Load():
                self.models.load(message)
            case LoadDone(load, result):
                self.models.loaded(load, result)
            case Unload():
                self.models.unload(message)
            case UnloadDone(unload):
                self.models.unloaded(unload)
            case Activate():
                self.models.activate(message)
            case Flush():
                self.models.flush(message)
            case Drain(ending=ending):
                self._drains.add(message)
                self._drain(CLOSED if ending or self.models.catalogue.closed == CLOSED else DRAINING)
            case Resume(resumed):
                self._resume(resumed)
            case Configure(settings, configured):
                self._configure(settings)
                self._answers.give(configured, None)
            case Beat(turned):
                self._answers.give(turned, self._devices.at_work_s)
            case Stop():
                self._stop()

    def _submit(self, request: Request, submitted: float) -> None:
        try:
            self._streams.begin(self.models.find(request.model), request, submitted)
        except RequestError as error:
            self._ledger.refused(request, submitted, error, known=request.model in self.models.slots)
            self._streams.emit(request.id, FailedEvent(error))

    def _drain(self, closed: str) -> None:
        self.models.close(closed)
        for slot in self.models.slots.values():
            for sequence in list(slot.waiting):
                self._streams.end(slot, sequence, FailedEvent(UnavailableError(closed)))

    def _resume(self, resumed: Future[None]) -> None:
        if self.models.catalogue.closed == CLOSED:
            resumed.set_exception(UnavailableError(CLOSED))
            return
        self.models.reopen()
        self._drains.call_off(UnavailableError("the drain was called off: requests are admitted again"))
        self._answers.give(resumed, None)

    def _configure(self, settings: Settings) -> None:
        self._streams.configure(settings)
        self._gauges.configure(settings.queue)
        self._dance.configure(settings.switch)
        self._devices.configure(settings.engine.gap_ms / 1000)
        self.models.configure(settings.limits)

    def _stop(self) -> None:
        self._stopping = True
        self._drain(CLOSED)
        self._dance.stop()
        self._keeper.stop()
        self._parting.begin()
        for slot, sequence in list(self._streams.live.values()):
            self._streams.end(slot, sequence, FailedEvent(UnavailableError(CLOSED)))

    def _publish(self) -> None:
        self.snapshot = observe(
            self.models.slots.values(),
            self._fallbacks.passes,
            self._bank,
            self._dance,
        )
        self._ledger.published(self.snapshot)
        self._streams.hand_over()
        if not self._streams.live:
            self._drains.step(self._devices.slots, quiet=self._quiet)

    def break_down(self) -> None:
        """After `run` has raised: end what is live or still asked for. No more messages may come."""
        error = UnavailableError("the engine has failed and must be restarted; its log says why")
        self._devices.stop()
        self._streams.break_down(error)
        self._answers.send()
        self.models.break_down(error)
        self._dance.break_down(error)
        self._answers.send()
        self._flushes.break_down(error)
        self._drains.break_down(error)
        while not self._inbox.empty():
            match self._inbox.get():
                case Submit(request) if request.id not in self._streams.live:
                    self._streams.emit(request.id, FailedEvent(error))
                case Load(loaded=future) | Unload(unloaded=future) | Activate(activated=future):
                    _refuse(future, error)
                case Flush(freed=future) | Resume(resumed=future):
                    _refuse(future, error)
                case Configure(configured=future) | Beat(turned=future):
                    _refuse(future, error)
                case Drain(drained=future) as drain if not future.done():
                    self._drains.add(drain)
                    self._drains.break_down(error)
        self._streams.hand_over()


def _refuse(future: Future[Any], error: TierdError) -> None:
    """Let a future fail that has had no answer yet."""
    if not future.done():
        future.set_exception(error)
