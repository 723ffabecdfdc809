"""A model on rails takes turns on a software device with a whole one, and its streams never stop for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.device_live import NEAR, forced
from engine.harness import PATIENCE, Harness, running
from engine.null_slot import request
from kompute import needs_kompute
from tierd.backends.host import HostBackend
from tierd.backends.protocol import Executor
from tierd.backends.rails import kompute
from tierd.core import FinishedEvent, PassReason, TextEvent
from tierd.engine.snapshot import ModelSnapshot
from tierd.errors import DeviceLostError
from tierd.kv.bank import Bank
from tierd.settings import EngineSettings, GPUSettings, KVSettings, ModelSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier
from tiny import write_llama

pytestmark = [needs_kompute, pytest.mark.timeout(120)]

LIMIT_MB = 4
PROMPT = tuple(range(20, 60))


class Box:
    """An engine over two models of which the device holds one: "wide" in part, "small" whole."""

    def __init__(self, harness: Harness, reference: Executor) -> None:
        self.harness = harness
        self._reference = reference
        self._asked = 0

    def ask(self, model: str, answer: int) -> str:
        self._asked += 1
        id = f"r{self._asked}"
        self.harness.engine.submit(replace(request(id, PROMPT, answer, model=model), top_logprobs=0))
        return id

    def check(self, id: str) -> None:
        """Wait for the end of a stream of "wide"; each of its tokens must be the best, or nearly."""
        assert isinstance(self.harness.mail.terminal(id), FinishedEvent)
        events = [event for event in self.harness.mail.events(id) if isinstance(event, TextEvent)]
        tokens = [told.token for event in events for told in event.logprobs]
        logits = forced(self._reference, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
        assert (logits.max(axis=1) - logits[np.arange(len(tokens)), tokens]).max() <= NEAR

    def wide(self, *, there: bool) -> ModelSnapshot:
        """Wait until the layers of "wide" are on the device, or are not."""

        def stands(state: ModelSnapshot) -> bool:
            on = state.rails is not None and len(state.rails.on_device) > 0
            return (state.seat == "on", on) == (there, there)

        return self.harness.snapshot_when(lambda now: stands(now.models["wide"])).models["wide"]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    wide = write_llama(
        tmp_path / "wide.gguf",
        format="Q8_0", n_embd=256, head_size=64, heads=4, kv_heads=2, ff=512, layers=4, context=4096,
    )  # fmt: skip
    small = write_llama(tmp_path / "small.gguf", head_size=32, context=16384)
    models = (
        ModelSettings(id="wide", path=wide, streams=2, context=4096, ctx_strict=True),
        ModelSettings(id="small", path=small, streams=2, preload=False),
    )
    settings = Settings(
        engine=EngineSettings(threads=1, chunk_rows=16),
        kv=KVSettings(memory_mb=16),
        gpu=GPUSettings(allow_software=True, vram_limit_mb=LIMIT_MB, rails_rows=4),
        models=models,
    )
    with ExitStack() as stack:
        backend = HostBackend(1)
        stack.callback(backend.close)
        host, bank = HostSite(backend), Bank(1 << 22)
        tier = Tier(settings, host, backend.pool, bank=bank)
        stack.callback(tier.close)
        reference = open_slot(models[0], settings, host).executor
        stack.callback(reference.close)
        engine = {"tier": tier.status, "release": tier.release, "bank": bank}
        harness = stack.enter_context(running(*models, open_slot=tier.open, settings=settings, engine=engine))
        yield Box(harness, reference)


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


def test_layers_come_back_by_themselves_once_the_other_rests(box: Box) -> None:
    other = box.ask("small", 12)
    assert isinstance(box.harness.mail.terminal(other), FinishedEvent)
    box.wide(there=False)
    long = box.ask("wide", 200)
    box.wide(there=True)
    box.check(long)


def test_a_device_that_fails_at_a_product_is_said_and_the_stream_goes_on(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DeviceLostError("it failed at a product")

    box.wide(there=True)
    monkeypatch.setattr(kompute.Recording, "run", fail)
    box.check(box.ask("wide", 12))
    state = box.harness.engine.snapshot.models["wide"]
    assert state.rails is not None
    assert state.rails.on_device == ()
    assert (state.outcome, state.device, state.decline) == ("cpu", "", "it failed at a product")
    assert state.passes.keys() == {PassReason.DEVICE_LOST}


def test_a_model_that_is_unloaded_gives_its_room_back(box: Box) -> None:
    box.wide(there=True)
    box.harness.engine.unload("wide").result(PATIENCE)
    assert "wide" not in {**box.harness.engine.tier.reservations, **box.harness.engine.tier.away}
