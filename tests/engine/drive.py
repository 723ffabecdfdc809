"""A slot driven as the engine drives it, but step by step in the test's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import numpy as np

from tierd.backends.null import NullExecutor
from tierd.backends.protocol import Result
from tierd.chat.stops import text_stream
from tierd.core import Batch, Chunk, Event, FailedEvent, Request, Sequence, TerminalEvent
from tierd.engine.flights import counting
from tierd.engine.pooling import pool
from tierd.engine.sampler import pick, score
from tierd.engine.scheduler import commit, leave, moved, schedule, settle
from tierd.engine.scoring import measure
from tierd.errors import ExecutorError
from tierd.slot import Slot, Step

_arrivals = count()


def enqueue(slot: Slot, *requests: Request) -> list[Sequence]:
    sequences = [
        Sequence(r, text_stream(slot.tokenizer, r.stop), list(r.prompt), rank=next(_arrivals))
        for r in requests
    ]
    slot.waiting.extend(sequences)
    return sequences


def begin(slot: Slot) -> Step | None:
    """Give the executor a step, if anybody has work."""
    step = schedule(slot)
    if step is not None:
        slot.steps.append(step)
        slot.executor.submit(step.batch)
    return step


def complete(slot: Slot, note: Callable[[Step, Result], None] | None = None) -> list[tuple[Sequence, Event]]:
    """Book the oldest step in flight. Whoever it fails has left. note: is shown what it has brought."""
    step = slot.steps[0]
    try:
        result = slot.executor.collect()
    except ExecutorError as error:
        settle(slot, step, failed=True)
        lost = [s for s in step.sequences if s in slot.running and s not in step.void]
        for sequence in lost:
            leave(slot, sequence)
        return [(sequence, FailedEvent(error)) for sequence in lost]
    settle(slot, step, failed=False)
    if note is not None:
        note(step, result)
    tokens = pick(step, result, counting(slot, step))
    pool(step, result, counting(slot, step))
    return commit(slot, step, tokens, score(step, result, tokens), measure(step, result))


def carry(slot: Slot) -> bool:
    """Move the next slice of rows that are asked for; return whether there were any."""
    if not slot.home.moves:
        return False
    move = slot.home.moves[0]
    if move.left:
        move.run(move.left.popleft(), slot.executor)
    if not move.left:
        slot.home.moves.popleft()
        move.finish(True)
        moved(slot, move.sequence)
    return True


def serve(slot: Slot, note: Callable[[Step, Result], None] | None = None) -> Iterator[tuple[Sequence, Event]]:
    """Serve whoever is there to the end, with as many steps in flight as may be, and rows moved behind them.

    note: see `complete`.
    """
    while True:
        while slot.has_room and begin(slot):
            pass
        carried = carry(slot)
        if slot.steps:
            yield from complete(slot, note)
        elif not carried:
            return


def run(slot: Slot, *requests: Request) -> list[Sequence]:
    """Serve requests, and whoever is there, to the end."""
    sequences = enqueue(slot, *requests)
    for _ in serve(slot):
        pass
    return sequences


def ended(events: Iterable[tuple[Sequence, Event]]) -> list[Sequence]:
    """Return whose end is told."""
    return [sequence for sequence, event in events if isinstance(event, TerminalEvent)]


def rows(step: Step | None) -> dict[str, int]:
    """Return how many rows each stream has in a step."""
    assert step is not None
    return {s.request.id: len(c.tokens) for s, c in zip(step.sequences, step.batch.chunks, strict=True)}


def greedy(prompt: Iterable[int], count: int) -> list[int]:
    """Return a prompt and its greedy continuation: in one go, without scheduler, pages or cache."""
    executor = NullExecutor(pages=1, page_positions=512, max_rows=512)
    tokens = list(prompt)
    for _ in range(count):
        batch = Batch((Chunk(tuple(tokens), 0, (0,), (len(tokens) - 1,)),))
        tokens.append(int(np.argmax(executor.run(batch)[0])))
    return tokens


class Faults:
    """Lets the next step fail when it is told to."""

    def __init__(self) -> None:
        self.next = False

    def __call__(self, batch: Batch) -> None:
        fails, self.next = self.next, False
        if fails:
            raise ExecutorError("a fault")
