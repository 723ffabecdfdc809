"""Whose rows go into a slot's next step, and what the tokens that come out of it mean.

First come, first served: a request is admitted once all the pages it may ever need are reserved, so
a running stream never runs dry, and one that waits is not overtaken. What the prefix cache holds of
its prompt is not fed again: whole pages are shared, so they need no reserve, and of a page that is
partly equal the rows are copied. Every step holds one row for each stream that generates and up to
`chunk_rows` rows of prompts, oldest stream first: one pass over the weights for all of them.

An executor that draws tokens is given a step before the last one is done. Its rows then refer to tokens that
nobody has seen yet. A row that turns out to have been fed something else than what became of its stream is
void: it counts for nothing, and what it has written is written again or never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered

from tierd.core import (
    Batch,
    Chunk,
    Draw,
    Event,
    FinishedEvent,
    FinishReason,
    Sequence,
    TextEvent,
    TokenLogprobs,
    Usage,
)
from tierd.engine.flights import Flight, counting, flights
from tierd.engine.sampler import awaits_text, draw
from tierd.slot import Slot, Step


def schedule(slot: Slot) -> Step | None:
    """Admit who fits, choose rows, take the pages they fill. None when nobody has work.

    The executor must have room for another step: `slot.has_room`.
    """
    while can_admit(slot):
        admit(slot)
    there = flights(slot)
    rows = choose_rows(there, slot.chunk_rows)
    if not rows:
        return None
    sequences = tuple(sequence for sequence, _ in rows)
    chunks = tuple(_chunk(slot, sequence, there[sequence], count) for sequence, count in rows)
    draws: tuple[Draw, ...] = ()
    if slot.executor.depth > 1:
        draws = tuple(
            draw(sequence, chunk.start + len(chunk.tokens), slot.executor.vocabulary)
            for sequence, chunk in zip(sequences, chunks, strict=True)
            if chunk.logit_rows
        )
    return Step(Batch(chunks, draws), sequences)


def can_admit(slot: Slot) -> bool:
    """Whether the request that has waited longest can run now. Pure."""
    if not slot.waiting or len(slot.running) >= slot.settings.streams:
        return False
    request, pool = slot.waiting[0].request, slot.pool
    needed = slot.pages_needed(request)
    if pool.can_reserve(needed):
        return True
    # A shared page is not reserved; one that no stream uses yet is lost to what can be reserved, too.
    shared = slot.prefixes.match(request.prompt).pages
    return pool.can_reserve(needed - sum(pool.references(page) > 0 for page in shared))


def admit(slot: Slot) -> None:
    """Let the request that has waited longest run, on what is cached and what it reserves."""
    sequence = slot.waiting.popleft()
    match = slot.prefixes.match(sequence.request.prompt)
    for page in match.pages:
        slot.pool.retain(page)
    slot.pool.reserve(slot.pages_needed(sequence.request) - len(match.pages))
    sequence.pages.extend(match.pages)
    if match.source is not None:
        slot.pool.touch(match.source)
        page = _take(slot)
        # The source itself, when nothing else was left to take: then its rows are where they should be.
        if page != match.source:
            slot.executor.copy_rows(match.source, page, match.positions % slot.executor.page_positions)
        sequence.pages.append(page)
    sequence.fed = sequence.cached = match.positions
    slot.running.append(sequence)


def choose_rows(running: Mapping[Sequence, Flight], chunk_rows: int) -> list[tuple[Sequence, int]]:
    """Return (sequence, number of rows) for the next step, in the order of `running`. Pure.

    Who generates gets a row in every step, whoever prefills. Prompts share `chunk_rows` oldest first, so
    each of them is done after the rows of those before it and its own, whatever comes later.
    """
    rows: list[tuple[Sequence, int]] = []
    for sequence, flight in running.items():
        if sequence.paused:
            continue
        if flight.tokens:
            if _can_look_ahead(sequence, flight):
                rows.append((sequence, 1))
        elif sequence.generated:
            rows.append((sequence, 1))
        elif chunk_rows:
            count = min(len(sequence.tokens) - sequence.fed - flight.rows, chunk_rows)
            chunk_rows -= count
            rows.append((sequence, count))
    return rows


def _can_look_ahead(sequence: Sequence, flight: Flight) -> bool:
    """Whether the token in flight may be fed unseen: it is not the last, and the next draw needs no text."""
    return (
        flight.latest is not None
        and sequence.generated + flight.tokens < sequence.request.max_tokens
        and not awaits_text(sequence)
    )


def commit(
    slot: Slot, step: Step, tokens: Ordered[int | None], scores: Ordered[TokenLogprobs | None] = ()
) -> list[tuple[Sequence, Event]]:
    """Book a finished step; return the events of its sequences, in order.

    tokens: the next token of each sequence of the step, None where its prompt is not fed whole yet or its row
    is void. scores: their log-probabilities, None where nobody asks; () when nobody does at all.
    What a sequence that has left meanwhile would have got is thrown away.
    """
    events: list[tuple[Sequence, Event]] = []
    scores = scores or (None,) * len(tokens)
    counts = counting(slot, step)
    for sequence, chunk, counted, token, score in zip(
        step.sequences, step.batch.chunks, counts, tokens, scores, strict=True
    ):
        if not counted:
            continue
        sequence.fed += len(chunk.tokens)
        if token is None:
            continue
        sequence.tokens.append(token)
        if token != sequence.foreseen:
            _void(slot, sequence)
        text, reason = _advance(slot, sequence, token)
        told = _tell(sequence, score) if score is not None else ()
        if text or told:
            events.append((sequence, TextEvent(text, told)))
        if reason is not None:
            leave(slot, sequence)
            events.append((sequence, FinishedEvent(reason, usage(sequence))))
    return events


def leave(slot: Slot, sequence: Sequence) -> None:
    """Take a sequence out of the slot, wherever it is; nothing happens when it is not there.

    Its pages are given back at once, or by `settle` when the executor is at work on them.
    """
    if sequence in slot.running:
        slot.running.remove(sequence)
        _let_go(slot, sequence)
    elif sequence in slot.waiting:
        slot.waiting.remove(sequence)


def settle(slot: Slot, step: Step, *, failed: bool) -> None:
    """Note that a step of the slot is over; give back the pages of those who left while it ran.

    failed: the K/V of the step's rows is not valid. That of rows that were fed unseen tokens is not kept.
    """
    slot.steps.remove(step)
    for sequence, chunk in zip(step.sequences, step.batch.chunks, strict=True):
        if sequence in slot.running:
            continue
        if sequence.pages:
            if not failed and chunk.tokens[0] >= 0 and sequence.fed == chunk.start:
                sequence.fed += len(chunk.tokens)
            _let_go(slot, sequence)
        elif not any(sequence in later.sequences for later in slot.steps):
            for page in sequence.held:
                slot.pool.release(page)
            sequence.held.clear()


def usage(sequence: Sequence) -> Usage:
    """Count a sequence's tokens; an end-of-generation token counts, as with llama.cpp."""
    return Usage(
        prompt_tokens=len(sequence.request.prompt),
        completion_tokens=sequence.generated,
        cached_tokens=sequence.cached,
    )


def _tell(sequence: Sequence, score: TokenLogprobs) -> tuple[TokenLogprobs, ...]:
    """Take in the log-probabilities of a new token; return those of tokens that have begun to show.

    A token that ends the stream, or whose text a stop string cuts off, never shows.
    """
    sequence.logprobs.append(score)
    count = sequence.text.shown - sequence.told
    told, sequence.logprobs = tuple(sequence.logprobs[:count]), sequence.logprobs[count:]
    sequence.told += count
    return told


def _advance(slot: Slot, sequence: Sequence, token: int) -> tuple[str, FinishReason | None]:
    """Return the text that became certain with a new token, and why the stream ends, if it does."""
    request = sequence.request
    if token in slot.tokenizer.end_ids and not request.ignore_eos:
        return sequence.text.finish(), FinishReason.STOP
    text = sequence.text.push(token)
    if sequence.text.stopped:
        return text, FinishReason.STOP
    if sequence.generated == request.max_tokens:
        return text + sequence.text.finish(), FinishReason.LENGTH
    return text, None


def _void(slot: Slot, sequence: Sequence) -> None:
    """Note that a sequence's rows in flight were fed something else than the token that it got."""
    for step in slot.steps:
        if sequence in step.sequences:
            step.void.add(sequence)


def _chunk(slot: Slot, sequence: Sequence, flight: Flight, count: int) -> Chunk:
    start = sequence.fed + flight.rows
    end = start + count
    while len(sequence.pages) * slot.executor.page_positions < end:
        sequence.pages.append(_take(slot))
    return Chunk(
        tokens=(-1 - flight.latest,) if flight.latest is not None else tuple(sequence.tokens[start:end]),
        start=start,
        pages=tuple(sequence.pages),
        logit_rows=(count - 1,) if end >= len(sequence.tokens) else (),
    )


def _take(slot: Slot) -> int:
    """Take a promised page; one that is cached makes room when none is free."""
    if not slot.pool.free:
        slot.prefixes.evict()
    return slot.pool.take()


def _let_go(slot: Slot, sequence: Sequence) -> None:
    """Give back the pages of a sequence that has left, unless a step in flight adds rows that are kept.

    Rows that were fed unseen are not. While a step writes such, behind what is kept, others may look at the
    pages but not take them.
    """
    chunks = [
        chunk
        for step in slot.steps
        for other, chunk in zip(step.sequences, step.batch.chunks, strict=True)
        if other is sequence
    ]
    if any(chunk.tokens[0] >= 0 for chunk in chunks):
        return
    if chunks:
        sequence.held.extend(sequence.pages)
        for page in sequence.held:
            slot.pool.retain(page)
    slot.pool.unreserve(slot.pages_needed(sequence.request) - len(sequence.pages))
    slot.prefixes.donate(sequence.tokens[: sequence.fed], sequence.pages)
    sequence.pages.clear()
