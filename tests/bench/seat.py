"""A model in its slot, driven as the engine drives it, but step by step in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from pathlib import Path

from tierd.backends.host import HostBackend, HostExecutor
from tierd.backends.protocol import Result
from tierd.chat.stops import text_stream
from tierd.core import Request, SamplingParams, Sequence
from tierd.engine.flights import counting
from tierd.engine.sampler import pick, score
from tierd.engine.scheduler import commit, leave, schedule, settle
from tierd.settings import EngineSettings, KVSettings, ModelSettings, Settings
from tierd.slot import Step, open_slot
from tierd.tier.host_site import HostSite


class Seat:
    """A model opened for a number of streams, with no prefix cache.

    context: positions of each; 0: the model's own. page_pool_bytes: of all K/V pages.
    """

    def __init__(self, path: Path, *, threads: int, context: int, streams: int) -> None:
        settings = Settings(engine=EngineSettings(threads=threads), kv=KVSettings(prefix_cache=False))
        model = ModelSettings(id="bench", path=path, context=context, streams=streams)
        self._backend = HostBackend(settings.engine.threads)
        self.slot = open_slot(model, settings, HostSite(self._backend))
        self.page_pool_bytes = self.slot.executor.pages * self.slot.executor.page_bytes

    @property
    def executor(self) -> HostExecutor:
        """What computes its steps."""
        assert isinstance(self.slot.executor, HostExecutor)
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

    def begin(self) -> Step:
        """Choose the rows of the next step."""
        step = schedule(self.slot)
        assert step is not None, "nobody has work"
        self.slot.steps.append(step)
        return step

    def finish(self, step: Step, result: Result) -> None:
        """Pick tokens and book them."""
        settle(self.slot, step, failed=False)
        tokens = pick(step, result, counting(self.slot, step))
        commit(self.slot, step, tokens, score(step, result, tokens))

    def step(self) -> None:
        """Take a whole step."""
        step = self.begin()
        self.slot.executor.submit(step.batch)
        self.finish(step, self.slot.executor.collect())

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
        """End all streams."""
        for sequence in [*self.slot.running, *self.slot.waiting]:
            leave(self.slot, sequence)

    def close(self) -> None:
        """Free the model and end its threads."""
        self.clear()
        self.slot.close()
        self._backend.close()
