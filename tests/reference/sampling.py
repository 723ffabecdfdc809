"""The chain and the rule of the draw, written plainly in numpy.

It shares no code with the package. Weights are those of float32 arguments, as every executor computes them;
all else is float64, so a draw that lies at an edge may fall on either side of it: see `Drawn.edge`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HEAD = 64  # ids that lie first along the draw, best first
Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kept:
    """What the filters leave. ids: along the draw. weights: of them, the best one's is 1.

    edge: the smallest relative change of a sum or a weight that would have moved a filter's cut.
    tail_filtered: whether any filter keeps the whole head and has its say on what lies beyond.
    """

    ids: Ids
    weights: npt.NDArray[np.float64]
    edge: float
    tail_filtered: bool


@dataclass(frozen=True)
class Drawn:
    """A pick, and its place along the draw.

    edge: the smallest relative change of a sum or a weight that would have led to another one.
    """

    id: int
    edge: float
    place: int
    kept: Kept


def ranked(logits: Row) -> Ids:
    """Return the ids whose logits are numbers, best first, the lower one on a tie."""
    ids = np.flatnonzero(~np.isnan(logits))
    return ids[np.lexsort((ids, -logits[ids].astype(np.float64)))]


def keep(logits: Row, inverse: float, top_k: int, top_p: float, min_p: float) -> Kept:
    """Apply temperature (as 1 / temperature), top_k, top_p and min_p to a row with a finite best logit."""
    ids = ranked(logits)
    with np.errstate(all="ignore"):
        scaled = ((logits[ids] - logits[ids[0]]) * np.float32(inverse)).astype(np.float32)
        weights = np.where(scaled >= np.float32(-87.3), np.exp(scaled.astype(np.float64)), 0.0)
    ids, weights = ids[weights > 0], weights[weights > 0]
    sums = np.cumsum(weights)
    edges, counts = [np.inf], [ids.size]
    if 0 < top_k < ids.size:
        counts.append(top_k)
        if top_k > HEAD:  # beside the head weights decide, which may be equal where logits are not
            apart = 1 - weights[top_k] / weights[top_k - 1]
            edges.append(apart if logits[ids[top_k]] != logits[ids[top_k - 1]] else np.inf)
    if np.float32(top_p) < 1:
        pool = sums[: min(counts)]
        goal = float(np.float32(top_p)) * pool[-1]
        counts.append(int(np.searchsorted(pool[:-1], goal)) + 1)
        edges.append(np.abs(pool / goal - 1).min() if goal > 0 else np.inf)
    if np.float32(min_p) > 0:
        counts.append(max(1, int((weights >= np.float32(min_p)).sum())))
        rounded = weights[weights < 1]  # the best one's is 1 for everybody
        edges.append(np.abs(rounded / float(np.float32(min_p)) - 1).min(initial=np.inf))
    count = min(counts)
    along = np.concatenate([ids[: min(count, HEAD)], np.sort(ids[HEAD : max(count, HEAD)])])
    order = np.argsort(ids)
    places = order[np.searchsorted(ids, along, sorter=order)]
    return Kept(along, weights[places], min(edges), any(cut > HEAD for cut in counts[1:]))


def draw(
    logits: Row, *, inverse: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> Drawn | None:
    """Pick an id from logits past the penalties; None where none is a number. inverse 0 takes the best."""
    ids = ranked(logits)
    if ids.size == 0:
        return None
    if inverse == 0 or not np.isfinite(logits[ids[0]]):
        return Drawn(int(ids[0]), np.inf, 0, Kept(ids[:1], np.ones(1), np.inf, False))
    kept = keep(logits, inverse, top_k, top_p, min_p)
    sums = np.cumsum(kept.weights) / kept.weights.sum()
    place = min(int(np.searchsorted(sums, uniform, side="right")), kept.ids.size - 1)
    edge = np.abs(sums[:-1] - uniform).min(initial=np.inf)
    return Drawn(int(kept.ids[place]), float(min(edge, kept.edge)), place, kept)


def change(logits: Row, ids: Ids, bias: Row, repeat: Row, minus: Row) -> Row:
    """Return logits after bias, then the repeat penalty, then what else is taken off, in float32."""
    changed = logits.copy()
    biased = logits[ids] + bias
    changed[ids] = np.where(biased > 0, biased / repeat, biased * repeat) - minus
    return changed


def log_sum_exp(logits: Row) -> float:
    """Return it in float64; NaN counts as nothing."""
    values = logits[~np.isnan(logits)].astype(np.float64)
    best = values.max(initial=-np.inf)
    return float(best + np.log(np.exp(values - best).sum())) if np.isfinite(best) else float(best)
