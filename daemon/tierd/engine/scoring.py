"""Log-probabilities of the tokens of prompts, each by the logits of the row before it.

Logits are large, and a step has room for few rows of them: prompts that are scored are fed in small chunks.
What comes of them is the same whatever the chunks are. Rows that are fed once more, because their K/V was
lost, are not scored twice.
"""

from __future__ import annotations

from tierd.backends.protocol import SCORED_ROWS, Result
from tierd.core import Draw, Sequence, TokenLogprobs, TokenMask
from tierd.slot import Slot, Step


def spare_rows(slot: Slot) -> int:
    """Return how many rows of logits a step has room for, beside one of each running stream. Pure."""
    return max(0, min(SCORED_ROWS, slot.executor.logit_rows - len(slot.running)))


def most_rows(sequence: Sequence, start: int, spare: int) -> int:
    """Return how many rows may be fed from a position on, so that one more than `spare` are scored. Pure."""
    if sequence.request.prompt_logprobs is None:
        return len(sequence.tokens)
    return max(0, sequence.scored - start) + 1 + spare


def wanted_targets(sequence: Sequence, start: int, stop: int) -> tuple[int, ...]:
    """Return the tokens of the prompt that the last rows of a chunk are to be scored for. Pure.

    start, stop: the chunk has positions start to stop - 1; of the prompt's last row none is wanted.
    """
    if sequence.request.prompt_logprobs is None:
        return ()
    return sequence.request.prompt[max(start, sequence.scored) + 1 : stop + 1]


def target_draw(token: int, top: int | None, vocabulary: int) -> Draw:
    """Return the draw that can only fall on a token, and tells how likely that was."""
    return Draw(allowed=TokenMask.of((token,), vocabulary), top_logprobs=top)


def measure(step: Step, result: Result) -> list[tuple[TokenLogprobs, ...]]:
    """Return what is asked for of each sequence's prompt. For runners: it takes a while."""
    scores = []
    row = 0
    for chunk, sequence in zip(step.chunks, step.sequences, strict=True):
        top = sequence.request.prompt_logprobs or 0
        scores.append(tuple(result.logprobs(row + i, token, top) for i, token in enumerate(chunk.targets)))
        row += len(chunk.logit_rows)
    return scores
