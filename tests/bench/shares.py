"""Tables of what takes how much of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Times = dict[str, float]  # nanoseconds


def show(title: str, steps: Sequence[Times], whole: float, *, largest_first: bool = False) -> None:
    """Print the median of each entry over all steps, and its share of the whole, nanoseconds."""
    medians = {name: float(np.median([step[name] for step in steps])) for name in steps[0]}
    names = sorted(medians, key=lambda name: -medians[name]) if largest_first else list(medians)
    width = max(32, *(len(name) + 2 for name in names))
    print(f"\n{title:{width}}{'µs':>10}{'share':>8}")
    for name in names:
        print(f"{name:{width}}{medians[name] / 1000:10.1f}{medians[name] / whole:8.1%}")
