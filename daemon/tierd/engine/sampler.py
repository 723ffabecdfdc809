"""Picks tokens from logits. A draw depends on the request's seed and the token's position alone.

The chain is logit_bias, the penalties (repeat, then presence and frequency), temperature, top_k, top_p,
min_p, draw. Bias and penalties come first as in llama.cpp and vLLM; the rest has the order of Hugging
Face's transformers. A greedy pick (temperature 0) takes the best after the penalties. Log-probabilities
are those of the model's own logits, before any of it, as llama.cpp and vLLM tell them unless asked
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.protocol import Logits
from tierd.core import SamplingParams, Sequence, TokenLogprobs
from tierd.slot import Step

Row = npt.NDArray[np.float32]


def pick(step: Step, logits: Logits) -> list[int | None]:
    """Return the next token of each of the step's sequences; None where its prompt is not fed whole yet.

    logits: shape (step.batch.logit_rows, vocabulary), at most one row for a chunk; they are left as they are.
    """
    rows = iter(logits)
    return [
        _pick(next(rows), sequence) if chunk.logit_rows else None
        for chunk, sequence in zip(step.batch.chunks, step.sequences, strict=True)
    ]


def score(step: Step, logits: Logits, tokens: Ordered[int | None]) -> list[TokenLogprobs | None]:
    """Return the log-probabilities of picked tokens; None where there is no token or nobody asks.

    logits, tokens: what `pick` was given and returned.
    """
    rows = iter(logits)
    scores: list[TokenLogprobs | None] = []
    for sequence, token in zip(step.sequences, tokens, strict=True):
        row = None if token is None else next(rows)
        top = sequence.request.top_logprobs
        scores.append(None if row is None or token is None or top is None else measure(row, token, top))
    return scores


def measure(row: Row, token: int, top: int) -> TokenLogprobs:
    """Return the log-probability of a token and of the `top` most likely ones, by logits (vocabulary,)."""
    total = library.log_sum_exp(row)
    best = library.top(row, top)
    return TokenLogprobs(token, float(row[token]) - total, tuple((id, float(row[id]) - total) for id in best))


def pick_token(row: Row, params: SamplingParams, position: int) -> int:
    """Pick the token that stands at `position` from its logits, shape (vocabulary,), past the penalties.

    Temperature 0 picks the most likely one, the lowest id on a tie. A seed counts modulo 2**64.
    """
    if params.temperature == 0:
        return library.argmax(row)
    return library.sample(
        row,
        temperature=params.temperature,
        top_k=min(params.top_k, row.size),
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=library.uniform(params.seed % 2**64, position),
    )


def bias(row: Row, params: SamplingParams) -> None:
    """Add logit_bias to logits, shape (vocabulary,), in place."""
    if params.logit_bias:
        ids, amounts = zip(*params.logit_bias, strict=True)
        row[list(ids)] += np.array(amounts, np.float32)


def penalise(row: Row, params: SamplingParams, tokens: npt.NDArray[np.int32], prompt: int) -> None:
    """Take the penalties off logits, shape (vocabulary,), in place.

    tokens: the sequence's so far; the first `prompt` are the prompt's.
    """
    start = max(0, len(tokens) - params.penalty_window) if params.penalty_window else 0
    library.penalise(
        row,
        tokens[start:],
        prompt=max(0, prompt - start),
        repeat=params.repeat_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )


def _pick(row: Row, sequence: Sequence) -> int:
    params, history = sequence.request.sampling, sequence.history
    if params.logit_bias or params.penalises:
        row = row.copy()
        bias(row, params)
    if params.penalises:
        history.extend(sequence.tokens[len(history) :])
        penalise(row, params, np.frombuffer(history, np.int32), len(sequence.request.prompt))
    return pick_token(row, params, len(sequence.tokens))
