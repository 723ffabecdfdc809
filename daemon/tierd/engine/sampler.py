"""Picks tokens from logits. A draw depends on the request's seed and the token's position alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.protocol import Logits
from tierd.core import SamplingParams
from tierd.slot import Step


def pick(step: Step, logits: Logits) -> list[int | None]:
    """Return the next token of each of the step's sequences; None where its prompt is not fed whole yet.

    logits: shape (step.batch.logit_rows, vocabulary), at most one row for a chunk.
    """
    rows = iter(logits)
    return [
        pick_token(next(rows), sequence.request.sampling, len(sequence.tokens)) if chunk.logit_rows else None
        for chunk, sequence in zip(step.batch.chunks, step.sequences, strict=True)
    ]


def pick_token(row: npt.NDArray[np.float32], params: SamplingParams, position: int) -> int:
    """Pick the token that stands at `position` from its logits, shape (vocabulary,).

    Temperature 0 picks the most likely one, the lowest id on a tie. A seed counts modulo 2**64.
    """
    if params.temperature == 0:
        return library.argmax(row)
    return library.sample(
        row,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=library.uniform(params.seed % 2**64, position),
    )
