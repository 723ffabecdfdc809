"""Requests for embeddings, and what their vectors must be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.null_slot import request
from tierd.backends.null import NullExecutor
from tierd.core import Batch, Chunk, Embedding, Event, FinishedEvent, Pooling, Request
from tierd.core import Sequence as Stream

POOLINGS = (Pooling.MEAN, Pooling.CLS, Pooling.LAST)
Vector = npt.NDArray[np.float32]


def embed(
    id: str,
    prompt: Iterable[int],
    pooling: Pooling = Pooling.MEAN,
    *,
    dimensions: int | None = None,
    model: str = "null",
) -> Request:
    return replace(request(id, prompt, 0, model=model), embedding=Embedding(pooling, dimensions))


def pooled(states: npt.NDArray[np.floating], pooling: Pooling, dimensions: int | None = None) -> Vector:
    """Return the vector of a text's hidden states, shape (tokens, width), added up from the first one on."""
    some = {Pooling.MEAN: states, Pooling.CLS: states[:1], Pooling.LAST: states[-1:]}[pooling]
    total = np.zeros(states.shape[1], np.float64)
    for state in some:
        total = total + state
    total = total[:dimensions]
    return (total / np.sqrt((total * total).sum())).astype(np.float32)


def expected(prompt: Sequence[int], pooling: Pooling, dimensions: int | None = None) -> Vector:
    """Return the vector that the null device gives, in one go: without scheduler, pages or cache."""
    executor = NullExecutor(pages=1, page_positions=512, max_rows=512)
    executor.submit(Batch((Chunk(tuple(prompt), 0, (0,), hidden_rows=range(len(prompt))),)))
    return pooled(executor.collect().hidden, pooling, dimensions)


def vectors(events: Iterable[tuple[Stream, Event]]) -> dict[str, FinishedEvent]:
    """Return how requests for embeddings have ended, by name."""
    found = {}
    for sequence, event in events:
        if sequence.request.embedding is not None:
            assert isinstance(event, FinishedEvent), event
            assert sequence.request.id not in found
            found[sequence.request.id] = event
    return found
