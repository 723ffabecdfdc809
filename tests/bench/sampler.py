"""Time what the engine thread does to one row of logits: milliseconds for each setting, best of several.

Usage: python tests/bench/sampler.py [--within MILLISECONDS]

Rows: "normal" spreads logits as a model does, "flat" is the worst case: all tokens are equally likely.
Exit code 1 when any row took longer than allowed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.null_slot import ByteTokenizer, request
from tierd.backends import picking
from tierd.chat.stops import text_stream
from tierd.core import SamplingParams, Sequence, TokenMask
from tierd.engine import sampler

VOCABULARIES = (49_152, 262_144)
REPEATS = 15
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "plain": SamplingParams(),
    "top_k 40": SamplingParams(top_k=40),
    "top_p 0.95": SamplingParams(top_p=0.95),
    "min_p 0.05": SamplingParams(min_p=0.05),
    "all filters": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "top_k 20000, top_p": SamplingParams(top_k=20_000, top_p=0.95),
}
# With these a pick changes the logits, behind a text of so many tokens, half of them generated.
HISTORY = 8192
PENALTIES = SamplingParams(temperature=0, repeat_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5)


def rows(vocabulary: int) -> dict[str, np.ndarray]:
    normal = 3 * np.random.default_rng(0).standard_normal(vocabulary)
    return {"normal": normal.astype(np.float32), "flat": np.zeros(vocabulary, np.float32)}


def best(work: Callable[[int], object]) -> float:
    """Return the milliseconds of the quickest call."""
    times = []
    for i in range(REPEATS):
        started = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - started)
    return min(times) * 1000


def cases(row: np.ndarray) -> dict[str, float]:
    text = np.random.default_rng(1).integers(0, row.size, HISTORY).tolist()
    settings = {
        **SETTINGS,
        f"penalties over {HISTORY}": PENALTIES,
        "half is allowed": SamplingParams(
            temperature=0, allowed=TokenMask.of(range(0, row.size, 2), row.size)
        ),
    }
    times = {}
    for name, params in settings.items():
        asked = replace(request(name, text[: HISTORY // 2]), sampling=params)
        sequence = Sequence(asked, text_stream(ByteTokenizer()), text)
        times[name] = best(
            lambda i, stream=sequence: picking.pick(row, sampler.draw(stream, i, row.size))  # type: ignore[misc]
        )
    return {**times, "logprobs 20": best(lambda i: picking.measure(row, i, 20))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--within", type=float, default=10.0, help="milliseconds allowed for a row (10)")
    options = parser.parse_args()
    columns = {
        f"{vocabulary} {kind}": cases(row)
        for vocabulary in VOCABULARIES
        for kind, row in rows(vocabulary).items()
    }
    print(f"{'ms for one row':22}" + "".join(f"{title:>15}" for title in columns))
    for name in next(iter(columns.values())):
        print(f"{name:22}" + "".join(f"{column[name]:15.3f}" for column in columns.values()))
    slowest = max(max(column.values()) for column in columns.values())
    print(f"slowest {slowest:.3f} ms; {options.within:g} ms allowed")
    return 0 if slowest <= options.within else 1


if __name__ == "__main__":
    sys.exit(main())
