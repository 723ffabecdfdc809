"""What a grammar costs: tokens a second of streams that have one beside those that have none, in turns.

Usage: python tests/bench/constrained.py MODEL [--streams 1,8] [--tokens N] [--rounds N] [--device]

The engine serves them, without HTTP. Both kinds of streams get as many tokens, at the same positions; the
grammar is that of a JSON array which is not over by then. Each round of a kind has the same texts, so that
what a step takes undisturbed is the least that it took in any of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seat import ON_DEVICE, ON_HOST, Box
from tierd.chat.grammar import Source
from tierd.core import (
    Event,
    FinishedEvent,
    Grammar,
    Request,
    SamplingParams,
    StartedEvent,
    TerminalEvent,
    TextEvent,
)
from tierd.engine import CatalogueEntry, Engine
from tierd.metrics import Metrics
from tierd.settings import ModelSettings

PROMPT = "Here is a long list of people, as JSON:\n"
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "format": "email"},
        "likes": {"type": "array", "items": {"enum": ["cats", "dogs", "birds"]}, "maxItems": 3},
        "born": {"type": ["string", "null"], "pattern": "^[0-9]{4}-[0-9]{2}$"},
    },
    "required": ["name", "age", "mail", "likes", "born"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 1000}
LONG_WAIT_S = 600

Steps = npt.NDArray[np.float64]


class Reader:
    """Takes what the engine delivers, and waits for streams' ends.

    spans: first and last text, by request. times: of all deliveries of texts.
    """

    def __init__(self) -> None:
        self.spans: dict[str, tuple[float, float]] = {}
        self.times: list[float] = []
        self._left = 0
        self._done = threading.Event()

    def expect(self, count: int) -> None:
        """Let so many streams be waited for."""
        self.spans.clear()
        self.times.clear()
        self._left = count
        self._done.clear()

    def deliver(self, events: Sequence[tuple[str, Event]]) -> None:
        """Take events."""
        now = time.perf_counter()
        if any(isinstance(event, TextEvent) for _, event in events):
            self.times.append(now)
        for id, event in events:
            if isinstance(event, TextEvent):
                self.spans[id] = (self.spans.get(id, (now, now))[0], now)
            elif isinstance(event, TerminalEvent):
                assert isinstance(event, FinishedEvent), event
                self._left -= 1
        if not self._left and not all(isinstance(event, StartedEvent) for _, event in events):
            self._done.set()

    def wait(self) -> None:
        """Wait until all have ended."""
        assert self._done.wait(LONG_WAIT_S)


class Contest:
    """An engine, and rounds of streams."""

    def __init__(self, engine: Engine, reader: Reader, entry: CatalogueEntry, tokens: int) -> None:
        self._engine = engine
        self._reader = reader
        self._entry = entry
        self._tokens = tokens
        self._prompt = tuple(entry.tokenizer.encode(PROMPT, add_special=True, parse_special=False))
        self._ids = itertools.count()

    def round(self, streams: int, grammar: Grammar | None) -> tuple[float, Steps]:
        """Serve streams at the same time.

        Returns tokens a second from the first text to the last, and the seconds between deliveries.
        """
        self._reader.expect(streams)
        for n in range(streams):
            request = Request(
                id=f"r{next(self._ids)}",
                model=self._entry.id,
                prompt=self._prompt,
                max_tokens=self._tokens,
                sampling=SamplingParams(temperature=0.8, seed=n),
                ignore_eos=True,
                grammar=grammar,
            )
            self._engine.submit(request)
        self._reader.wait()
        spans = self._reader.spans.values()
        seconds = max(last for _, last in spans) - min(first for first, _ in spans)
        return streams * self._tokens / seconds, np.diff(self._reader.times)


def undisturbed(rounds: Sequence[Steps]) -> float:
    """Return the seconds of a round whose every step took no longer than in the quickest of some rounds.

    Rounds that had a row fed again, and so another number of steps, are left out.
    """
    usual = statistics.mode(map(len, rounds))
    return float(np.min([steps for steps in rounds if len(steps) == usual], axis=0).sum())


def discarded(metrics: Metrics) -> float:
    """Return how many rows have been computed in vain."""
    return metrics.registry.get_sample_value("tierd_rows_discarded_total", {"model": "bench"}) or 0.0


def mask_seconds(entry: CatalogueEntry, grammar: Grammar, tokens: int) -> list[float]:
    """Return the processor time of each mask of a text that takes the first token it may."""
    constraint = grammar.begin()
    found = []
    for _ in range(tokens):
        started = time.thread_time()
        mask = constraint.allowed()
        found.append(time.thread_time() - started)
        assert mask is not None
        constraint.advance(
            int(np.flatnonzero(np.unpackbits(mask.words.view(np.uint8), bitorder="little"))[0])
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", default="1,8", help="at the same time (1,8)")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream (200)")
    parser.add_argument("--rounds", type=int, default=5, help="of either kind (5)")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU (0: all)")
    parser.add_argument("--device", action="store_true", help="on a Vulkan device, a software one too")
    options = parser.parse_args()
    counts = [int(count) for count in options.streams.split(",")]
    box = Box(threads=options.threads, gpu=ON_DEVICE if options.device else ON_HOST)
    reader = Reader()
    metrics = Metrics("bench")
    engine = Engine(reader.deliver, open_slot=box.open, metrics=metrics)
    engine.start()
    model = ModelSettings(
        id="bench", path=options.model, default=True, streams=max(counts), context=options.tokens + 64
    )
    try:
        entry = engine.load(model).result(LONG_WAIT_S)
        started = time.perf_counter()
        grammar = entry.grammars.compile(Source("json_schema", json.dumps(SCHEMA)))
        print(f"{entry.tokenizer.vocabulary} tokens: first grammar in {time.perf_counter() - started:.2f} s")
        masks = sorted(mask_seconds(entry, grammar, 400))
        print(
            f"a mask: {statistics.mean(masks) * 1e6:.0f} us of CPU on average, {masks[-1] * 1e6:.0f} at most"
        )
        contest = Contest(engine, reader, entry, options.tokens)
        for streams in counts:
            contest.round(streams, grammar)
            before = discarded(metrics)
            free, bound = [], []
            for _ in range(options.rounds):
                free.append(contest.round(streams, None))
                bound.append(contest.round(streams, grammar))
            ratios = [one / other for (one, _), (other, _) in zip(bound, free, strict=True)]
            rates = [statistics.median(rate for rate, _ in side) for side in (free, bound)]
            quiet = [undisturbed([steps for _, steps in side]) for side in (free, bound)]
            print(
                f"{streams} streams: {rates[0]:.1f} tokens/s without a grammar, {rates[1]:.1f} with; "
                f"of it {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
                f"undisturbed {quiet[0] / quiet[1]:.3f}; "
                f"{discarded(metrics) - before:.0f} rows fed again"
            )
    finally:
        engine.stop(LONG_WAIT_S)
        box.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
