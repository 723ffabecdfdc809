"""Picks tokens from logits. A draw depends on the request's seed and the token's position alone.

The chain is logit_bias, the penalties (repeat, then presence and frequency), what is allowed, temperature,
top_k, top_p, min_p, draw. Bias and penalties come first as in llama.cpp and vLLM; the rest has the order of
Hugging Face's transformers. A greedy pick (temperature 0) takes the best of what the penalties and the mask
leave. Log-probabilities are those of the model's own logits, before any of it, as llama.cpp and vLLM tell
them unless asked otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from tierd.backends import library, picking
from tierd.backends.protocol import Result
from tierd.core import ADJUSTMENT, NO_ADJUSTMENTS, Draw, Sequence, TokenLogprobs
from tierd.slot import Step

# Bits below an id that tell where it comes from: it stands in the window, and it was generated.
_MARKS, _SAID, _GENERATED = 2, 2, 1


def draw(sequence: Sequence, position: int, vocabulary: int) -> Draw:
    """Say how to pick the token of a sequence that stands at `position`.

    What depends on the text is that of `sequence.tokens`; see `awaits_text`. What follows its grammar must
    know.
    """
    params = sequence.request.sampling
    return Draw(
        adjustments=_adjustments(sequence),
        allowed=params.allowed if sequence.following is None else sequence.following.allowed,
        temperature=params.temperature,
        top_k=min(params.top_k, vocabulary),
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=library.uniform(params.seed % 2**64, position) if params.temperature else 0.0,
        top_logprobs=sequence.request.top_logprobs,
    )


def awaits_text(sequence: Sequence) -> bool:
    """Whether how to pick a token of the sequence depends on the tokens before it."""
    return sequence.request.sampling.penalises or sequence.following is not None


def pick(step: Step, result: Result, wanted: Ordered[bool]) -> list[int | None]:
    """Return the next token of each of the step's sequences; None where its prompt is not fed whole yet.

    wanted: for each sequence, whether anybody cares; None where not. What the executor has drawn is taken,
    and noted as `foreseen`; the rest is picked from the logits, which are left as they are. None, too, where
    it is not known which tokens may come; then that is noted as late.
    """
    tokens: list[int | None] = []
    row = 0
    for chunk, sequence, cares in zip(step.chunks, step.sequences, wanted, strict=True):
        token = None
        row += len(chunk.logit_rows)
        if chunk.draws and cares:
            drawn = result.drawn(row - 1)
            sequence.foreseen = -1 if drawn is None else drawn
            token = drawn
            if drawn is None and not _is_late(sequence):
                token = _pick(result.logits(row - 1), sequence)
        tokens.append(token)
    return tokens


def score(step: Step, result: Result, tokens: Ordered[int | None]) -> list[TokenLogprobs | None]:
    """Return the log-probabilities of picked tokens; None where there is no token or nobody asks.

    result, tokens: what `pick` was given and returned.
    """
    scores: list[TokenLogprobs | None] = []
    row = 0
    for chunk, sequence, token in zip(step.chunks, step.sequences, tokens, strict=True):
        top = sequence.request.top_logprobs
        row += len(chunk.logit_rows)
        scores.append(None if token is None or top is None else result.logprobs(row - 1, token, top))
    return scores


def _is_late(sequence: Sequence) -> bool:
    """Whether it is not known yet which tokens may come next; note it."""
    following = sequence.following
    if following is None:
        return False
    following.late = not following.known
    return following.late


def _pick(logits: npt.NDArray[np.float32], sequence: Sequence) -> int:
    """Pick a token from a row of logits, shape (vocabulary,)."""
    return picking.pick(logits, draw(sequence, len(sequence.tokens), logits.size))


def _adjustments(sequence: Sequence) -> npt.NDArray[np.void]:
    """Return what logit_bias and the penalties do to logits, as `Draw.adjustments`."""
    params = sequence.request.sampling
    if not (params.logit_bias or params.penalises):
        return NO_ADJUSTMENTS
    biased = np.array([id for id, _ in params.logit_bias], np.int32)
    marked = np.sort(np.concatenate([biased << _MARKS, _window(sequence)]))
    ids = marked >> _MARKS
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    ids = ids[starts]
    said = np.bitwise_or.reduceat(marked & _SAID, starts) != 0
    times = np.add.reduceat(marked & _GENERATED, starts).astype(np.float32)
    presence, frequency = np.float32(params.presence_penalty), np.float32(params.frequency_penalty)

    adjustments = np.zeros(ids.size, ADJUSTMENT)
    adjustments["id"] = ids
    adjustments["plus"][np.searchsorted(ids, biased)] = [amount for _, amount in params.logit_bias]
    adjustments["repeat"] = np.where(said, np.float32(params.repeat_penalty), 1)
    adjustments["minus"] = np.where(times > 0, presence + frequency * times, 0)
    return adjustments


def _window(sequence: Sequence) -> npt.NDArray[np.int32]:
    """Return the tokens that penalties look at, marked."""
    params = sequence.request.sampling
    if not params.penalises:
        return np.empty(0, np.int32)
    sequence.history.extend(sequence.tokens[len(sequence.history) :])
    tokens = np.frombuffer(sequence.history, np.int32)
    start = max(0, tokens.size - params.penalty_window) if params.penalty_window else 0
    marked = tokens[start:] << _MARKS | _SAID
    marked[max(0, len(sequence.request.prompt) - start) :] |= _GENERATED
    return marked
