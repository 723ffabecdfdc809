"""A model on rails takes turns on a software device with a whole one, and its streams never stop for that.

Unless it is required to be there: then they wait, as those of whole models do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from engine.device_live import NEAR, forced
from engine.harness import PATIENCE, Harness, running
from engine.null_slot import request
from engine.words import Word, is_word
from kompute import Faults, needs_kompute
from tierd.backends.host import HostBackend
from tierd.backends.protocol import Executor
from tierd.core import FailedEvent, FinishedEvent, PassReason, TextEvent
from tierd.engine import parting
from tierd.engine.messages import Message
from tierd.engine.snapshot import ModelSnapshot
from tierd.errors import DeviceLostError, UnavailableError
from tierd.kv.bank import Bank
from tierd.kv.openings import unpack
from tierd.kv.row_files import read_header
from tierd.kv.spill import Spill
from tierd.settings import EngineSettings, GPUSettings, KVSettings, ModelSettings, Settings
from tierd.slot import open_slot
from tierd.tier import retries
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier
from tiny import write_llama

pytestmark = [needs_kompute, pytest.mark.timeout(120)]

LIMIT_MB = 4
CHUNK_ROWS = 16
PROMPT = tuple(range(20, 60))


class Box:
    """An engine over two models of which the device holds one: "wide" in part, "small" whole."""

    def __init__(self, harness: Harness, reference: Executor) -> None:
        self.harness = harness
        self._reference = reference
        self._prompts: dict[str, tuple[int, ...]] = {}

    def ask(self, model: str, answer: int, prompt: tuple[int, ...] = PROMPT) -> str:
        id = f"r{len(self._prompts)}"
        self._prompts[id] = prompt
        self.harness.engine.submit(replace(request(id, prompt, answer, model=model), top_logprobs=0))
        return id

    def spell(self, length: int, prompt: tuple[int, ...] = PROMPT) -> tuple[str, Word]:
        """Ask "wide" for a word, and more than that."""
        tokenizer = self.harness.slots["wide"].tokenizer
        word = Word(length, end=min(tokenizer.end_ids), vocabulary=tokenizer.vocabulary)
        id = f"word{length}"
        wanted = request(id, prompt, length + 9, model="wide", ignore_eos=False, temperature=1)
        self.harness.engine.submit(replace(wanted, top_logprobs=0, grammar=word))
        return id, word

    def tokens(self, id: str) -> list[int]:
        """Wait for the end of a stream; return its tokens, but for one that ends the text."""
        assert isinstance(self.harness.mail.terminal(id), FinishedEvent)
        events = [event for event in self.harness.mail.events(id) if isinstance(event, TextEvent)]
        return [told.token for event in events for told in event.logprobs]

    def check(self, id: str) -> None:
        """Wait for the end of a stream of "wide"; each of its tokens must be the best, or nearly."""
        tokens = self.tokens(id)
        prompt = self._prompts[id]
        logits = forced(self._reference, [*prompt, *tokens])[len(prompt) - 1 : -1]
        assert (logits.max(axis=1) - logits[np.arange(len(tokens)), tokens]).max() <= NEAR

    def wait_for_last_try(self) -> None:
        """Wait until the device, which has failed, is tried no more."""
        self.harness.snapshot_when(
            lambda _: self.harness.engine.tier.faults == 1 and self.harness.engine.tier.retry_s is None
        )

    def wide(self, *, there: bool) -> ModelSnapshot:
        """Wait until the layers of "wide" are on the device, or are not."""

        def stands(state: ModelSnapshot) -> bool:
            on = state.rails is not None and len(state.rails.on_device) > 0
            return (state.seat == "on", on) == (there, there)

        return self.harness.snapshot_when(lambda now: stands(now.models["wide"])).models["wide"]


@contextmanager
def serving(folder: Path, require: str = "none", state: Path | None = None) -> Iterator[Box]:
    """Run an engine. require: where "wide" must be. state: where conversations are kept at the end."""
    wide = write_llama(
        folder / "wide.gguf",
        format="Q8_0", n_embd=256, head_size=64, heads=4, kv_heads=2, ff=512, layers=4, context=4096,
    )  # fmt: skip
    small = write_llama(folder / "small.gguf", head_size=32, context=16384)
    models = (
        ModelSettings(id="wide", path=wide, streams=2, context=4096, ctx_strict=True, require=require),
        ModelSettings(id="small", path=small, streams=2, preload=False),
    )
    settings = Settings(
        engine=EngineSettings(threads=1, chunk_rows=CHUNK_ROWS),
        kv=KVSettings(memory_mb=16),
        gpu=GPUSettings(allow_software=True, vram_limit_mb=LIMIT_MB, rails_rows=4),
        models=models,
    )
    with ExitStack() as stack:
        backend = HostBackend(1)
        stack.callback(backend.close)
        inbox: SimpleQueue[Message] = SimpleQueue()
        spill = None
        if state is not None:
            spill = Spill(state, inbox.put, 1 << 62)
            stack.callback(spill.close, PATIENCE)
        bank = Bank(1 << 22, spill=spill)
        host = HostSite(backend, bank=bank)
        tier = Tier(settings, host, backend.pool, bank=bank)
        stack.callback(tier.close)
        reference = open_slot(models[0], settings, host).executor
        stack.callback(reference.close)
        engine = {"tier": tier.status, "release": tier.release, "bank": bank, "inbox": inbox}
        harness = stack.enter_context(running(*models, open_slot=tier.open, settings=settings, engine=engine))
        yield Box(harness, reference)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with serving(tmp_path) as box:
        yield box


def test_layers_make_way_for_a_whole_model_and_come_back(box: Box) -> None:
    first = box.ask("wide", 400)
    state = box.wide(there=True)
    assert (state.outcome, state.device.split()[0]) == ("gpu:rails", "llvmpipe")
    assert state.passes == {}
    box.harness.engine.activate("small").result(PATIENCE)
    state = box.wide(there=False)
    assert (state.running, state.outcome, state.seat) == (1, "gpu:rails", "away")
    box.check(box.ask("wide", 12))
    assert box.harness.engine.snapshot.models["wide"].passes.keys() == {PassReason.AWAY}
    assert not box.harness.mail.terminals().get(first)
    box.harness.engine.taken(first, 300)  # it waited for its reader, and goes on on the CPU
    box.check(first)
    other = box.ask("small", 12)
    assert isinstance(box.harness.mail.terminal(other), FinishedEvent)
    box.harness.engine.activate("wide").result(PATIENCE)
    box.wide(there=True)
    box.check(box.ask("wide", 12))


def test_words_are_spelled_while_layers_come_and_go(box: Box) -> None:
    box.wide(there=True)
    long, long_word = box.spell(400)
    short, short_word = box.spell(12, PROMPT[::-1])
    assert is_word(box.tokens(short))
    assert short_word.askers == ["tierd-grammar", *["tierd-rails"] * 12]
    box.harness.engine.activate("small").result(PATIENCE)
    box.wide(there=False)
    box.check(box.ask("wide", 12))
    assert not box.harness.mail.terminals().get(long)
    box.harness.engine.taken(long, 300)  # it waited for its reader
    assert is_word(box.tokens(long), 400)
    assert set(long_word.askers) == {"tierd-grammar", "tierd-rails"}
    box.harness.engine.activate("wide").result(PATIENCE)
    box.wide(there=True)
    again, _ = box.spell(13)
    assert is_word(box.tokens(again), 13)


def test_layers_come_back_by_themselves_once_the_other_rests(box: Box) -> None:
    other = box.ask("small", 12)
    assert isinstance(box.harness.mail.terminal(other), FinishedEvent)
    box.wide(there=False)
    long = box.ask("wide", 200)
    box.wide(there=True)
    box.check(long)


def test_a_device_that_fails_at_a_product_is_left_until_it_works_again(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its room is anybody's meanwhile; streams go on, and it comes back though none is there."""
    monkeypatch.setattr(retries, "FIRST_S", 0.05)
    with serving(tmp_path) as box:
        room = box.wide(there=True), box.harness.engine.tier.reservations["wide"]
        faults.set("raise")
        box.check(box.ask("wide", 12))
        state = box.harness.snapshot_when(lambda now: now.models["wide"].running == 0).models["wide"]
        assert state.rails is not None
        assert state.rails.on_device == ()
        failure = f"{room[0].device} failed at a product: the driver says no"
        assert (state.outcome, state.device, state.decline, state.seat) == ("cpu", "", failure, "lost")
        chunks = -(-len(PROMPT) // CHUNK_ROWS)  # the first of which was handed back
        assert state.passes == {PassReason.DEVICE_LOST: chunks}
        lost = box.harness.engine.tier
        assert (lost.reservations, lost.away["wide"], lost.faults) == ({}, room[1], 1)
        with pytest.raises(DeviceLostError, match=r"the driver says no|it is closed"):
            box.harness.engine.activate("wide").result(PATIENCE)
        faults.end()
        state = box.wide(there=True)
        assert (state.outcome, state.decline, state.passes) == ("gpu:rails", room[0].decline, {})
        assert box.harness.engine.tier.reservations["wide"] == room[1]
        assert box.harness.engine.tier.retry_s is None
        box.check(box.ask("wide", 12, PROMPT[::-1]))
        assert box.harness.engine.snapshot.models["wide"].passes == {}


def test_a_device_that_never_works_again_is_left_alone(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_S", 0.01)
    monkeypatch.setattr(retries, "TRIES", 2)
    with serving(tmp_path) as box:
        box.wide(there=True)
        faults.set("die")
        box.check(box.ask("wide", 12))
        box.wait_for_last_try()
        faults.end()
        switches = box.harness.engine.snapshot.switches
        box.check(box.ask("wide", 12, PROMPT[::-1]))
        state = box.harness.engine.snapshot.models["wide"]
        assert (state.outcome, state.passes.keys()) == ("cpu", {PassReason.DEVICE_LOST})
        assert "Kompute's process was ended by SIGSEGV" in state.decline
        assert box.harness.engine.snapshot.switches == switches
        other = box.ask("small", 12)  # the device itself works
        assert isinstance(box.harness.mail.terminal(other), FinishedEvent)


def test_streams_of_a_model_that_must_be_there_wait_until_it_is(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For their turn, and for a device that failed at a product of theirs: not one step is the CPU's."""
    monkeypatch.setattr(retries, "FIRST_S", 0.05)
    with serving(tmp_path, "rails") as box:
        box.wide(there=True)
        other = box.ask("small", 12)
        assert isinstance(box.harness.mail.terminal(other), FinishedEvent)
        box.wide(there=False)
        box.check(box.ask("wide", 12))
        box.wide(there=True)
        faults.set("raise")
        asked = box.ask("wide", 12, PROMPT[::-1])
        box.harness.snapshot_when(lambda now: now.models["wide"].seat == "lost")
        assert not box.harness.mail.terminals().get(asked)
        faults.end()
        box.check(asked)
        assert box.harness.engine.snapshot.models["wide"].passes == {}


def test_streams_of_a_model_that_must_be_there_end_with_the_reason_where_it_cannot(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_S", 0.01)
    monkeypatch.setattr(retries, "TRIES", 1)
    with serving(tmp_path, "rails") as box:
        box.wide(there=True)
        faults.set("die")
        for _ in range(2):  # the one that meets it, and one that comes later
            end = box.harness.mail.terminal(box.ask("wide", 12))
            assert isinstance(end, FailedEvent)
            assert isinstance(end.error, UnavailableError)
            assert str(end.error).startswith("wide: the device failed and is not back, and the CPU cannot")
            assert "`require` demands that it is rails on the GPU" in str(end.error)
        assert box.harness.engine.snapshot.models["wide"].passes == {}


def test_a_device_that_hangs_at_the_end_costs_no_conversation(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parting, "GRACE_S", 0.2)
    state = tmp_path / "bank"
    with serving(tmp_path, state=state) as box:
        box.wide(there=True)
        box.check(box.ask("wide", 12))
        faults.set("hang")
        box.ask("wide", 12, PROMPT[::-1])
        box.harness.snapshot_when(lambda now: now.models["wide"].running == 1)
    assert not box.harness.engine._thread.is_alive()
    kept = [unpack(read_header(path).tokens) for path in state.glob("*.rows")]
    assert list(PROMPT) in [tokens[: len(PROMPT)] for tokens in kept]


def test_a_model_that_is_unloaded_gives_its_room_back(box: Box) -> None:
    box.wide(there=True)
    box.harness.engine.unload("wide").result(PATIENCE)
    assert "wide" not in {**box.harness.engine.tier.reservations, **box.harness.engine.tier.away}
