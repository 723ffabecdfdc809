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
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from prometheus_client import Counter as Counts

from engine import drive
from engine.device_slot import NullFallback
from engine.harness import model
from engine.manual import Board, BoardExecutor, Clock, ManualLoop
from engine.null_slot import null_slot, request
from engine.scored import expected
from manual_spill import ManualSpill
from tierd.core import (
    Batch,
    FailedEvent,
    FinishedEvent,
    FinishReason,
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
from tierd.kv.paged import PagedHome
from tierd.settings import Settings
from tierd.slot import Slot
from tierd.tier.device_home import DeviceHome

POSITIONS, CONTEXT, CHUNK_ROWS = 48, 96, 8
ROW_BYTES = 8
FILES = 4000
SHARED = b"the same opening of many talks, ", b"the same opening of a few, "
OPENINGS = (b"", b"a", *SHARED, b"x" * 30, b"y" * 70)
A_FAULT = "a fault"
FAULTS = (DeviceLostError, DeviceTimeoutError, DeviceMemoryError)
OFTEN, RARELY = (*7 * (True,), False), (*5 * (False,), True)
A_STEP, A_MINUTE = 0.05, 61.0
FATES = (*4 * ("well",), "no room", "lost")  # of what a thread does
# Which of them, how it fares, and how many in a row fare so.
THREADS = st.tuples(st.integers(0, 3), st.sampled_from(FATES), st.integers(1, 3))
# What is done of the device's work, of the CPU's, and by the engine's threads.
CALLS = st.tuples(st.integers(0, 9), st.integers(0, 9), st.lists(THREADS, max_size=2))
Calls = tuple[int, int, list[tuple[int, str, int]]]
# Which model, how it begins, how many tokens.
TALKS = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(OPENINGS), st.integers(1, 40)), min_size=1, max_size=6
)
MANY = 1000  # no example has so many requests
ROUND = 10
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


def alone(asked: Request) -> str:
    """Return the text of a request that is served alone, on the CPU. It is the same for all models."""
    return _alone(replace(asked, id="", model="any", priority=0))


@functools.cache
def _alone(asked: Request) -> str:
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
        opening=st.sampled_from(OPENINGS) | st.integers(0, 1000),
        tail=st.integers(0, 2),
        tokens=st.integers(1, 40),
        random=st.sampled_from((False, False, False, True)),
        priority=st.sampled_from((0, 0, 0, 0, -1, 1, 2)),
        copies=st.integers(1, 2),
        calls=CALLS,
    )
    def ask(
        self,
        index: int,
        opening: bytes | int,
        tail: int,
        tokens: int,
        random: bool,
        priority: int,
        copies: int,
        calls: Calls,
    ) -> None:
        """Let requests come; a number: they go on with what a stream has said, to its end or so far."""
        model, prompt = self.name(index), opening
        if isinstance(prompt, int):
            if not self.asked:
                return
            id = f"r{prompt % len(self.asked)}"
            model = self.asked[id].model
            said = bytes(self.asked[id].prompt) + self.loop.mail.text(id).encode("utf-8", "ignore")
            prompt = said[: CONTEXT - 8] + b" and"
        for _ in range(copies):
            scored = random and tail == 0
            self.submit(
                model, prompt + b"q%d" % tail, tokens, random=random, priority=priority, scored=scored
            )
        self.turn()
        self.do(*calls)

    @rule(
        what=st.sampled_from(
            ("work", "work", "cancel", "read", "unseen", "flush", "flush one", "file", "save")
        ),
        index=st.integers(0, 1000),
        fate=st.sampled_from(FATES),
        calls=CALLS,
    )
    def serve(self, what: str, index: int, fate: str, calls: Calls) -> None:
        """Let clients leave or read, the cache be flushed, a file be written or read, and work be done."""
        live = sorted(self.loop.live)
        match what:
            case "cancel" if live:
                self.cancelled.add(live[index % len(live)])
                self.loop.inbox.put(Cancel(live[index % len(live)]))
            case "read":
                self.take_all()
            case "unseen":  # what has been done lies in the inbox while more happens
                self.work(("gpu", "cpu")[index % 2])
                return
            case "file" if self.spill is not None and self.spill.job is not None:
                self.move_file(fate)
            case "save":
                self.loop.save()
            case "flush" | "flush one":
                self.loop.inbox.put(Flush(self.models[0] if what == "flush one" else None, Future()))
        self.turn()
        self.do(*calls)

    @rule(seconds=st.sampled_from((0.1, 1.0, 5.0, A_MINUTE, None)))
    def pass_time(self, seconds: float | None) -> None:
        """Let time pass; None: till something is due, but not till a client has let it wait for too long."""
        due = max(0.0, (self.loop.due or 0.0) - self.clock.now)
        self.clock.now += min(due, A_MINUTE) if seconds is None else seconds
        self.turn()

    @precondition(lambda self: not self.calm)
    @rule(
        what=st.sampled_from(("breaks", "breaks", "fails", "fails on the CPU")),
        call=st.sampled_from(("submit", "step", "in", "out", "behind")),
        error=st.sampled_from(FAULTS),
        calls=CALLS,
    )
    def disturb(self, what: str, call: str, error: type[Exception], calls: Calls) -> None:
        """Have something go wrong."""
        match what:
            case "breaks":  # the device does, for good
                self.board.armed[call] = error("it has failed")
            case "fails" if call in ("step", "in", "out"):  # a call does, and nothing else
                self.board.armed[call] = ExecutorError(A_FAULT)
                self.failures |= call == "step"
            case "fails on the CPU":
                self.cpu_fault = ExecutorError(A_FAULT)
                self.failures = True
        self.do(*calls)

    # ---- How

    def ask_first(self, talks: list[tuple[int, bytes, int]]) -> None:
        """Let an example begin with some streams, for it may be one in which nobody asks later."""
        for index, opening, tokens in talks:
            self.submit(self.name(index), opening + b"q", tokens)
        self.turn()

    def name(self, index: int) -> str:
        return self.models[index % len(self.models)]

    def submit(
        self,
        model: str,
        prompt: bytes,
        tokens: int,
        *,
        random: bool = False,
        priority: int = 0,
        scored: bool = False,
    ) -> None:
        id = f"r{len(self.asked)}"
        asked = request(
            id,
            prompt,
            min(tokens, CONTEXT - len(prompt)),
            model=model,
            temperature=0.5 if random else 0.0,
            seed=7,
        )
        self.asked[id] = asked = replace(asked, priority=priority, prompt_logprobs=1 if scored else None)
        self.loop.submit(asked)

    def do(self, gpu: int, cpu: int, threads: list[tuple[int, str, int]]) -> None:
        """Let the devices and the engine's threads do so much, if there is so much to do."""
        for index, fate, tries in threads[: len(self.loop.workers)]:
            self.prepare_workers("well" if self.calm else fate, tries)
            self.let_work(index)
            self.prepare_workers("well")
            self.turn()
        for device, count in (("gpu", gpu), ("cpu", cpu)):
            for _ in range(count):
                if not self.work(device):
                    break
                self.turn()

    def work(self, device: str) -> bool:
        """Let a device do its next thing, which takes time; return whether there was one."""
        worked = self.loop.work(device)
        self.clock.now += A_STEP * worked
        return worked

    def prepare_workers(self, fate: str, tries: int = 1) -> None:
        """Say how the engine's threads will fare from now on. tries: so often."""
        ill = fate != "well"
        for slot in self.fallible:
            fallback_of(slot).declines = ill * [ModelError("no memory")]
            fallback_of(slot).broken = ill * [DeviceLostError("still lost")]

    def let_work(self, index: int) -> None:
        """Let one of the engine's threads, of which there are some, do its work."""
        at = index % len(self.loop.workers)
        work = self.loop.workers[at]
        del self.loop.workers[at]
        work()
        self.homeless |= any(fallback_of(slot).declined for slot in self.fallible)

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
        done = self.spill.finish() if fate == "well" else self.spill.fail(full=fate == "no room")
        self.loop.inbox.put(done)

    @property
    def fallible(self) -> list[Slot]:
        """Those slots that have a device to lose."""
        return [slot for slot in self.slots if slot.fallback is not None]

    @property
    def paged(self) -> list[Slot]:
        """All slots and understudies that have pages of the host."""
        return [slot for slot in self.loop.everyone if isinstance(slot.home, PagedHome)]

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
        for slot in self.fallible:
            for sequence in slot.running:
                assert sequence.pages == [home_of(slot).regions.region_of(sequence)]

    @invariant()
    def every_promised_page_is_granted(self) -> None:
        for slot in self.paged:
            there = [*slot.running, *slot.leaving]
            promised = sum(slot.home.granted(sequence) - len(sequence.pages) for sequence in there)
            assert slot.home.room.reserved == promised
            assert all(slot.home.granted(s) >= len(s.pages) for s in there)
            assert not any(s.pages for s in [*slot.waiting, *slot.returning, *slot.exiles])

    @invariant()
    def the_order_is_that_of_ranks(self) -> None:
        for slot in self.loop.everyone:
            for line in (slot.waiting, slot.returning, slot.running, slot.exiles):
                ranks = [sequence.rank for sequence in line]
                assert ranks == sorted(ranks)

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
        if self.stops:
            self.loop.inbox.put(Stop())
        spins = 0
        for _ in range(MOST_TURNS):
            if not self.loop.inbox.empty():
                spins = 0
                self.turn()
            elif self.is_due:
                spins += 1
                assert spins < 5, "the loop turns and turns"
                self.turn()
            elif self.work("gpu") | self.work("cpu"):
                pass
            elif self.loop.workers:
                self.let_work(0)
            elif self.spill is not None and self.spill.job is not None:
                self.move_file("well")
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
            scores = [score for event in self.texts(id) for score in event.prompt]
            if asked.prompt_logprobs is not None:
                exact = expected(asked.prompt, 1)
                assert scores == exact[: len(scores)]
                assert len(scores) == len(exact) or not text
                self.seen["scored"] += len(scores) == len(exact)
            if isinstance(end, FinishedEvent) and end.usage.completion_tokens == asked.max_tokens:
                assert text == alone(asked)
                self.seen["whole"] += 1
            else:
                assert alone(asked).startswith(text)
                assert self.may_end(id, end), end
        self.seen.update(self.counted(self.loop.metrics.passes, "reason"))
        self.seen.update(f"preempted, {rows}" for rows in self.counted(self.loop.metrics.preemptions, "rows"))

    def texts(self, id: str) -> list[TextEvent]:
        return [event for event in self.loop.mail.events(id) if isinstance(event, TextEvent)]

    @staticmethod
    def counted(counter: Counts, label: str) -> set[str]:
        """Return the values of a label under which anything was counted."""
        (metric,) = counter.collect()
        return {
            sample.labels[label]
            for sample in metric.samples
            if sample.name == f"{metric.name}_total" and sample.value
        }

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
            assert not any((slot.home.moves, slot.guests, slot.steps, slot.leaving, slot.preempting))
        for entry in self.bank.entries:
            assert entry.kept
            assert (entry.pins, entry.live) == (0, False)
        for slot in self.fallible:
            if not slot.lost:
                regions = home_of(slot).regions
                assert regions.free + regions.parked == regions.count
                assert not any(view.pins for view in regions)
        for slot in self.paged:
            room = slot.home.room
            assert room.free + room.cached == room.total
            assert not room.reserved
        self.loop.inbox.put(Flush(None, Future()))
        self.turn()
        assert not self.bank.entries
        assert (self.bank.used, self.bank.spilled) == (0, 0)
        for slot in self.loop.everyone:
            assert slot.lost or slot.home.room.free == slot.home.room.total
            slot.executor.close()


def play(machine: type[ServingMachine], rounds: int) -> None:
    """Play a machine in so many rounds of `ROUND` examples, the same ones each time.

    Rounds are that short since in longer ones most examples would be much like another one.
    """
    machine.seen.clear()
    for start in range(rounds):
        run_state_machine_as_test(
            seed(start)(machine),
            settings=settings(
                max_examples=ROUND,
                stateful_step_count=50,
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )


def home_of(slot: Slot) -> DeviceHome:
    assert isinstance(slot.home, DeviceHome)
    return slot.home


def fallback_of(slot: Slot) -> NullFallback:
    assert isinstance(slot.fallback, NullFallback)
    return slot.fallback
