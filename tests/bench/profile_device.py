"""Where the time of a decode step on the device goes: between Python and the device, by kind of dispatch."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from seat import Seat
from shares import Times, show
from tierd.backends.resident.executor import ResidentExecutor


def profile(seat: Seat, steps: int) -> None:
    """Take twice as many steps of streams that all generate, and print what they cost.

    The first ones are taken as the engine does, one ahead, and timed as a whole. The others are timed by the
    device, dispatch by dispatch, each alone.
    """
    executor = seat.executor
    assert isinstance(executor, ResidentExecutor)
    calls, begun = executor.calls, time.perf_counter_ns()
    for _ in range(steps):
        seat.step()
    whole, calls = (time.perf_counter_ns() - begun) / steps, executor.calls - calls
    seat.catch_up()

    profiles = []
    for _ in range(steps):
        step = seat.begin()
        assert step is not None
        profiles.append(executor.profile(step.batch))
        seat.finish(step, profiles[-1].result)
    names, streams = profiles[0].names, len(step.sequences)
    counts = Counter(names)
    kinds: list[Times] = []
    for each in profiles:
        kinds.append(dict.fromkeys((f"{count} x {name}" for name, count in counts.items()), 0.0))
        for name, seconds in zip(each.names, each.seconds.tolist(), strict=True):
            kinds[-1][f"{counts[name]} x {name}"] += seconds * 1e9
    on_device = float(np.median([sum(kind.values()) for kind in kinds]))
    print(
        f"streams {streams}, device {seat.slot.device}\n"
        f"a step takes {whole / 1000:.1f} µs: {streams * 1e9 / whole:,.1f} tokens/s; "
        f"timed alone, {on_device / 1000:.1f} µs on the device\n"
        f"Vulkan calls {calls / steps:.1f}, dispatches {len(names)}, barriers {profiles[0].barriers}"
    )
    show("dispatches by kind", kinds, on_device, largest_first=True)
