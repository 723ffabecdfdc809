"""Tiny random models on the device: against the host kernels, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tiny
from device.report import Found, line
from tierd.backends.host import ThreadPool, compile_plan
from tierd.backends.picking import measure
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.memory import Shape
from tierd.core import Batch, Chunk, Draw
from tierd.engine.scoring import target_draw
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS, WEIGHT_FORMATS

Logits = npt.NDArray[np.float32]

SHAPE = Shape(regions=8, positions=256, max_rows=32, selected=4)
CODECS = ("f16", "q8_0", "tq4")
# Of the spread of the host's logits, how far the device's are off on average at most, by codec: a quantised
# activation, key or value may fall on the other side of a rounding edge, and so may those after it; more of
# them where the host attends in 16-bit integers.
BOUNDS = {"f16": 0.015, "q8_0": 0.03, "tq4": 0.03}
# So far may the sum of all of a row's weights be off on the device, as a logarithm.
NEAR = 1e-4
TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 300, 96)]
# Sizes that all formats and codecs can have.
_WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512}
# Of these formats, every family and codec is looked at in company and with steps ahead.
_IN_COMPANY = ("Q4_1", "Q8_0")
_PAGE = 64


@dataclass(frozen=True)
class Case:
    """A tiny model: how it is written, and its K/V codec."""

    family: str
    format: str
    codec: str

    @property
    def name(self) -> str:
        """What it is called in the report."""
        return f"{self.family} {self.format}, K/V {self.codec}"

    def write(self, folder: Path) -> Path:
        """Write its file, unless another case has."""
        path = folder / f"{self.family}-{self.format}.gguf"
        if not path.exists():
            writer: Callable[..., Path] = {"llama": tiny.write_llama, "gemma3": tiny.write_gemma3}[
                self.family
            ]
            layers = {"layers": 7} if self.family == "gemma3" else {}
            writer(path, format=self.format, **_WIDE, **layers)
        return path


def cases(*, small: bool) -> list[Case]:
    """Return the models to look at; small: few of them."""
    if small:
        return [Case("llama", "Q4_1", "tq4"), Case("gemma3", "Q8_0", "f16")]
    formats = [entry.name for entry in WEIGHT_FORMATS.values()]
    return [
        *(Case("llama", format, "f16") for format in formats),
        *(Case("llama", "Q4_1", codec) for codec in CODECS[1:]),
        *(Case("gemma3", "Q8_0", codec) for codec in CODECS),
        Case("gemma3", "Q4_K", "f16"),
    ]


def parity(backend: ResidentBackend, pool: ThreadPool, folder: Path, *, small: bool) -> Found:
    """Return what was compared and how it came out; `result` is "pass" or "fail"."""
    host, hidden, scores, bits, greedy = [], [], [], [], []
    for case in cases(small=small):
        with opened(backend, case, folder) as (file, executor):
            host.append(against_host(case, file, executor, pool))
            if case.format in _IN_COMPANY:
                hidden.append(_hidden(case, file, executor, pool))
                scores.append(_scores(case, executor))
                bits.append(_same_bits(case, executor))
                greedy.append(_greedy(case, executor))
    parts = {"host": host, "hidden": hidden, "scores": scores, "bits": bits, "greedy": greedy}
    passed = all(entry["result"] == "pass" for part in parts.values() for entry in part)
    return {"result": word(passed), **parts}


@contextmanager
def opened(backend: ResidentBackend, case: Case, folder: Path) -> Iterator[tuple[GGUFFile, ResidentExecutor]]:
    """Put a tiny model on the device."""
    with GGUFFile.open(case.write(folder)) as file:
        executor = backend.compile(build_plan(file), file, codec=KV_CODECS[case.codec], shape=SHAPE)
        with closing(executor):
            yield file, executor


def feed(executor: Any, tokens: Sequence[int], pages: Sequence[int], *, step: int) -> Logits:
    """Feed one sequence in chunks of `step` rows; return the logits of all its rows."""
    rows = []
    for start in range(0, len(tokens), step):
        part = tokens[start : start + step]
        rows.append(executor.run(Batch((Chunk(part, start, pages, tuple(range(len(part)))),))).copy())
    return np.concatenate(rows)


def against_host(
    case: Case,
    file: GGUFFile,
    executor: ResidentExecutor,
    pool: ThreadPool,
    bounds: Mapping[str, float] = BOUNDS,
) -> Found:
    """Compare all logits of some tokens. bounds: see BOUNDS."""
    pages = range(-(-len(TOKENS) // _PAGE))
    codec = KV_CODECS[case.codec]
    host = compile_plan(build_plan(file), file, codec=codec, pages=len(pages), max_rows=32, pool=pool)
    with closing(host):
        expected = feed(host, TOKENS, pages, step=32)
    off = np.abs(feed(executor, TOKENS, (0,), step=32) - expected)
    mean, most = float(off.mean() / expected.std()), float(off.max() / expected.std())
    passed = mean < bounds[case.codec]  # false for a NaN
    line(case.name, f"{word(passed)}: off by {mean:.5f} on average, {most:.4f} at most, of the spread")
    return {
        "model": case.name,
        "result": word(passed),
        "mean": mean,
        "max": most,
        "bound": bounds[case.codec],
    }


def _hidden(case: Case, file: GGUFFile, executor: ResidentExecutor, pool: ThreadPool) -> Found:
    """Compare the hidden states of some tokens with the host's, and with those of other chunks."""
    codec = KV_CODECS[case.codec]
    host = compile_plan(build_plan(file), file, codec=codec, pages=2, max_rows=32, pool=pool)
    with closing(host):
        expected = _states(host, (0, 1), step=32)
    found = _states(executor, (0,), step=32)
    mean = float(np.abs(found - expected).mean() / expected.std())
    same = all(
        np.array_equal(_states(executor, (region,), step=step), found) for region, step in ((1, 1), (2, 7))
    )
    passed = mean < BOUNDS[case.codec] and same
    line(f"hidden states of {case.name}", f"{word(passed)}: off by {mean:.5f} on average, of the spread")
    return {"model": case.name, "result": word(passed), "mean": mean, "same": same}


def _states(executor: Any, pages: Sequence[int], *, step: int) -> Logits:
    """Feed one sequence in chunks of `step` rows; return the hidden states of all its rows."""
    rows = []
    for start in range(0, len(TOKENS), step):
        part = TOKENS[start : start + step]
        executor.submit(Batch((Chunk(part, start, pages, (), range(len(part))),)))
        rows.append(executor.collect().hidden.copy())
    return np.concatenate(rows)


def _scores(case: Case, executor: ResidentExecutor) -> Found:
    """Have the device say how likely each token is after those before it, two rows and four at a time.

    Compared with what the host makes of the same logits.
    """
    exact = [
        measure(row, token, 0).logprob
        for row, token in zip(feed(executor, TOKENS[:40], (0,), step=32)[:-1], TOKENS[1:40], strict=True)
    ]
    found: dict[int, list[float]] = {}
    for step, region in ((2, 1), (4, 2)):
        found[step] = []
        for start in range(0, 39, step):
            targets = tuple(TOKENS[start + 1 : min(start + step, 39) + 1])
            rows = tuple(range(len(targets)))
            chunk = Chunk(TOKENS[start : start + len(targets)], start, (region,), rows, targets=targets)
            draws = tuple(target_draw(token, 0, executor.vocabulary) for token in targets)
            executor.submit(Batch((chunk,), draws))
            result = executor.collect()
            assert [result.drawn(row) for row in rows] == list(targets)
            found[step] += [result.logprobs(row, token, 0).logprob for row, token in enumerate(targets)]
    off = float(np.abs(np.array(found[4]) - exact).max())
    passed = off < NEAR and found[2] == found[4]
    line(f"scores of {case.name}", f"{word(passed)}: off by {off:.6f} at most")
    return {"model": case.name, "result": word(passed), "off": off}


def _same_bits(case: Case, executor: ResidentExecutor) -> Found:
    """Feed a sequence in chunks of several sizes in several regions, and row by row among seven others."""
    tokens = TOKENS[:40]
    whole = feed(executor, tokens, (0,), step=32)
    differ = [
        f"chunks of {step}"
        for step, region in ((1, 3), (7, 5), (16, 7))
        if not np.array_equal(feed(executor, tokens, (region,), step=step), whole)
    ]
    for at, token in enumerate(tokens):
        chunks = [Chunk(TOKENS[n + at : n + at + 1 + n % 3], at * (1 + n % 3), (n,)) for n in range(1, 8)]
        chunks.insert(at % 8, Chunk((token,), at, (0,), (0,)))
        if not np.array_equal(executor.run(Batch(tuple(chunks)))[0], whole[at]):
            differ.append(f"row {at} among others")
    line(f"bits of {case.name}", word(not differ), *differ[:3])
    return {"model": case.name, "result": word(not differ), "differ": differ}


def _greedy(case: Case, executor: ResidentExecutor) -> Found:
    """Generate with a step ahead, and again one step at a time."""
    prompt, count = TOKENS[:5], 16
    alone = list(feed(executor, prompt, (1,), step=32).argmax(axis=1)[-1:])
    for position in range(len(prompt), len(prompt) + count - 1):
        logits = executor.run(Batch((Chunk((int(alone[-1]),), position, (1,), (0,)),)))
        alone.append(logits[0].argmax())

    executor.submit(Batch((Chunk(prompt, 0, (0,), (len(prompt) - 1,)),), (Draw(),)))
    ahead = []
    for position in range(len(prompt), len(prompt) + count - 1):
        executor.submit(Batch((Chunk((-1,), position, (0,), (0,)),), (Draw(),)))
        ahead.append(executor.collect().drawn(0))
    ahead.append(executor.collect().drawn(0))
    passed = ahead == [int(token) for token in alone]
    line(f"steps ahead, {case.name}", word(passed))
    return {"model": case.name, "result": word(passed), "tokens": count}


def word(passed: bool) -> str:
    """Return a result in a word."""
    return "pass" if passed else "fail"
