"""Which rows of a step go on behind its last attention, in the order in which executors have them."""

from __future__ import annotations

from tierd.core import Batch
from tierd.errors import ExecutorError


def select(batch: Batch) -> tuple[list[int], list[int]]:
    """Return the rows whose logits are wanted, and those whose hidden states are; both as a batch has them.

    Raises ExecutorError for a row that does not exist, or of which more than one thing is wanted.
    """
    scored: list[int] = []
    hidden: list[int] = []
    row = 0
    for chunk in batch.chunks:
        count = len(chunk.tokens)
        wanted = (*chunk.logit_rows, *chunk.hidden_rows)
        for offset in wanted:
            if not 0 <= offset < count:
                raise ExecutorError(f"row {offset} is wanted of a chunk of {count}")
        if len(set(wanted)) != len(wanted):
            raise ExecutorError(f"a row of a chunk of {count} is wanted more than once")
        scored += [row + offset for offset in chunk.logit_rows]
        hidden += [row + offset for offset in chunk.hidden_rows]
        row += count
    return scored, hidden
