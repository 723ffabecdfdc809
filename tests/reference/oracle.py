"""The oracle's measures (DESIGN.md, section 8), for any executor's logits.

An oracle file holds `greedy` rows (prompt, 48 ids, margins) and the texts `float32` and `float32_long`
with the top 20 log-probabilities of a float32 forward at some positions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SMOLLM2 = "smollm2-135m-q4_1"
GEMMA3 = "gemma3-270m-q4_k_m"

SURE_MARGIN = 0.5
NARROW_MARGIN = 0.1
NARROW_SHARE = 0.985
_LEAST_PROBABILITY = 1e-12


def load(oracle_dir: Path, name: str) -> dict[str, Any]:
    """Return the oracle's file of one model, `SMOLLM2` or `GEMMA3`."""
    content: dict[str, Any] = json.loads((oracle_dir / f"{name}.json").read_text(encoding="utf-8"))
    return content


def positions(top20: Sequence[dict[str, Any]]) -> list[int]:
    """Return the positions that an oracle's `top20` speaks of, in its order."""
    return [entry["pos"] for entry in top20]


def log_softmax(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return log-probabilities along the last axis, in float64."""
    shifted = np.asarray(logits, np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mean_kl(top20: Sequence[dict[str, Any]], logits: Sequence[npt.ArrayLike]) -> float:
    """Return the mean over the positions of KL(reference || ours), in nats.

    top20: the oracle's entries; logits: ours at `positions(top20)`, one row (vocabulary,) for each. The
    distributions are compared over the 20 ids and one bucket for all others.
    """
    if len(top20) != len(logits):
        raise ValueError(f"{len(top20)} reference rows, {len(logits)} rows of ours")
    return float(np.mean([_kl(entry, row) for entry, row in zip(top20, logits, strict=True)]))


def _kl(entry: dict[str, Any], logits: npt.ArrayLike) -> float:
    reference = _with_rest(np.exp(np.asarray(entry["logprobs"], np.float64)))
    ours = _with_rest(np.exp(log_softmax(logits)[entry["ids"]]))
    return float(np.sum(reference * (np.log(reference) - np.log(ours))))


def _with_rest(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    rest = max(1.0 - float(probabilities.sum()), _LEAST_PROBABILITY)
    return np.append(np.maximum(probabilities, _LEAST_PROBABILITY), rest)


def greedy_feed(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return what to feed for a `greedy` row, teacher-forced, and the positions that predict its ids."""
    prompt, answer = row["prompt_tokens"], row["tokens"]
    first = len(prompt) - 1
    return [*prompt, *answer[:-1]], list(range(first, first + len(answer)))


def greedy_picks(logits: npt.ArrayLike, end_ids: Collection[int]) -> list[int]:
    """Return the most likely id of each row of logits, ids that end a generation barred."""
    barred = np.array(logits, np.float64)
    barred[:, list(end_ids)] = -np.inf
    picks: list[int] = barred.argmax(axis=-1).tolist()
    return picks


@dataclass(frozen=True)
class GreedyVerdict:
    """How picks fare against the oracle's ids.

    wrong: (row, step) of the misses among steps whose margin is SURE_MARGIN or more.
    share: of the steps whose margin is NARROW_MARGIN or more, how many agree.
    """

    wrong: tuple[tuple[int, int], ...]
    share: float

    @property
    def holds(self) -> bool:
        """Whether the rule holds: no sure step wrong, and 98.5 % of the others right."""
        return not self.wrong and self.share >= NARROW_SHARE


def greedy_rule(rows: Sequence[dict[str, Any]], picks: Sequence[Sequence[int]]) -> GreedyVerdict:
    """Compare the picks of `greedy_picks`, one list per `greedy` row, with the oracle's ids."""
    wrong, agreed = [], []
    for number, (row, ours) in enumerate(zip(rows, picks, strict=True)):
        for step, (theirs, mine, margin) in enumerate(zip(row["tokens"], ours, row["margin"], strict=True)):
            if margin >= SURE_MARGIN and mine != theirs:
                wrong.append((number, step))
            if margin >= NARROW_MARGIN:
                agreed.append(mine == theirs)
    return GreedyVerdict(tuple(wrong), float(np.mean(agreed)))
