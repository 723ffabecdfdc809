"""What models say, stream by stream: where each token was computed, and whether it is what it has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.device_live import NEAR, forced
from tierd.backends.protocol import Executor
from tierd.backends.rails.executor import RailsExecutor
from tierd.core import Request, SamplingParams, Sequence
from tierd.engine.fallbacks import Fallbacks
from tierd.slot import Slot, Step

Tokens = tuple[int, ...]
# What is said depends on: the model, the prompt, how tokens are picked.
Said = tuple[str, Tokens, SamplingParams]


def said_by(request: Request) -> Said:
    return request.model, request.prompt, request.sampling


@dataclass
class Trace:
    """One stream. parts: the executors that computed it, and how many tokens it had when each took over."""

    sequence: Sequence
    parts: list[tuple[str, int]] = field(default_factory=list)

    @property
    def tokens(self) -> Tokens:
        """Those that it has got."""
        return tuple(self.sequence.tokens[len(self.sequence.request.prompt) :])

    @property
    def crossed(self) -> bool:
        return len(self.parts) > 1

    @property
    def whole(self) -> bool:
        """Whether it has all that was asked for."""
        return len(self.tokens) == self.sequence.request.max_tokens


@dataclass
class Traces:
    """All streams of an engine that have been in a step, by request."""

    of: dict[str, Trace] = field(default_factory=dict)

    @contextmanager
    def kept(self) -> Iterator[Traces]:
        """Keep them, of an engine that runs meanwhile."""
        count = Fallbacks.count

        def counted(fallbacks: Fallbacks, slot: Slot, step: Step) -> None:
            for sequence in (*step.sequences, *(guest.sequence for guest in step.guests)):
                self._note(sequence, slot.executor.name)
            count(fallbacks, slot, step)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fallbacks, "count", counted)
            yield self

    def _note(self, sequence: Sequence, executor: str) -> None:
        trace = self.of.setdefault(sequence.request.id, Trace(sequence))
        if not trace.parts or trace.parts[-1][0] != executor:
            trace.parts.append((executor, sequence.generated))


@dataclass
class Book:
    """What is said alone, by executor; and who is asked about streams that crossed over, by model."""

    alone: dict[tuple[str, Said], Tokens] = field(default_factory=dict)
    references: Callable[[str], Executor] | None = None

    def learn(self, traces: Traces) -> None:
        """Take in what was said by models that were left alone, each on one executor."""
        for trace in traces.of.values():
            ((executor, _),) = trace.parts
            assert trace.whole
            self.alone[executor, said_by(trace.sequence.request)] = trace.tokens

    def check(self, trace: Trace) -> None:
        """Check what a stream has said, be it whole or cut off.

        Until it crosses over it says what it says alone. After that, and on rails, each token is the best, or
        nearly, or one of those that may be drawn, or nearly.
        """
        request, tokens, first = trace.sequence.request, trace.tokens, trace.parts[0][0]
        if first == RailsExecutor.name:
            stayed = 0
        else:
            stayed = trace.parts[1][1] if trace.crossed else len(tokens)
            alone = self.alone[first, said_by(request)]
            assert tokens[:stayed] == alone[:stayed], (request.id, trace.parts)
        if stayed < len(tokens):
            assert self.references is not None
            logits = forced(self.references(request.model), [*request.prompt, *tokens])
            logits = logits[len(request.prompt) - 1 : -1]
            choices = 1 if request.sampling.temperature == 0 else request.sampling.top_k
            least = np.partition(logits, -choices, axis=1)[:, -choices]
            lacks = least - logits[np.arange(len(tokens)), tokens]
            assert lacks.max() <= NEAR, (request.id, trace.parts, lacks)
