"""Requests whose prompts are scored, and what their log-probabilities must be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.null_slot import request
from tierd.backends.null import NullExecutor
from tierd.backends.picking import measure
from tierd.core import Batch, Chunk, Event, Request, TextEvent, TokenLogprobs
from tierd.core import Sequence as Stream


def scoring(
    id: str, prompt: Iterable[int], max_tokens: int = 0, *, top: int = 2, model: str = "null"
) -> Request:
    return replace(request(id, prompt, max_tokens, model=model), prompt_logprobs=top)


def expected(prompt: Sequence[int], top: int = 2) -> list[TokenLogprobs]:
    """Return what the null device gives, in one go: without scheduler, pages or cache."""
    executor = NullExecutor(pages=1, page_positions=512, max_rows=512)
    rows = executor.run(Batch((Chunk(tuple(prompt), 0, (0,), tuple(range(len(prompt) - 1))),)))
    return [measure(row, token, top) for row, token in zip(rows, prompt[1:], strict=True)]


def scores(events: Iterable[tuple[Stream, Event]]) -> dict[str, list[TokenLogprobs]]:
    """Return what is told of each request's prompt, before any text of it."""
    found: defaultdict[str, list[TokenLogprobs]] = defaultdict(list)
    begun = set()
    for sequence, event in events:
        if isinstance(event, TextEvent):
            name = sequence.request.id
            if event.prompt:
                assert event == TextEvent("", prompt=event.prompt)
                assert name not in begun
            else:
                begun.add(name)
            found[name] += event.prompt
    return found
