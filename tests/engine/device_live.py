"""A running engine over a software device, what its streams are held to, and that nothing is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from engine.harness import Harness, running
from engine.null_slot import request
from faulty import close_checked
from tierd.backends.host import HostBackend
from tierd.backends.protocol import Executor
from tierd.backends.vkapi import Device, Role
from tierd.core import Batch, Chunk, FinishedEvent, FinishReason, PassReason, TextEvent
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.settings import (
    EngineSettings,
    GPUSettings,
    KVSettings,
    ModelSettings,
    Settings,
    SwitchSettings,
)
from tierd.slot import open_slot
from tierd.tier import retries
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier

ANSWER = 12
# How much less likely than the best a token may be, as a logit, of a stream that crossed over.
NEAR = 0.5

_open = Device.open  # as it is, also where an engine runs beside another


@dataclass
class Served:
    """An engine, what its models are placed on, and what its streams are checked against."""

    harness: Harness
    stage: Stage
    references: Callable[[str], Executor]
    asked: int = 0

    @property
    def devices(self) -> list[Device]:
        return self.stage.devices

    @property
    def bank(self) -> Bank:
        return self.stage.bank

    @property
    def tier(self) -> Tier:
        return self.stage.tier

    def forget_devices(self) -> None:
        """See `Stage`."""
        self.stage.forget_devices()

    def ask(
        self, prompt: Sequence[int], answer: int = ANSWER, *, flat: bool = False, model: str = "tiny"
    ) -> str:
        """Submit a request. flat: whose tokens cannot be drawn on the device."""
        self.asked += 1
        temperature = 100.0 if flat else 0.0
        asked = request(f"r{self.asked}", prompt, answer, model=model, temperature=temperature)
        self.harness.engine.submit(replace(asked, top_logprobs=0))
        return asked.id

    def check(
        self,
        id: str,
        prompt: Sequence[int],
        answer: int = ANSWER,
        *,
        greedy: bool = True,
        model: str = "tiny",
    ) -> None:
        """Wait for a stream's end; each of its tokens must be the best, or nearly."""
        end = self.harness.mail.terminal(id)
        assert isinstance(end, FinishedEvent), end
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.LENGTH, answer)
        tokens = self.tokens(id)
        assert len(tokens) == answer
        if greedy:
            self.check_near(model, prompt, tokens)

    def check_near(self, model: str, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Check that each of a stream's tokens is the best by the CPU, or nearly."""
        logits = forced(self.references(model), [*prompt, *tokens])[len(prompt) - 1 : -1]
        lacks = logits.max(axis=1) - logits[np.arange(len(tokens)), tokens]
        assert lacks.max() <= NEAR

    def tokens(self, id: str) -> list[int]:
        """Return the tokens that a stream has told so far."""
        events = [event for event in self.harness.mail.events(id) if isinstance(event, TextEvent)]
        return [told.token for event in events for told in event.logprobs]

    def serve(self, prompt: Sequence[int], answer: int = ANSWER) -> None:
        self.check(self.ask(prompt, answer), prompt, answer)

    def passes(self, model: str = "tiny") -> dict[str, float]:
        sample = self.harness.metrics.registry.get_sample_value
        name = "tierd_gpu_cpu_passes_total"
        counts = {reason: sample(name, {"model": model, "reason": reason}) for reason in PassReason}
        return {reason: count for reason, count in counts.items() if count}

    def refed(self, model: str = "tiny") -> float:
        """Return how many tokens were fed again."""
        name = "tierd_kv_reprefilled_tokens_total"
        return self.harness.metrics.registry.get_sample_value(name, {"model": model}) or 0.0

    def rests(self) -> None:
        """Wait until the device is there and nobody runs; check that nobody holds anything."""
        self.harness.snapshot_when(
            lambda snapshot: all(
                state.outcome == "gpu:resident"
                and not state.running
                and {region.state for region in state.regions} <= {"free", "parked", "scratch"}
                for state in snapshot.models.values()
            )
        )
        assert self.bank.used == sum(entry.bytes for entry in self.bank.entries)
        assert not any(entry.pins or entry.live or not entry.kept for entry in self.bank.entries)
        for slot in self.harness.slots.values():
            assert slot.understudy is None or not slot.understudy.home.room.used


def forced(executor: Executor, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits of all tokens, fed to the CPU alone, shape (tokens, vocabulary)."""
    pages = tuple(range(executor.pages))
    rows = []
    for start in range(0, len(tokens), executor.max_rows):
        part = tokens[start : start + executor.max_rows]
        executor.submit(Batch((Chunk(part, start, pages, tuple(range(len(part)))),)))
        result = executor.collect()
        rows += [result.logits(row).copy() for row in range(len(part))]
    return np.array(rows)


@dataclass(frozen=True)
class Stage:
    """A tier over a software device, and what it is made of. devices: opened so far; the last is in use."""

    host: HostBackend
    devices: list[Device]
    bank: Bank
    tier: Tier

    @property
    def parts(self) -> dict[str, Any]:
        """What an engine is given."""
        return {"bank": self.bank, "tier": self.tier.status, "release": self.tier.release}

    def forget_devices(self) -> None:
        """Free what lies on devices that were given up, as the fault was on purpose."""
        for device in self.devices[:-1]:
            close_checked(device)
        del self.devices[:-1]


@contextmanager
def staged(settings: Settings, *, bank: int, vram_limit: int = 0) -> Iterator[Stage]:
    """Make a tier whose device is tried again at once whenever it is lost. The validation layer watches.

    bank: its bytes. vram_limit: bytes of the device, finer than the setting; what lies on devices that were
    given up takes nothing of them.
    """
    devices: list[Device] = []

    def noted(**options: Any) -> Device:
        if vram_limit:
            gone = [device._memory._held(Role.DEVICE) for device in options.get("given_up", ())]
            options["vram_limit"] = vram_limit + sum(gone)
        devices.append(_open(validate=True, **options))
        return devices[-1]

    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(Device, "open", noted)
        patch.setattr(retries, "FIRST_S", 0.0)
        host = HostBackend(settings.engine.threads)
        stack.callback(host.close)
        stack.callback(lambda: [close_checked(device) for device in devices])
        gone = Gone()
        there = Bank(bank, on_drop=gone.dropped)
        tier = Tier(settings, HostSite(host), host.pool, bank=there, gone=gone)
        stack.callback(tier.close)
        yield Stage(host, devices, there, tier)


@contextmanager
def serving(
    *models: ModelSettings,
    bank: int = 1 << 20,
    vram_limit: int = 0,
    switch: SwitchSettings | None = None,
    chunk_rows: int = 16,
    threads: int = 1,
    host_mb: int = 16,
    **gpu: object,
) -> Iterator[Served]:
    """Run an engine over a software device: see `staged`.

    host_mb: of the CPU's pages. gpu: settings of that section.
    """
    settings = Settings(
        engine=EngineSettings(threads=threads, chunk_rows=chunk_rows),
        kv=KVSettings(memory_mb=host_mb),
        gpu=GPUSettings(allow_software=True, **gpu),  # type: ignore[arg-type]
        switch=switch or SwitchSettings(),
        models=models,
    )
    with ExitStack() as stack:
        stage = stack.enter_context(staged(settings, bank=bank, vram_limit=vram_limit))

        @cache
        def reference(model: str) -> Executor:
            (each,) = (each for each in models if each.id == model)
            executor = open_slot(each, settings, HostSite(stage.host)).executor
            stack.callback(executor.close)
            return executor

        harness = stack.enter_context(
            running(*models, open_slot=stage.tier.open, settings=settings, engine=stage.parts)
        )
        stack.callback(stage.forget_devices)
        yield Served(harness, stage, reference)
