"""A model in its slot, driven as the engine drives it, but step by step in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from pathlib import Path

from tierd.backends.host import HostBackend
from tierd.backends.protocol import Executor, Result
from tierd.chat.stops import text_stream
from tierd.core import Request, SamplingParams, Sequence
from tierd.engine.flights import counting
from tierd.engine.sampler import pick, score
from tierd.engine.scheduler import commit, leave, schedule, settle
from tierd.settings import EngineSettings, GPUSettings, KVSettings, ModelSettings, Settings
from tierd.slot import Slot, Step
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier

ON_DEVICE = GPUSettings(mode="resident", require="resident", allow_software=True)
ON_HOST = GPUSettings(mode="off")


class Box:
    """What a daemon has as long as it lives: threads, and a device where models are to be on one."""

    def __init__(self, *, threads: int, gpu: GPUSettings = ON_HOST) -> None:
        self._settings = Settings(
            engine=EngineSettings(threads=threads), kv=KVSettings(prefix_cache=False), gpu=gpu
        )
        self._backend = HostBackend(threads)
        self._tier = Tier(self._settings, HostSite(self._backend), self._backend.pool)

    def open(self, model: ModelSettings) -> Slot:
        """Put a model where it belongs. Raises RequiredTierError when it cannot be on the device."""
        return self._tier.open(model)

    def release(self, slot: Slot) -> None:
        """Free a model, and give its room back."""
        slot.close()
        self._tier.release(slot.id)

    def close(self) -> None:
        """End the threads, and close the device. All models have been closed."""
        self._tier.close()
        self._backend.close()


class Seat:
    """A model opened for a number of streams, with no prefix cache.

    context: positions of each; 0: the model's own. page_pool_bytes: of all K/V pages.
    """

    def __init__(self, path: Path, box: Box, *, context: int, streams: int) -> None:
        """Raises RequiredTierError for a model that cannot be on the device that it is meant for."""
        self._box = box
        self.slot = box.open(ModelSettings(id="bench", path=path, context=context, streams=streams))
        self.page_pool_bytes = self.slot.executor.pages * self.slot.executor.page_bytes

    @property
    def executor(self) -> Executor:
        """What computes its steps."""
        return self.slot.executor

    def submit(self, prompt: Ordered[int], tokens: int) -> Sequence:
        """Ask for a greedy stream of so many tokens, whatever they are."""
        assert len(prompt) + tokens <= self.slot.context
        request = Request(
            id="bench",
            model=self.slot.id,
            prompt=tuple(prompt),
            max_tokens=tokens,
            sampling=SamplingParams(temperature=0),
            ignore_eos=True,
        )
        sequence = Sequence(request, text_stream(self.slot.tokenizer), list(prompt))
        self.slot.waiting.append(sequence)
        return sequence

    def begin(self) -> Step | None:
        """Choose the rows of the next step; None when nobody has work."""
        step = schedule(self.slot)
        if step is not None:
            self.slot.steps.append(step)
        return step

    def finish(self, step: Step, result: Result) -> None:
        """Pick tokens and book them."""
        settle(self.slot, step, failed=False)
        tokens = pick(step, result, counting(self.slot, step))
        commit(self.slot, step, tokens, score(step, result, tokens))

    def step(self) -> None:
        """Give the executor as many steps as it takes, then wait for the oldest one."""
        while self.slot.has_room and (step := self.begin()) is not None:
            self.executor.submit(step.batch)
        assert self.slot.steps, "nobody has work"
        self._collect()

    def run_in(self, prompts: Ordered[Ordered[int]], tokens: int) -> list[Sequence]:
        """Start a stream for each prompt; step until all of them generate, with so many steps left."""
        steps = sum(map(len, prompts)) // self.slot.chunk_rows + 1
        streams = [self.submit(prompt, tokens + steps) for prompt in prompts]
        while not all(stream.generated for stream in streams):
            self.step()
        return streams

    def run_out(self) -> None:
        """Step until all streams have ended."""
        while self.slot.waiting or self.slot.running:
            self.step()

    def clear(self) -> None:
        """End all streams, and wait for the steps that they are in."""
        for sequence in [*self.slot.running, *self.slot.waiting]:
            leave(self.slot, sequence)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait for the steps that the executor has been given."""
        while self.slot.steps:
            self._collect()

    def close(self) -> None:
        """Free the model."""
        self.clear()
        self._box.release(self.slot)

    def _collect(self) -> None:
        self.finish(self.slot.steps[0], self.executor.collect())
