"""The engine over devices that fail, with few regions and a small bank, whatever may happen in any order.

Every request ends once, with the text it would have alone. When all have ended nobody holds anything.
"""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

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
from tierd.core import Batch, FailedEvent, FinishedEvent, FinishReason, Request, TextEvent
from tierd.engine.messages import Cancel, Flush, Taken
from tierd.errors import (
    ContextLengthExceededError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceTimeoutError,
    ExecutorError,
    ModelError,
)
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.settings import QueueSettings, ServerSettings, Settings
from tierd.slot import Slot
from tierd.tier.device_home import DeviceHome

POSITIONS, CONTEXT, CHUNK_ROWS = 48, 96, 8
ROW_BYTES = 8
BACKLOG = 4
OPENINGS = (
    b"",
    b"a",
    b"the same opening of many talks, ",
    b"the same opening of a few, ",
    b"x" * 30,
    b"y" * 70,
)
FAULTS = (DeviceLostError("lost"), DeviceTimeoutError("hung"), DeviceMemoryError("full"))
CALLS = ("submit", "step", "in", "out", "behind")


@functools.cache
def alone(asked: Request) -> str:
    """Return the text of a request that is served alone on the CPU."""
    slot = null_slot(model(asked.model), pages=64, prefix_cache=False)
    return "".join(e.text for _, e in serve_alone(slot, asked) if isinstance(e, TextEvent))


def serve_alone(slot: Slot, asked: Request) -> list[tuple[object, object]]:
    drive.enqueue(slot, asked)
    return list(drive.serve(slot))


class ServingMachine(RuleBasedStateMachine):
    """Two models on one board. Requests come, pause, are cancelled; devices and workers succeed and fail."""

    steps = 0
    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        regions=st.integers(1, 3),
        streams=st.integers(1, 4),
        bank=st.sampled_from((0, 40, 100, 1000)),
        spills=st.booleans(),
        keeps=st.booleans(),
        scratch=st.booleans(),
        pages=st.sampled_from((24, 30, 256)),
        tries=st.sampled_from((0, 1, 3)),
        cpu=st.sampled_from((True, True, True, False)),
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
    ) -> None:
        gone = Gone()
        self.folder = tempfile.TemporaryDirectory() if spills else None
        self.spill = ManualSpill(Path(self.folder.name), 4000) if self.folder else None
        self.bank = Bank(bank * ROW_BYTES, on_drop=gone.dropped, spill=self.spill)
        self.board = Board()
        self.cpu_fault: ExecutorError | None = None
        self.loop = ManualLoop(
            Settings(
                queue=QueueSettings(timeout_s=0),
                server=ServerSettings(reader_backlog=BACKLOG, reader_timeout_s=10**6),
            ),
            self.bank,
        )
        self.slots = [
            device_slot(
                model(id, streams=least + streams),
                regions=regions,
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
            for id, regions, least in (("a", regions, 0), ("b", 1, 1))
        ]
        for slot in self.slots:
            fallback = self.fallback(slot)
            fallback.tries, fallback.pages = tries, pages
            if not cpu:
                fallback.refusal = "not there"
            self.loop.put(slot)
        self.asked: dict[str, Request] = {}
        self.read_calls = 0
        self.cancelled: set[str] = set()
        self.broken = self.failures = False
        self.talks: list[bytes] = []

    def executor(self, **options: object) -> BoardExecutor:
        if self.board.abandoned:
            self.board = Board()
        return BoardExecutor(self.board, **options)

    def cpu_step(self, batch: Batch) -> None:
        error, self.cpu_fault = self.cpu_fault, None
        if error is not None:
            raise error

    def fallback(self, slot: Slot) -> NullFallback:
        assert isinstance(slot.fallback, NullFallback)
        return slot.fallback

    # ---- What happens

    @rule(
        model=st.sampled_from("aab"),
        opening=st.sampled_from(OPENINGS),
        tail=st.integers(0, 2),
        tokens=st.integers(1, 40),
        random=st.sampled_from((False, False, False, True)),
        copies=st.integers(1, 2),
    )
    def ask(self, model: str, opening: bytes, tail: int, tokens: int, random: bool, copies: int) -> None:
        self.submit(model, opening + b"q%d" % tail, tokens, random, copies)

    @precondition(lambda self: self.talks)
    @rule(index=st.integers(0, 1000), model=st.sampled_from("aab"), tokens=st.integers(1, 20))
    def go_on(self, index: int, model: str, tokens: int) -> None:
        talk = self.talks[index % len(self.talks)]
        self.submit(model, talk + b" and", min(tokens, CONTEXT - len(talk) - 4), False, 1)

    def submit(self, model: str, prompt: bytes, tokens: int, random: bool, copies: int) -> None:
        tokens = min(tokens, CONTEXT - len(prompt))
        for _ in range(copies):
            id = f"r{len(self.asked)}"
            asked = request(id, prompt, tokens, model=model, temperature=0.5 * random, seed=7)
            self.asked[id] = asked
            self.loop.submit(asked)
        self.turn()

    @rule(device=st.sampled_from(("gpu", "gpu", "cpu")), count=st.integers(1, 12))
    def work(self, device: str, count: int) -> None:
        for _ in range(count):
            if not self.loop.work(device):
                break
            self.turn()

    @rule(device=st.sampled_from(("gpu", "cpu")))
    def work_unseen(self, device: str) -> None:
        """What is done lies in the inbox while more happens."""
        self.loop.work(device)

    @rule(index=st.integers(0, 1000))
    def cancel(self, index: int) -> None:
        live = sorted(self.loop.live)
        if live:
            id = live[index % len(live)]
            self.cancelled.add(id)
            self.loop.inbox.put(Cancel(id))
            self.turn()

    @rule()
    def read(self) -> None:
        self.take_all()
        self.turn()

    @rule(call=st.sampled_from(CALLS), error=st.sampled_from(FAULTS))
    def break_down(self, call: str, error: Exception) -> None:
        self.board.armed[call] = error

    @rule(call=st.sampled_from(("step", "in", "out")))
    def fail(self, call: str) -> None:
        """A fault of one call; the device goes on."""
        self.board.armed[call] = ExecutorError("a fault")
        self.failures |= call == "step"

    @rule()
    def fail_on_the_cpu(self) -> None:
        self.cpu_fault = ExecutorError("a fault")
        self.failures = True

    @precondition(lambda self: self.loop.workers)
    @rule(succeeds=st.sampled_from((True, True, True, False)))
    def worker(self, succeeds: bool) -> None:
        if not succeeds:
            for slot in self.slots:
                self.fallback(slot).declines = [ModelError("no memory")]
                self.fallback(slot).broken = [DeviceLostError("still lost")]
        self.loop.workers.popleft()()
        for slot in self.slots:
            self.fallback(slot).declines = []
            self.fallback(slot).broken = []
        self.turn()

    @precondition(lambda self: self.spill is not None and self.spill.job is not None)
    @rule(fate=st.sampled_from(("done", "done", "done", "failed", "full")))
    def write_or_read(self, fate: str) -> None:
        self.do_spill(fate)
        self.turn()

    @rule(model=st.sampled_from((None, "a")))
    def flush(self, model: str | None) -> None:
        self.loop.inbox.put(Flush(model, _future()))
        self.turn()

    # ---- How

    def do_spill(self, fate: str) -> None:
        assert self.spill is not None
        done = self.spill.finish() if fate == "done" else self.spill.fail(full=fate == "full")
        self.loop.inbox.put(done)

    def turn(self) -> None:
        self.broken = True
        self.loop.turn()
        self.broken = False
        type(self).steps += 1
        for slot in self.slots:
            if slot.lost:
                self.seen["lost"] += 1
            if slot.understudy is not None and slot.understudy.running:
                self.seen["understudied"] += 1

    def take_all(self) -> None:
        """Let all clients have read all that there is."""
        for call in self.loop.mail.calls[self.read_calls :]:
            for id, event in call:
                if isinstance(event, TextEvent):
                    self.loop.inbox.put(Taken(id, 1))
        self.read_calls = len(self.loop.mail.calls)

    # ---- What is true at any time

    @invariant()
    def the_bank_is_within_its_limit(self) -> None:
        held = sum(e.bytes for e in self.bank.entries if e.in_memory or e.fetching)
        assert self.bank.used == held <= self.bank.limit

    @invariant()
    def everyone_is_in_one_place(self) -> None:
        places: Counter[str] = Counter()
        for slot in self.loop.everyone:
            for queue in (slot.waiting, slot.returning, slot.running, slot.exiles):
                places.update(sequence.request.id for sequence in queue)
        assert set(places) == self.loop.live
        assert not places or max(places.values()) == 1

    @invariant()
    def nobodys_rows_move_while_a_step_holds_some(self) -> None:
        for slot in self.loop.everyone:
            for step in slot.steps if not slot.lost else ():
                assert not any(s.moves for s in step.sequences if s in slot.running)

    @invariant()
    def every_stream_has_its_own_region(self) -> None:
        for slot in self.slots:
            home = slot.home
            assert isinstance(home, DeviceHome)
            for sequence in slot.running:
                assert sequence.pages == [home.regions.region_of(sequence)]

    # ---- And at the end

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            try:
                if not self.broken:
                    self.rest()
                    self.check_texts()
                    self.check_leaks()
            finally:
                self.loop.close()
                if self.folder is not None:
                    self.folder.cleanup()

    def rest(self) -> None:
        """Let everything come to its end, without further faults."""
        self.board.armed.clear()
        self.cpu_fault = None
        going = True
        while going:
            going = self.loop.work("gpu") | self.loop.work("cpu")
            if self.loop.workers:
                self.loop.workers.popleft()()
                going = True
            if self.spill is not None and self.spill.job is not None:
                self.do_spill("done")
                going = True
            self.take_all()
            going |= not self.loop.inbox.empty()
            self.turn()
        assert not self.loop.live, "streams that never end"
        assert not self.loop.busy

    def check_texts(self) -> None:
        for id, events in self.loop.mail.terminals().items():
            (end,) = events
            asked, text = self.asked[id], self.loop.mail.text(id)
            stranded = any(slot.stranded for slot in self.slots if slot.id == asked.model)
            assert alone(asked).startswith(text)
            match end:
                case FinishedEvent(reason=FinishReason.CANCELLED):
                    assert id in self.cancelled
                case FinishedEvent() if end.usage.completion_tokens == asked.max_tokens:
                    assert text == alone(asked)
                    self.seen["right"] += 1
                case FinishedEvent():
                    assert stranded
                case FailedEvent(ContextLengthExceededError()):
                    assert stranded
                case FailedEvent(error):
                    assert self.failures or (stranded and "does not come back" in str(error)), error

    def check_leaks(self) -> None:
        assert not any(entry.pins or entry.live or not entry.kept for entry in self.bank.entries)
        for slot in self.slots:
            home = slot.home
            assert isinstance(home, DeviceHome)
            assert not home.moves
            assert not slot.guests
            assert not slot.steps
            if not slot.lost:
                regions = home.regions
                assert regions.free + regions.parked == regions.count
                assert not any(view.pins for view in regions)
            if slot.understudy is not None:
                room = slot.understudy.home.room
                assert room.free + room.cached == room.total
                assert not room.reserved
        self.loop.inbox.put(Flush(None, _future()))
        self.loop.turn()
        assert not self.bank.used
        assert not self.bank.entries
        for slot in self.slots:
            if not slot.lost:
                assert slot.home.room.free == slot.home.room.total


def _future():
    from concurrent.futures import Future

    return Future()


def test_every_stream_ends_with_its_text() -> None:
    ServingMachine.steps, ServingMachine.seen = 0, Counter()
    run_state_machine_as_test(
        ServingMachine,
        settings=settings(
            max_examples=int(__import__("os").environ.get("N", "40")),
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate, Phase.shrink),
        ),
    )
    print(ServingMachine.steps, ServingMachine.seen)
