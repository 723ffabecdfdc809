"""Requests of any order over models on a device, with clients that read or do not, and work that may fail.

What machines share that play the engine: whatever happens, every request ends once, with the text that it has
alone. When all have ended nobody holds anything.
"""

from __future__ import annotations

import functools
import logging
import tempfile
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine import drive
from engine.device_slot import NullFallback
from engine.harness import model
from engine.manual import Board, BoardExecutor, Clock, ManualLoop
from engine.null_slot import null_slot, request
from manual_spill import ManualSpill
from tierd.core import (
    Batch,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    PassReason,
    Request,
    TerminalEvent,
    TextEvent,
)
from tierd.engine.messages import Cancel, Flush, Stop, Taken
from tierd.errors import (
    ContextLengthExceededError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceTimeoutError,
    ExecutorError,
    ModelError,
    TierdError,
    UnavailableError,
)
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.settings import Settings
from tierd.slot import Slot
from tierd.tier.device_home import DeviceHome

POSITIONS, CONTEXT, CHUNK_ROWS = 48, 96, 8
ROW_BYTES = 8
FILES = 4000
MANY, FEW = b"the same opening of many talks, ", b"the same opening of a few, "
OPENINGS = (b"", b"a", MANY, FEW, b"x" * 30, b"y" * 70)
A_FAULT = "a fault"
FAULTS = (DeviceLostError("lost"), DeviceTimeoutError("hung"), DeviceMemoryError("full"))
OFTEN, RARELY = (*7 * (True,), False), (*5 * (False,), True)
# Of the device, of the CPU, and of the engine's threads.
CALLS = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2))
A_MINUTE = 61.0
# Which model, how it begins, how many tokens.
TALKS = st.lists(st.tuples(st.integers(0, 11), st.sampled_from(OPENINGS), st.integers(1, 40)), max_size=5)
MOST_TURNS = 20_000  # no example needs so many to come to rest


class Slips(logging.Handler):
    """Errors that nobody has played, but the engine has caught and logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        logged = [*(record.args if isinstance(record.args, tuple) else ()), *(record.exc_info or ())]
        self.errors += [
            error for error in logged if isinstance(error, BaseException) and not self.is_played(error)
        ]

    @staticmethod
    def is_played(error: BaseException) -> bool:
        if isinstance(error, ExecutorError):
            return str(error) == A_FAULT
        return isinstance(error, TierdError)


@functools.cache
def alone(asked: Request) -> str:
    """Return the text of a request that is served alone, on the CPU."""
    slot = null_slot(model(asked.model), pages=64, prefix_cache=False)
    drive.enqueue(slot, asked)
    return "".join(event.text for _, event in drive.serve(slot) if isinstance(event, TextEvent))


class ServingMachine(RuleBasedStateMachine):
    """Requests come, wait for their clients, leave; whatever works may fail. Models are the machine's own.

    seen: what has come about, over all examples.
    """

    seen: ClassVar[Counter[str]]
    models: ClassVar[str]  # a letter each; who stands there more often is asked more often

    calm = False  # nothing goes wrong
    slots: list[Slot]  # those that are served, or about to be

    def open(self, settings: Settings, *, bank: int, spills: bool, stops: bool, **options: object) -> None:
        """Begin an example. bank: positions that it holds. stops: it ends by a Stop. options: the loop's."""
        self.gone = Gone()
        self.folder = tempfile.TemporaryDirectory() if spills else None
        self.spill = ManualSpill(Path(self.folder.name), FILES) if self.folder else None
        self.bank = Bank(bank * ROW_BYTES, on_drop=self.gone.dropped, spill=self.spill)
        self.board = Board()
        self.cpu_fault: ExecutorError | None = None
        self.clock = Clock()
        self.slips = Slips()
        logging.getLogger("tierd").addHandler(self.slips)
        self.loop = ManualLoop(settings, self.bank, clock=self.clock, **options)  # type: ignore[arg-type]
        self.slots = []
        self.asked: dict[str, Request] = {}
        self.cancelled: set[str] = set()
        self.away: set[str] = set()  # those that have been elsewhere than on the device
        self.delivered = 0  # calls of which the clients have read all
        self.stops = stops
        self.homeless = False  # the CPU could not have somebody's streams
        self.failures = False
        self.broken = False

    def executor(self, **options: object) -> BoardExecutor:
        return BoardExecutor(self.board, **options)

    def cpu_step(self, batch: Batch) -> None:
        error, self.cpu_fault = self.cpu_fault, None
        if error is not None:
            raise error

    # ---- What happens

    @rule(
        index=st.integers(0, 11),
        opening=st.sampled_from(OPENINGS),
        tail=st.integers(0, 2),
        tokens=st.integers(1, 40),
        random=st.sampled_from((False, False, False, True)),
        copies=st.integers(1, 2),
        calls=CALLS,
    )
    def ask(
        self,
        index: int,
        opening: bytes,
        tail: int,
        tokens: int,
        random: bool,
        copies: int,
        calls: tuple[int, int, int],
    ) -> None:
        for _ in range(copies):
            self.submit(self.name(index), opening + b"q%d" % tail, tokens, random=random)
        self.turn()
        self.do(*calls)

    @precondition(lambda self: self.asked)
    @rule(index=st.integers(0, 1000), tokens=st.integers(1, 20), calls=CALLS)
    def go_on(self, index: int, tokens: int, calls: tuple[int, int, int]) -> None:
        """Go on with what a stream has said, to its end or so far."""
        id = f"r{index % len(self.asked)}"
        before = self.asked[id]
        said = bytes(before.prompt) + self.loop.mail.text(id).encode("utf-8", "ignore")
        self.submit(before.model, said[: CONTEXT - 8] + b" and", tokens)
        self.turn()
        self.do(*calls)

    @rule(calls=CALLS)
    def work(self, calls: tuple[int, int, int]) -> None:
        self.do(*calls)

    @precondition(lambda self: self.loop.live)
    @rule(index=st.integers(0, 1000))
    def cancel(self, index: int) -> None:
        live = sorted(self.loop.live)
        id = live[index % len(live)]
        self.cancelled.add(id)
        self.loop.inbox.put(Cancel(id))
        self.turn()

    @rule()
    def read(self) -> None:
        self.take_all()
        self.turn()

    @rule(
        what=st.sampled_from(("unseen", "flush", "flush one", "later", "save")),
        device=st.sampled_from(("gpu", "cpu")),
    )
    def meet(self, what: str, device: str) -> None:
        """Have something happen at an awkward time."""
        match what:
            case "unseen":  # what has been done lies in the inbox while more happens
                self.loop.work(device)
            case "later":
                self.clock.now += A_MINUTE
                self.turn()
            case "save":
                self.loop.save()
                self.turn()
            case flush:
                self.loop.inbox.put(Flush(self.models[0] if flush == "flush one" else None, Future()))
                self.turn()

    @precondition(lambda self: not self.calm)
    @rule(
        what=st.sampled_from(("breaks", "breaks", "fails", "fails on the CPU")),
        call=st.sampled_from(("submit", "step", "in", "out", "behind")),
        error=st.sampled_from(FAULTS),
    )
    def disturb(self, what: str, call: str, error: Exception) -> None:
        """Have something go wrong."""
        match what:
            case "breaks":  # the device does, for good
                self.board.armed[call] = error
            case "fails" if call in ("step", "in", "out"):  # a call does, and nothing else
                self.board.armed[call] = ExecutorError(A_FAULT)
                self.failures |= call == "step"
            case "fails on the CPU":
                self.cpu_fault = ExecutorError(A_FAULT)
                self.failures = True

    @precondition(lambda self: self.loop.workers)
    @rule(index=st.integers(0, 3), succeeds=st.sampled_from(OFTEN))
    def worker(self, index: int, succeeds: bool) -> None:
        """Let one of the engine's threads do its work."""
        self.prepare_workers(succeeds=succeeds or self.calm)
        self.let_work(index)
        self.turn()

    @precondition(lambda self: self.spill is not None and self.spill.job is not None)
    @rule(fate=st.sampled_from(("done", "done", "done", "failed", "full")))
    def write_or_read(self, fate: str) -> None:
        self.move_file(fate)
        self.turn()

    # ---- How

    def ask_first(self, talks: list[tuple[int, bytes, int]]) -> None:
        """Let an example begin with some streams, for it may be one in which nobody asks later."""
        for index, opening, tokens in talks:
            self.submit(self.name(index), opening + b"q", tokens)
        self.turn()

    def name(self, index: int) -> str:
        return self.models[index % len(self.models)]

    def submit(self, model: str, prompt: bytes, tokens: int, *, random: bool = False) -> None:
        id = f"r{len(self.asked)}"
        asked = request(
            id,
            prompt,
            min(tokens, CONTEXT - len(prompt)),
            model=model,
            temperature=0.5 if random else 0.0,
            seed=7,
        )
        self.asked[id] = asked
        self.loop.submit(asked)

    def do(self, gpu: int, cpu: int, threads: int) -> None:
        """Let the devices and the engine's threads do so much, if there is so much to do."""
        self.prepare_workers(succeeds=True)
        for _ in range(min(threads, len(self.loop.workers))):
            self.let_work(0)
            self.turn()
        for device, count in (("gpu", gpu), ("cpu", cpu)):
            for _ in range(count):
                if not self.loop.work(device):
                    break
                self.turn()

    def prepare_workers(self, *, succeeds: bool) -> None:
        """Say how the engine's threads will fare from now on."""
        for slot in self.slots:
            fallback_of(slot).declines = [] if succeeds else [ModelError("no memory")]
            fallback_of(slot).broken = [] if succeeds else [DeviceLostError("still lost")]

    def let_work(self, index: int) -> None:
        """Let one of the engine's threads, of which there are some, do its work."""
        at = index % len(self.loop.workers)
        work = self.loop.workers[at]
        del self.loop.workers[at]
        work()
        self.homeless |= any(fallback_of(slot).declined for slot in self.slots)

    def turn(self) -> None:
        self.broken = True
        self.loop.turn()
        assert not self.slips.errors, self.slips.errors
        self.broken = False
        self.seen["turns"] += 1
        for slot in self.slots:
            self.seen["lost"] += bool(slot.lost)
            self.seen["stranded"] += bool(slot.stranded)
            there = slot.understudy.running if slot.understudy is not None else []
            self.away.update(sequence.request.id for sequence in (*there, *slot.exiles))
            self.seen["returned"] += any(sequence.request.id in self.away for sequence in slot.running)
            self.seen["followed"] += any(sequence.follows for sequence in slot.running)
            self.seen["paused"] += any(sequence.paused for sequence in slot.running)
        self.seen["banked"] += bool(self.bank.entries)
        self.seen["spilled"] += bool(self.bank.spilled)
        self.seen["fetched"] += any(entry.fetching for entry in self.bank.entries)

    def take_all(self) -> bool:
        """Let all clients read all that there is for them; return whether there was any."""
        calls = self.loop.mail.calls
        texts = [id for call in calls[self.delivered :] for id, event in call if isinstance(event, TextEvent)]
        for id in texts:
            self.loop.inbox.put(Taken(id, 1))
        self.delivered = len(calls)
        return bool(texts)

    def move_file(self, fate: str) -> None:
        assert self.spill is not None
        done = self.spill.finish() if fate == "done" else self.spill.fail(full=fate == "full")
        self.loop.inbox.put(done)

    # ---- What is true at any time

    @invariant()
    def the_bank_is_within_its_limit(self) -> None:
        held = sum(entry.bytes for entry in self.bank.entries if entry.in_memory or entry.fetching)
        assert self.bank.used == held <= self.bank.limit

    @invariant()
    def every_stream_is_in_one_place(self) -> None:
        places: Counter[str] = Counter()
        for slot in self.loop.everyone:
            for queue in (slot.waiting, slot.returning, slot.running, slot.exiles):
                places.update(sequence.request.id for sequence in queue)
        assert set(places) == self.loop.live
        assert all(count == 1 for count in places.values())

    @invariant()
    def every_running_stream_has_a_region_of_its_own(self) -> None:
        for slot in self.slots:
            for sequence in slot.running:
                assert sequence.pages == [home_of(slot).regions.region_of(sequence)]

    # ---- And at the end

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            if not self.broken:
                self.rest()
                self.check_ends()
                self.check_that_nothing_is_held()
        finally:
            self.loop.close()
            logging.getLogger("tierd").removeHandler(self.slips)
            if self.folder is not None:
                self.folder.cleanup()

    def rest(self) -> None:
        """Let everything come to its end, without further faults. A turn is taken only where there is why."""
        self.board.armed.clear()
        self.cpu_fault = None
        self.prepare_workers(succeeds=True)
        if self.stops:
            self.loop.inbox.put(Stop())
        due = 0
        for _ in range(MOST_TURNS):
            due = due + 1 if self.is_due and self.loop.inbox.empty() else 0
            assert due < 5, "the loop spins"
            if not self.loop.inbox.empty() or self.is_due:
                self.turn()
            elif self.loop.work("gpu") | self.loop.work("cpu"):
                pass
            elif self.loop.workers:
                self.let_work(0)
            elif self.spill is not None and self.spill.job is not None:
                self.move_file("done")
            elif not self.take_all():
                if self.rests or self.loop.due is None:
                    break
                self.clock.now = self.loop.due
        assert self.rests, "somebody waits for ever"
        assert self.loop.ended == self.stops
        assert not self.loop.busy

    @property
    def is_due(self) -> bool:
        """Whether the loop takes a turn though nothing has come."""
        return self.loop.due is not None and self.loop.due <= self.clock.now

    @property
    def rests(self) -> bool:
        """Whether nobody waits for anything."""
        return not self.loop.live

    def check_ends(self) -> None:
        ends = self.loop.mail.terminals()
        assert ends.keys() == self.asked.keys()
        for id, asked in self.asked.items():
            (end,) = ends[id]
            text = self.loop.mail.text(id)
            if isinstance(end, FinishedEvent) and end.usage.completion_tokens == asked.max_tokens:
                assert text == alone(asked)
                self.seen["whole"] += 1
            else:
                assert alone(asked).startswith(text)
                assert self.may_end(id, end), end
        for name in set(self.models):
            self.seen.update(self.passes_of(name))

    def passes_of(self, name: str) -> set[str]:
        """Return why streams of a model were on the CPU."""
        value = self.loop.metrics.registry.get_sample_value
        labels = [{"model": name, "reason": reason} for reason in PassReason]
        return {each["reason"] for each in labels if value("tierd_gpu_cpu_passes_total", each)}

    def may_end(self, id: str, end: TerminalEvent) -> bool:
        """Whether there was a reason for a stream to end before it had said everything."""
        match end:
            case FinishedEvent(reason=FinishReason.CANCELLED):
                return id in self.cancelled
            case FinishedEvent(reason=FinishReason.LENGTH) | FailedEvent(ContextLengthExceededError()):
                return self.homeless
            case FailedEvent(UnavailableError()):
                return self.stops or self.homeless
            case FailedEvent(ExecutorError()):
                return self.failures
        return False

    def check_that_nothing_is_held(self) -> None:
        for slot in self.loop.everyone:
            assert not any((slot.home.moves, slot.guests, slot.steps, slot.leaving))
        for entry in self.bank.entries:
            assert entry.kept
            assert (entry.pins, entry.live) == (0, False)
        for slot in self.slots:
            if not slot.lost:
                regions = home_of(slot).regions
                assert regions.free + regions.parked == regions.count
                assert not any(view.pins for view in regions)
            if slot.understudy is not None:
                room = slot.understudy.home.room
                assert room.free + room.cached == room.total
                assert not room.reserved
        self.loop.inbox.put(Flush(None, Future()))
        self.turn()
        assert not self.bank.entries
        assert (self.bank.used, self.bank.spilled) == (0, 0)
        for slot in self.loop.everyone:
            assert slot.lost or slot.home.room.free == slot.home.room.total
            slot.executor.close()


def home_of(slot: Slot) -> DeviceHome:
    assert isinstance(slot.home, DeviceHome)
    return slot.home


def fallback_of(slot: Slot) -> NullFallback:
    assert isinstance(slot.fallback, NullFallback)
    return slot.fallback
