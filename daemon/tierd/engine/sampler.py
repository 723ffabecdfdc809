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
from tierd.backends.protocol import Result
from tierd.core import Draw, SamplingParams, Sequence, TokenLogprobs
from tierd.slot import Step

Row = npt.NDArray[np.float32]


def draw(sequence: Sequence, position: int, vocabulary: int) -> Draw:
    """Say how an executor is to pick the token of a sequence that stands at `position`, as `pick` would."""
    params = sequence.request.sampling
    return Draw(
        adjustments=_adjustments(sequence),
        temperature=params.temperature,
        top_k=min(params.top_k, vocabulary),
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=library.uniform(params.seed % 2**64, position) if params.temperature else 0.0,
        scored=sequence.request.top_logprobs is not None,
    )


def pick(step: Step, result: Result, wanted: Ordered[bool]) -> list[int | None]:
    """Return the next token of each of the step's sequences; None where its prompt is not fed whole yet.

    wanted: for each sequence, whether anybody cares; None where not. What the executor has drawn is taken,
    and noted as `foreseen`; the rest is picked from the logits, which are left as they are.
    """
    tokens: list[int | None] = []
    row = 0
    for chunk, sequence, cares in zip(step.batch.chunks, step.sequences, wanted, strict=True):
        token = None
        if chunk.logit_rows and cares:
            drawn = result.drawn(row)
            sequence.foreseen = -1 if drawn is None else drawn
            token = _pick(result.logits(row), sequence) if drawn is None else drawn
        tokens.append(token)
        row += len(chunk.logit_rows)
    return tokens


def score(step: Step, result: Result, tokens: Ordered[int | None]) -> list[TokenLogprobs | None]:
    """Return the log-probabilities of picked tokens; None where there is no token or nobody asks.

    result, tokens: what `pick` was given and returned.
    """
    scores: list[TokenLogprobs | None] = []
    row = 0
    for chunk, sequence, token in zip(step.batch.chunks, step.sequences, tokens, strict=True):
        top = sequence.request.top_logprobs
        scores.append(None if token is None or top is None else measure(result.logits(row), token, top))
        row += len(chunk.logit_rows)
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


def _history(sequence: Sequence) -> npt.NDArray[np.int32]:
    """Return a sequence's tokens as an array, brought up to date."""
    sequence.history.extend(sequence.tokens[len(sequence.history) :])
    return np.frombuffer(sequence.history, np.int32)


def _adjustments(sequence: Sequence) -> tuple[tuple[int, float, float, float], ...]:
    """Return what `bias` and `penalise` do to single logits, as `Draw.adjustments`: numbers of float32."""
    params = sequence.request.sampling
    plus = {id: float(np.float32(amount)) for id, amount in params.logit_bias}
    if not params.penalises:
        return tuple((id, amount, 1.0, 0.0) for id, amount in plus.items())
    tokens = _history(sequence)
    prompt = len(sequence.request.prompt)
    start = max(0, len(tokens) - params.penalty_window) if params.penalty_window else 0
    ids = np.unique(tokens[start:])
    generated, counts = np.unique(tokens[max(start, prompt) :], return_counts=True)
    minus = np.zeros(ids.size, np.float32)
    minus[np.searchsorted(ids, generated)] = np.float32(params.presence_penalty) + np.float32(
        params.frequency_penalty
    ) * counts.astype(np.float32)
    repeat = float(np.float32(params.repeat_penalty))
    changes = {id: (amount, 1.0, 0.0) for id, amount in plus.items()}
    for id, off in zip(ids.tolist(), minus.tolist(), strict=True):
        changes[id] = (plus.get(id, 0.0), repeat, off)
    return tuple((id, *change) for id, change in changes.items())


def _pick(row: Row, sequence: Sequence) -> int:
    params = sequence.request.sampling
    if params.logit_bias or params.penalises:
        row = row.copy()
        bias(row, params)
    if params.penalises:
        penalise(row, params, _history(sequence), len(sequence.request.prompt))
    return pick_token(row, params, len(sequence.tokens))
