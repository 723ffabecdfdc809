"""Speed of one random model on the device: loads, decoding with steps ahead, prefill, every kind of op."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from device import large
from device.clocked import ClockedDevice
from device.facts import memory_available
from device.report import Found, line
from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.memory import Shape
from tierd.core import Batch, Chunk, Draw
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tierd.settings import EngineSettings

STREAMS = 8
_CODEC = KV_CODECS["f16"]
# Besides weights and K/V, what is left free of the device's memory.
_SPARE = 1 << 30
# How long the disk may take for the model's file and image, and what its speed is tried with.
PATIENCE_S = 120.0
_TRIED_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done.

    positions: of a region. prompt: tokens before a decode. repeats: of what is quick. copied: bytes of the
    buffers that bandwidth is measured with.
    """

    sizes: large.Sizes
    positions: int = 1024
    prompt: int = 128
    prefill: int = 512
    steps: int = 256
    repeats: int = 5
    copied: int = 1 << 30


FULL = Effort(sizes=large.Sizes())
SMALL = Effort(
    sizes=large.Sizes(
        embedding=256, layers=2, heads=4, kv_heads=2, feed_forward=512, vocabulary=512, context=256
    ),
    positions=256,
    prompt=16,
    prefill=64,
    steps=16,
    repeats=2,
    copied=16 << 20,
)


class Speed:
    """One model, loaded by `load` and measured by the others, each of which returns what it has found."""

    def __init__(self, device: ClockedDevice, pool: ThreadPool, folder: Path, effort: Effort) -> None:
        """folder: where the model and its image are kept, "images" in it."""
        self._device, self._pool = device, pool
        self._backend = ResidentBackend(device, pool, images=folder / "images")
        self._path = folder / "large.gguf"
        self._effort = effort
        rows = EngineSettings().chunk_rows + STREAMS
        self._shape = Shape(regions=STREAMS, positions=effort.positions, max_rows=rows, selected=STREAMS)
        self._executor: ResidentExecutor | None = None
        self._draw = np.random.default_rng(0)

    def load(self) -> Found:
        """Write the model and put it on the device for the first time."""
        sizes, shortage = fit(self._effort.sizes, self._shape, self._device, self._path.parent)
        self._effort = replace(self._effort, sizes=sizes)
        started = time.perf_counter()
        large.write(self._path, sizes)
        written = time.perf_counter() - started
        line("model", f"{sizes.layers} layers, {sizes.bytes / 1e9:.3f} GB in {sizes.format}", shortage)
        found = {
            "model": {
                "layers": sizes.layers,
                "embedding": sizes.embedding,
                "feed_forward": sizes.feed_forward,
                "vocabulary": sizes.vocabulary,
                "format": sizes.format,
                "bytes": sizes.bytes,
                "shortage": shortage,
            },
            "write_s": written,
            "first_load_s": self._open(),
        }
        line("written in", f"{written:.2f} s")
        line("loaded first, packing", f"{found['first_load_s']:.2f} s")
        return found

    def on(self, device: ClockedDevice) -> Speed:
        """Take the model off its device and return it as it is on another one, loaded from its image."""
        self.close()
        other = Speed(device, self._pool, self._path.parent, self._effort)
        other._open()
        return other

    def switch(self) -> Found:
        """Close the model and load it again, from the image that is kept packed."""
        started = time.perf_counter()
        self._opened.close()
        dropped = time.perf_counter() - started
        self._device.uploads.clear()
        loaded = self._open()
        weights = max(self._device.uploads, key=lambda upload: upload.bytes)
        found = {
            "drop_s": dropped,
            "load_s": loaded,
            "switch_s": dropped + loaded,
            "upload_bytes": weights.bytes,
            "upload_s": weights.seconds,
            "upload_rate": weights.rate,
        }
        line("dropped in", f"{dropped:.3f} s")
        line("loaded from its image in", f"{loaded:.2f} s")
        line("weights uploaded", f"{weights.bytes / 1e9:.3f} GB at {weights.rate / 1e9:.2f} GB/s")
        return found

    def decode(self) -> Found:
        """Decode one stream and several, with a step ahead."""
        return {f"streams_{streams}": self._decode(streams) for streams in (1, STREAMS)}

    def prefill(self) -> Found:
        """Feed a long prompt in the engine's chunks, several times."""
        count = self._effort.prefill
        rates = []
        for _ in range(self._effort.repeats):
            started = time.perf_counter()
            self._feed(self._tokens(count), 0)
            rates.append(count / (time.perf_counter() - started))
        line(f"prefill of {count} tokens", f"{median(rates):,.1f} tokens/s, {max(rates):,.1f} at best")
        return {"tokens": count, "tokens_per_s": median(rates), "best": max(rates)}

    def operations(self) -> Found:
        """Time every dispatch of a few steps, and sum up by kind."""
        position = self._effort.prompt
        steps = {
            "streams_1": _batch(self._tokens(1), position),
            f"streams_{STREAMS}": _batch(self._tokens(STREAMS), position),
        }
        found = {name: self._operations(name, batch) for name, batch in steps.items()}
        return {**found, "prefill": self.prefill_operations()}

    def prefill_operations(self) -> Found:
        """Time every dispatch of a step that only prefills."""
        prompt = self._tokens(min(EngineSettings().chunk_rows, self._effort.prefill))
        batch = Batch((Chunk(prompt, 0, (0,), (len(prompt) - 1,)),), (Draw(),))
        return self._operations("prefill", batch)

    def close(self) -> None:
        """Take the model off the device. Idempotent."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    @property
    def _opened(self) -> ResidentExecutor:
        assert self._executor is not None, "the model was not loaded"
        return self._executor

    def _open(self) -> float:
        """Put the model on the device; return the seconds from its file to the last recording."""
        self._executor = None
        started = time.perf_counter()
        with GGUFFile.open(self._path) as file:
            plan = build_plan(file)
            self._executor = self._backend.compile(plan, file, codec=_CODEC, shape=self._shape)
        return time.perf_counter() - started

    def _decode(self, streams: int) -> Found:
        executor, device, effort = self._opened, self._device, self._effort
        for region in range(streams):
            self._feed(self._tokens(effort.prompt), region)
        warm = effort.steps // 4
        calls = started = first = 0.0
        executor.submit(_batch(self._tokens(streams), effort.prompt))
        for step in range(1, effort.steps + 1):
            if step < effort.steps:
                executor.submit(_batch([-1 - row for row in range(streams)], effort.prompt + step))
            executor.collect()
            if step == warm:
                started, calls, first = time.perf_counter(), device.calls, len(device.spans)
        steps, seconds = effort.steps - warm, time.perf_counter() - started
        busy = sum(device.spans[int(first) :]) / seconds
        read = self._bytes_read(streams, effort.prompt + (warm + effort.steps) // 2)
        found = {
            "tokens_per_s": streams * steps / seconds,
            "step_s": seconds / steps,
            "device_s": sum(device.spans[int(first) :]) / steps,
            "idle": max(0.0, 1.0 - busy),
            "bytes_per_step": read,
            "rate": read * steps / seconds,
            "calls_per_step": (device.calls - calls) / steps - 1,  # the clock's own
        }
        line(f"decode, streams: {streams}", f"{found['tokens_per_s']:,.1f} tokens/s")
        line(
            "a step",
            f"{found['step_s'] * 1e3:.3f} ms, on the device {found['device_s'] * 1e3:.3f} ms, "
            f"idle {found['idle']:.1%}",
        )
        line("reads", f"{read / 1e9:.3f} GB a step, {found['rate'] / 1e9:.1f} GB/s")
        return found

    def _bytes_read(self, streams: int, position: int) -> int:
        """Return the bytes of weights, and of K and V behind a position, that a step reads at least."""
        executor = self._opened
        weights = sum(each.weights for each in executor.dispatches(streams, streams))
        return weights + streams * position * executor.page_bytes // executor.page_positions

    def _operations(self, name: str, batch: Batch) -> Found:
        profiles = [self._opened.profile(batch) for _ in range(1 + self._effort.repeats)][1:]
        dispatches = self._opened.dispatches(batch.rows, batch.logit_rows)
        seconds = np.median([profile.seconds for profile in profiles], axis=0).tolist()
        kinds: dict[str, list[tuple[float, int]]] = {}
        for kind, one, dispatch in zip(profiles[0].names, seconds, dispatches, strict=True):
            kinds.setdefault(kind, []).append((one, dispatch.weights))
        whole, barriers = sum(seconds), profiles[0].barriers
        line(
            f"{name}, {batch.rows} rows",
            f"{whole * 1e3:.3f} ms in {len(seconds)} dispatches, {barriers} barriers",
        )
        found = []
        for kind, runs in sorted(kinds.items(), key=lambda item: -sum(second for second, _ in item[1])):
            took, weights = map(sum, zip(*runs, strict=True))
            entry = {"kind": kind, "dispatches": len(runs), "seconds": took, "share": took / whole}
            if weights:
                entry["rate"] = weights / took
            found.append(entry)
            rate = f"{weights / took / 1e9:8.1f} GB/s" if weights else ""
            each = f"{len(runs):4} x {took / len(runs) * 1e6:9.1f} µs"
            line(f"  {kind:48}", each, f"{took / whole:6.1%}", rate)
        return {"rows": batch.rows, "seconds": whole, "barriers": barriers, "kinds": found}

    def _feed(self, tokens: Sequence[int], region: int) -> None:
        """Feed a prompt, a step ahead; the last row is drawn from."""
        executor, step = self._opened, EngineSettings().chunk_rows
        waiting = 0
        for start in range(0, len(tokens), step):
            part = tokens[start : start + step]
            wanted = (len(part) - 1,) if start + step >= len(tokens) else ()
            executor.submit(Batch((Chunk(part, start, (region,), wanted),), (Draw(),) * len(wanted)))
            waiting += 1
            if waiting == executor.depth:
                executor.collect()
                waiting -= 1
        for _ in range(waiting):
            executor.collect()

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._draw.integers(0, self._effort.sizes.vocabulary, count)]


def fit(sizes: large.Sizes, shape: Shape, device: ClockedDevice, folder: Path) -> tuple[large.Sizes, str]:
    """Return the sizes with as many layers as fit, and what there was too little of for the rest, or "".

    The file and its image lie on disk, and both should stay in the host's memory.
    """
    shortage, speed = "", _write_rate(folder)
    while True:
        row = 2 * sizes.kv_heads * _CODEC.row_bytes(sizes.head_size)
        on_device = sizes.bytes + shape.regions * shape.positions * sizes.layers * row + _SPARE
        there = {
            "memory of the device": (on_device, device.budget() - device.used),
            "disk": (2 * sizes.bytes, shutil.disk_usage(folder).free),
            "memory of the host": (2 * sizes.bytes, memory_available()),
            "speed of the disk": (2 * sizes.bytes, speed * PATIENCE_S),
        }
        short = [what for what, (needed, free) in there.items() if needed * 1.1 > free]
        if not short or sizes.layers == 1:
            return sizes, shortage
        shortage = f"{sizes.layers} layers do not fit: too little {short[0]}"
        sizes = replace(sizes, layers=sizes.layers // 2)


def _write_rate(folder: Path) -> float:
    """Return the bytes a second that a disk takes."""
    with tempfile.TemporaryFile(dir=folder) as file:
        data = bytes(_TRIED_BYTES)
        started = time.perf_counter()
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return _TRIED_BYTES / (time.perf_counter() - started)


def _batch(tokens: Sequence[int], position: int) -> Batch:
    """Return a step that feeds one token to each stream and draws the next."""
    chunks = tuple(Chunk((token,), position, (region,), (0,)) for region, token in enumerate(tokens))
    return Batch(chunks, (Draw(),) * len(chunks))
