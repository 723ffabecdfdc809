"""What becomes of a row of logits: a token, and log-probabilities. As the host makes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.core import Batch, Draw, TokenLogprobs
from tierd.errors import ExecutorError

Row = npt.NDArray[np.float32]


def check_draws(batch: Batch, vocabulary: int) -> None:
    """Raise ExecutorError for draws that do not fit a batch's rows of logits, of `vocabulary` each."""
    if batch.draws and len(batch.draws) != batch.logit_rows:
        raise ExecutorError(f"{len(batch.draws)} draws from {batch.logit_rows} rows of logits")
    words = -(-vocabulary // 32)
    for mask in (draw.allowed for draw in batch.draws if draw.allowed is not None):
        if mask.words.size != words:
            raise ExecutorError(f"a mask of {mask.words.size} words; one of {vocabulary} ids has {words}")
        if vocabulary % 32 and mask.words[-1] >> np.uint32(vocabulary % 32):
            raise ExecutorError(f"a mask that allows ids which do not exist; the last is {vocabulary - 1}")


def pick(row: Row, draw: Draw) -> int:
    """Pick a token from logits, shape (vocabulary,), which are left as they are.

    Temperature 0 picks the most likely one, the lowest id on a tie. Where no logit of what may be picked is
    above -infinity, as no sound model has it, the lowest id of that is picked.
    """
    if draw.adjustments.size:
        row = row.copy()
        library.adjust(row, draw.adjustments)
    if draw.allowed is None:
        return _draw(row, draw)
    ids, logits = library.select(row, draw.allowed.words)
    return int(ids[_draw(logits, draw)]) if ids.size > 1 else int(ids[0])


def _draw(row: Row, draw: Draw) -> int:
    """Return which of a row of logits is drawn; the first where none is above -infinity."""
    if draw.temperature == 0:
        return library.argmax(row)
    return library.sample(
        row,
        temperature=draw.temperature,
        top_k=draw.top_k,
        top_p=draw.top_p,
        min_p=draw.min_p,
        uniform=draw.uniform,
    )


def measure(row: Row, token: int, top: int) -> TokenLogprobs:
    """Return the log-probability of a token and of the `top` most likely ones, by logits (vocabulary,)."""
    total = library.log_sum_exp(row)
    best = library.top(row, top)
    return TokenLogprobs(token, float(row[token]) - total, tuple((id, float(row[id]) - total) for id in best))
