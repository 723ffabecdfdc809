"""Where the time of a step on a device goes, dispatch by dispatch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import Result
from tierd.backends.resident.assembly import Dispatch
from tierd.backends.resident.ops import Op, Product


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepProfile:
    """One step, timed by the device.

    result: as `Executor.collect` returns it. barriers: how many there are between the dispatches.
    names: of the dispatches, in order: kernel, variant, and the tensors of a matrix by their roles.
    seconds: of each, from the end of all before it to its own, shape (dispatches,).
    """

    result: Result
    names: tuple[str, ...]
    seconds: npt.NDArray[np.float64]
    barriers: int


def name_dispatches(dispatches: Sequence[Dispatch], ops: Sequence[Op]) -> tuple[str, ...]:
    """Return the names of dispatches. ops: those behind the first of them, one each."""
    return tuple(_name(dispatch, op) for dispatch, op in zip_longest(dispatches, ops))


def _name(dispatch: Dispatch, op: Op | None) -> str:
    shader = dispatch.shader
    words = [shader.kernel]
    if shader.variant != "plain":
        words.append(shader.variant)
    if isinstance(op, Product):
        words.append("+".join(re.sub(r"^blk\.\d+\.|\.weight$", "", name) for name in op.matrix.tensors))
    return " ".join(words)
