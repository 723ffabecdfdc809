"""Makes vectors of prompts: hidden states are added up, position by position, and brought to length 1.

A state is added in float64 at its turn, whatever chunk it came in, so that a vector has the same bits however
its prompt was fed. What is fed once more, because its K/V was lost, is not added twice.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import Result
from tierd.core import Pooling, Sequence
from tierd.slot import Step


def wanted_states(sequence: Sequence, start: int, stop: int) -> Ordered[int]:
    """Return the rows of a chunk that an embedding is made of. Pure.

    start, stop: the chunk has positions start to stop - 1.
    """
    embedding = sequence.request.embedding
    if embedding is None:
        return ()
    first, last = {
        Pooling.MEAN: (start, stop),
        Pooling.CLS: (start, min(stop, 1)),
        Pooling.LAST: (max(start, len(sequence.tokens) - 1), stop),
    }[embedding.pooling]
    return range(max(first, sequence.summed) - start, last - start)


def pool(step: Step, result: Result, wanted: Ordered[bool]) -> None:
    """Add the hidden states that a step has brought to those of its sequences.

    wanted: for each sequence, whether anybody cares.
    """
    row = 0
    for chunk, sequence, cares in zip(step.chunks, step.sequences, wanted, strict=True):
        states = result.hidden[row : row + len(chunk.hidden_rows)]
        row += len(chunk.hidden_rows)
        if not cares or not len(states):
            continue
        if sequence.pooled is None:
            sequence.pooled = np.zeros(states.shape[1], np.float64)
        for state in states:
            sequence.pooled += state
        sequence.summed = chunk.end


def vector_of(sequence: Sequence) -> npt.NDArray[np.float32]:
    """Return the embedding of a sequence whose prompt is fed, all zeros where that is what it is made of."""
    embedding, pooled = sequence.request.embedding, sequence.pooled
    assert embedding is not None
    assert pooled is not None
    values = pooled[: embedding.dimensions]
    length = np.sqrt(np.sum(values * values))
    return (values / length if length else values).astype(np.float32)
