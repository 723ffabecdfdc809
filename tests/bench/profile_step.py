"""Where the time of a step goes, as tables: between Python and the kernels, by kind of op, by layer.

Usage: python tests/bench/profile_step.py MODEL.gguf [--device] [--streams N] [--prompt N] [--chunk N] ...

Streams are decoded together behind prompts of random tokens; with --chunk a step feeds so many tokens of a
prompt instead, behind as many whole chunks as --prompt has. Figures are medians over the steps, in
microseconds and as shares of the whole step. Of what happens on all threads at once, the mean over the
threads is told: "waiting" is what a thread waits for the others at barriers, an op is its own work.

With --device the step is one on the Vulkan device, be it a program on the processor; see profile_device.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import profile_device
from seat import ON_DEVICE, ON_HOST, Box, Seat
from shares import Times, show
from tierd.backends import library
from tierd.backends.host import HostExecutor
from tierd.backends.profile import OpName, StepProfile
from tierd.backends.protocol import LogitsResult


def decode(seat: Seat, steps: int) -> tuple[list[StepProfile], list[Times]]:
    """Take so many steps; return their profiles, and what Python does, in nanoseconds, in order."""
    profiles, around = [], []
    executor = seat.executor
    assert isinstance(executor, HostExecutor)
    for _ in range(steps):
        begun = time.perf_counter_ns()
        step = seat.begin()
        assert step is not None
        chosen = time.perf_counter_ns()
        profile = executor.profile(step.batch)
        computed = time.perf_counter_ns()
        seat.finish(step, LogitsResult(profile.logits))
        done = time.perf_counter_ns()
        profiles.append(profile)
        around.append({
            "choose rows (Python)": chosen - begun,
            "set the step up (Python)": profile.before,
            "foreign call": profile.call - profile.step,
            "start and join threads": profile.step - busy(profile),
            "wait at barriers": float(profile.wait.sum(axis=1).mean()),
            "ops": float(profile.work.sum(axis=1).mean()),
            "take the result (Python)": computed - chosen - profile.before - profile.call,
            "pick and book tokens (Python)": done - computed,
        })  # fmt: skip
    return profiles, around


def feed(seat: Seat, tokens: Sequence[int], chunk: int, steps: int) -> tuple[list[StepProfile], list[Times]]:
    """As `decode`, of steps that feed a prompt's last `chunk` tokens; what comes before is whole chunks."""
    profiles, around = [], []
    for _ in range(steps):
        stream = seat.submit(tokens, 1)
        while len(tokens) - stream.fed > chunk:
            seat.step()
        for all_of_them, one in zip((profiles, around), decode(seat, 1), strict=True):
            all_of_them.extend(one)
    return profiles, around


def busy(profile: StepProfile) -> float:
    """Return the nanoseconds that a thread is inside the ops of a step, on average."""
    return float((profile.wait + profile.work).sum(axis=1).mean())


def by(key: Callable[[OpName], str], ops: Sequence[OpName], times: np.ndarray) -> Times:
    """Add up times of ops, shape (ops,), that have a key in common."""
    sums: Times = defaultdict(float)
    for op, nanoseconds in zip(ops, times.tolist(), strict=True):
        sums[key(op)] += nanoseconds
    return dict(sums)


def kind(op: OpName) -> str:
    """Name an op by its kind, a matmul by its tensor's role too."""
    if op.kind != "matmul" or op.tensor is None:
        return op.kind
    return f"matmul {op.tensor.removesuffix('.weight').split('.')[-1]}"


def layer(op: OpName) -> str:
    return "outside layers" if op.layer is None else f"layer {op.layer}"


def report(title: str, tokens: int, profiles: list[StepProfile], around: list[Times]) -> None:
    """Print where the time of steps goes that feed so many tokens each."""
    whole = float(np.median([sum(step.values()) for step in around]))
    threads, ops = profiles[0].wait.shape
    print(
        f"{title}, threads {threads}, level {library.level()}, ops {ops}\n"
        f"a step takes {whole / 1000:.1f} µs: {tokens * 1e9 / whole:,.0f} tokens/s"
    )
    show("part of a step", around, whole)
    work = [by(kind, step.ops, step.work.mean(axis=0)) for step in profiles]
    show("ops by kind", work, whole, largest_first=True)
    wait = [by(kind, step.ops, step.wait.mean(axis=0)) for step in profiles]
    show("waiting before ops, by kind", wait, whole, largest_first=True)
    layers = [by(layer, step.ops, (step.work + step.wait).mean(axis=0)) for step in profiles]
    show("ops and waiting by layer", layers, whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", action="store_true", help="on the Vulkan device")
    parser.add_argument("--streams", type=int, default=1, help="decoded together (1)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens before the first step (128)")
    parser.add_argument("--chunk", type=int, help="tokens of a prompt that a step feeds; none: steps decode")
    parser.add_argument("--steps", type=int, default=64, help="steps that are timed (64)")
    parser.add_argument("--threads", type=int, default=0, help="0: the usable cores")
    options = parser.parse_args()
    if options.chunk and (options.device or options.streams > 1):
        parser.error("--chunk goes with one stream on the host")

    box = Box(threads=options.threads, gpu=ON_DEVICE if options.device else ON_HOST)
    seat = Seat(options.model, box, context=0, streams=options.streams)
    draw, vocabulary = random.Random(0), range(seat.executor.vocabulary)
    title = f"{options.model.name}: streams {options.streams}"
    if options.chunk:
        before = options.prompt // seat.slot.chunk_rows * seat.slot.chunk_rows
        tokens = draw.choices(vocabulary, k=before + options.chunk)
        measured = feed(seat, tokens, options.chunk, options.steps)
        report(f"{title}, {options.chunk} tokens behind {before}", options.chunk, *measured)
    else:
        prompts = [draw.choices(vocabulary, k=options.prompt) for _ in range(options.streams)]
        seat.run_in(prompts, 2 * options.steps + 1)
        if options.device:
            print(f"{options.model.name}: ", end="")
            profile_device.profile(seat, options.steps)
        else:
            report(title, options.streams, *decode(seat, options.steps))
    seat.close()
    box.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
