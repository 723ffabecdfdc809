"""The engine over devices that fail, few regions, a small bank and a slow CPU, whatever happens in any order.

Every request ends once, with the text that it has alone. When all have ended nobody holds anything.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import drive
from engine.device_slot import NullFallback, device_slot
from engine.harness import model
from engine.manual import Board, BoardExecutor, ManualLoop
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
    UnavailableError,
)
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.settings import QueueSettings, ServerSettings, Settings
from tierd.slot import Slot
from tierd.tier.device_home import DeviceHome

POSITIONS, CONTEXT, CHUNK_ROWS = 48, 96, 8
ROW_BYTES = 8
FILES = 4000
MANY, FEW = b"the same opening of many talks, ", b"the same opening of a few, "
OPENINGS = (b"", b"a", MANY, FEW, b"x" * 30, b"y" * 70)
FAULTS = (DeviceLostError("lost"), DeviceTimeoutError("hung"), DeviceMemoryError("full"))
OFTEN = (*7 * (True,), False)
CALLS = st.tuples(st.integers(0, 9), st.integers(0, 9))  # of the device and of the CPU
A_MINUTE = 61.0


@functools.cache
def alone(asked: Request) -> str:
    """Return the text of a request that is served alone, on the CPU."""
    slot = null_slot(model(asked.model), pages=64, prefix_cache=False)
    drive.enqueue(slot, asked)
    return "".join(event.text for _, event in drive.serve(slot) if isinstance(event, TextEvent))


class ServingMachine(RuleBasedStateMachine):
    """Two models on one board. Requests come, wait for their clients, leave; whatever works may fail."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        regions=st.integers(1, 3),
        streams=st.integers(1, 4),
        bank=st.sampled_from((0, 40, 100, 1000)),
        spills=st.booleans(),
        keeps=st.sampled_from(OFTEN),
        scratch=st.booleans(),
        pages=st.sampled_from((24, 30, 256)),
        tries=st.sampled_from((0, 1, 3)),
        cpu=st.sampled_from(OFTEN),
        stops=st.booleans(),
    )
    def begin(
        self,
        regions: int,
        streams: int,
        bank: int,
        spills: bool,
        keeps: bool,
        scratch: bool,
        pages: int,
        tries: int,
        cpu: bool,
        stops: bool,
    ) -> None:
        gone = Gone()
        self.folder = tempfile.TemporaryDirectory() if spills else None
        self.spill = ManualSpill(Path(self.folder.name), FILES) if self.folder else None
        self.bank = Bank(bank * ROW_BYTES, on_drop=gone.dropped, spill=self.spill)
        self.board = Board()
        self.cpu_fault: ExecutorError | None = None
        readers = ServerSettings(reader_backlog=4, reader_timeout_s=10**6)
        self.loop = ManualLoop(Settings(queue=QueueSettings(timeout_s=0), server=readers), self.bank)
        self.slots = [
            device_slot(
                model(id, streams=count),
                regions=there,
                positions=POSITIONS,
                context=CONTEXT,
                bank=self.bank,
                gone=gone,
                keeps=keeps,
                scratch=scratch,
                chunk_rows=CHUNK_ROWS,
                executor=self.executor,
                cpu_step=self.cpu_step,
            )
            for id, there, count in (("a", regions, streams), ("b", 1, 2))
        ]
        for slot in self.slots:
            fallback = fallback_of(slot)
            fallback.tries, fallback.pages = tries, pages
            fallback.refusal = "" if cpu else "not there"
            self.loop.put(slot)
        self.asked: dict[str, Request] = {}
        self.cancelled: set[str] = set()
        self.away: set[str] = set()  # those that have been elsewhere than on the device
        self.delivered = 0  # calls of which the clients have read all
        self.stops = stops
        self.failures = False
        self.broken = False

    def executor(self, **options: object) -> BoardExecutor:
        if self.board.abandoned:
            self.board = Board()
        return BoardExecutor(self.board, **options)

    def cpu_step(self, batch: Batch) -> None:
        error, self.cpu_fault = self.cpu_fault, None
        if error is not None:
            raise error

    # ---- What happens

    @rule(
        model=st.sampled_from("aab"),
        opening=st.sampled_from(OPENINGS),
        tail=st.integers(0, 2),
        tokens=st.integers(1, 40),
        random=st.sampled_from((False, False, False, True)),
        copies=st.integers(1, 2),
        calls=CALLS,
    )
    def ask(
        self,
        model: str,
        opening: bytes,
        tail: int,
        tokens: int,
        random: bool,
        copies: int,
        calls: tuple[int, int],
    ) -> None:
        for _ in range(copies):
            self.submit(model, opening + b"q%d" % tail, tokens, random=random)
        self.turn()
        self.do(*calls)

    @precondition(lambda self: self.asked)
    @rule(index=st.integers(0, 1000), tokens=st.integers(1, 20), calls=CALLS)
    def go_on(self, index: int, tokens: int, calls: tuple[int, int]) -> None:
        """Go on with what a stream has said, to its end or so far."""
        id = f"r{index % len(self.asked)}"
        before = self.asked[id]
        said = bytes(before.prompt) + self.loop.mail.text(id).encode("utf-8", "ignore")
        self.submit(before.model, said[: CONTEXT - 8] + b" and", tokens)
        self.turn()
        self.do(*calls)

    @rule(calls=CALLS)
    def work(self, calls: tuple[int, int]) -> None:
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
        what=st.sampled_from(("breaks", "breaks", "fails", "fails on the CPU", "unseen", "flush", "later")),
        call=st.sampled_from(("submit", "step", "in", "out", "behind")),
        error=st.sampled_from(FAULTS),
        device=st.sampled_from(("gpu", "cpu")),
        model=st.sampled_from((None, "a")),
    )
    def disturb(self, what: str, call: str, error: Exception, device: str, model: str | None) -> None:
        """Have something go wrong, or happen at an awkward time."""
        match what:
            case "breaks":  # the device does, for good
                self.board.armed[call] = error
            case "fails" if call in ("step", "in", "out"):  # a call does, and nothing else
                self.board.armed[call] = ExecutorError("a fault")
                self.failures |= call == "step"
            case "fails on the CPU":
                self.cpu_fault = ExecutorError("a fault")
                self.failures = True
            case "unseen":  # what has been done lies in the inbox while more happens
                self.loop.work(device)
            case "flush":
                self.loop.inbox.put(Flush(model, Future()))
                self.turn()
            case "later":
                self.loop.retry(time.monotonic() + A_MINUTE)
                self.turn()

    @precondition(lambda self: self.loop.workers)
    @rule(succeeds=st.sampled_from(OFTEN))
    def worker(self, succeeds: bool) -> None:
        for slot in self.slots:
            fallback_of(slot).declines = [] if succeeds else [ModelError("no memory")]
            fallback_of(slot).broken = [] if succeeds else [DeviceLostError("still lost")]
        self.loop.workers.popleft()()
        self.turn()

    @precondition(lambda self: self.spill is not None and self.spill.job is not None)
    @rule(fate=st.sampled_from(("done", "done", "done", "failed", "full")))
    def write_or_read(self, fate: str) -> None:
        self.move_file(fate)
        self.turn()

    # ---- How

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

    def do(self, gpu: int, cpu: int) -> None:
        """Let the devices do so much, if there is so much to do."""
        for device, count in (("gpu", gpu), ("cpu", cpu)):
            for _ in range(count):
                if not self.loop.work(device):
                    break
                self.turn()

    def turn(self) -> None:
        self.broken = True
        self.loop.turn()
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

    def take_all(self) -> None:
        """Let all clients read all that there is for them."""
        calls = self.loop.mail.calls
        for id, event in (pair for call in calls[self.delivered :] for pair in call):
            if isinstance(event, TextEvent):
                self.loop.inbox.put(Taken(id, 1))
        self.delivered = len(calls)

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
            if self.folder is not None:
                self.folder.cleanup()

    def rest(self) -> None:
        """Let everything come to its end, without further faults."""
        self.board.armed.clear()
        self.cpu_fault = None
        if self.stops:
            self.loop.inbox.put(Stop())
            self.turn()
        going = True
        while going:
            going = self.loop.work("gpu") | self.loop.work("cpu") | bool(self.loop.workers)
            if self.loop.workers:
                self.loop.workers.popleft()()
            if self.spill is not None and self.spill.job is not None:
                self.move_file("done")
            self.take_all()
            going |= not self.loop.inbox.empty()
            self.turn()
        assert not self.loop.live, "streams that never end"
        assert not self.loop.busy

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
        for slot in self.slots:
            for reason in PassReason:
                name, labels = "tierd_gpu_cpu_passes_total", {"model": slot.id, "reason": reason}
                if self.loop.metrics.registry.get_sample_value(name, labels):
                    self.seen[reason] += 1

    def may_end(self, id: str, end: TerminalEvent) -> bool:
        """Whether there was a reason for a stream to end before it had said everything."""
        homeless = any(fallback_of(slot).declined or fallback_of(slot).refusal for slot in self.slots)
        match end:
            case FinishedEvent(reason=FinishReason.CANCELLED):
                return id in self.cancelled
            case FinishedEvent(reason=FinishReason.LENGTH) | FailedEvent(ContextLengthExceededError()):
                return homeless
            case FailedEvent(UnavailableError()):
                return self.stops or homeless
        return self.failures

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


USUAL = {
    *("whole", "lost", "stranded", "followed", "paused", "banked", "spilled"),
    *(PassReason.DEVICE_LOST, PassReason.UNHOMED, PassReason.PAGED, PassReason.CAP, PassReason.PINNED_OFF),
}
SELDOM = {"returned", "fetched", PassReason.BUSY, PassReason.GAP}


@pytest.mark.parametrize(
    ("examples", "wanted"),
    [(120, USUAL), pytest.param(3000, USUAL | SELDOM, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_every_stream_ends_with_its_text_and_leaves_nothing(examples: int, wanted: set[str]) -> None:
    ServingMachine.seen = Counter()
    run_state_machine_as_test(
        ServingMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate, Phase.shrink),
        ),
    )
    assert set(+ServingMachine.seen) >= wanted, ServingMachine.seen
    assert ServingMachine.seen["turns"] > 40 * examples, ServingMachine.seen
