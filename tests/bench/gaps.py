"""Time the tokens of running streams while a long prompt is read beside them, and how soon that is answered.

Usage: python tests/bench/gaps.py MODEL.gguf [--gap-ms 60,0] [--prompt 6000] [--rounds 3]

Each round opens the model anew for every setting of engine.gap_ms, in turns, so that each begins without
having measured anything. Exit code 1 where the gap's 99th percentile is twice the setting or more; 0 sets
none.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from tierd.backends.host import HostBackend
from tierd.core import Event, Request, SamplingParams, TextEvent
from tierd.engine import Engine
from tierd.metrics import Metrics
from tierd.settings import EngineSettings, KVSettings, ModelSettings, ServerSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite

PATIENCE_S = 300
WARM = 20  # texts of each stream before the prompt comes
LONG = "long"


class Clock:
    """Notes when the texts of each request come."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self._changed = threading.Condition()

    def deliver(self, events: Sequence[tuple[str, Event]]) -> None:
        now = time.perf_counter()
        with self._changed:
            for id, event in events:
                if isinstance(event, TextEvent):
                    self.times[id].append(now)
            self._changed.notify_all()

    def wait(self, ids: Sequence[str], count: int) -> None:
        """Wait until each of the requests has had so many texts."""
        with self._changed:

            def there() -> bool:
                return all(len(self.times[id]) >= count for id in ids)

            if not self._changed.wait_for(there, PATIENCE_S):
                raise SystemExit(f"no {count} texts of {', '.join(ids)} in {PATIENCE_S} s")


@contextmanager
def serving(
    model: Path, gap_ms: float, clock: Clock, context: int, streams: int, threads: int
) -> Iterator[tuple[Engine, int]]:
    """Serve a model on the host, with K/V for all its streams; yield the engine and its vocabulary."""
    settings = Settings(
        server=ServerSettings(reader_backlog=65536),  # nobody reads
        engine=EngineSettings(gap_ms=gap_ms),
        kv=KVSettings(memory_mb=2048),
    )
    backend = HostBackend(threads)
    opener = partial(open_slot, settings=settings, site=HostSite(backend))
    engine = Engine(clock.deliver, open_slot=opener, metrics=Metrics("bench"), settings=settings)
    try:
        engine.start()
        settings_of = ModelSettings(id="m", path=model, context=context, streams=streams)
        yield engine, engine.load(settings_of).result().tokenizer.vocabulary
    finally:
        engine.stop(PATIENCE_S)
        backend.close()


def measure(
    model: Path, gap_ms: float, *, prompt: int, streams: int, context: int, threads: int = 0
) -> tuple[list[float], float]:
    """Return the gaps of the streams while a prompt is read, and how long its first text takes; seconds."""
    clock, random = Clock(), np.random.default_rng(7)
    with serving(model, gap_ms, clock, context, streams + 1, threads) as (engine, vocabulary):

        def ask(id: str, length: int, tokens: int) -> None:
            ids = tuple(int(token) for token in random.integers(0, vocabulary, length))
            greedy = SamplingParams(temperature=0)
            engine.submit(Request(
                id=id, model="m", prompt=ids, max_tokens=tokens, sampling=greedy, ignore_eos=True
            ))  # fmt: skip

        talks = [f"stream {index}" for index in range(streams)]
        for id in talks:
            ask(id, 100, context - 100)
        clock.wait(talks, WARM)
        began = time.perf_counter()
        ask(LONG, prompt, 4)
        clock.wait([LONG], 1)
        first = clock.times[LONG][0]
        gaps = []
        for id in talks:
            times = [at for at in clock.times[id] if began <= at <= first]
            gaps += np.diff(times).tolist()
    return gaps, first - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--gap-ms", default="60,0", help="settings to be compared (60,0)")
    parser.add_argument("--prompt", type=int, default=6000, help="tokens of the prompt (6000)")
    parser.add_argument("--streams", type=int, default=4, help="running streams (4)")
    parser.add_argument("--threads", type=int, default=0, help="that compute; 0: all cores (0)")
    parser.add_argument("--context", type=int, default=8192, help="of the model (8192)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all are measured (3)")
    options = parser.parse_args()
    targets = [float(part) for part in options.gap_ms.split(",")]
    gaps: dict[float, list[float]] = defaultdict(list)
    firsts: dict[float, list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        for target in targets:
            measured, first = measure(
                options.model,
                target,
                prompt=options.prompt,
                streams=options.streams,
                context=options.context,
                threads=options.threads,
            )
            gaps[target] += measured
            firsts[target].append(first)
    missed = False
    for target in targets:
        p50, p99, most = (1000 * float(np.quantile(gaps[target], share)) for share in (0.5, 0.99, 1))
        missed |= 0 < 2 * target <= p99
        print(
            f"gap_ms {target:3.0f}: {len(gaps[target]):5d} gaps, p50 {p50:6.1f} ms, p99 {p99:6.1f} ms, "
            f"most {most:6.1f} ms; the prompt's first token after {np.median(firsts[target]):5.2f} s"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
