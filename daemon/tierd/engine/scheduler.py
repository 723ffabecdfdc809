"""Whose rows go into a slot's next step, and what the tokens that come out of it mean.

Streams stand in the order of their ranks (`engine.queue`), those of one priority in that of their coming: a
request is admitted once its home has the pages for it, and one that waits is not overtaken by any behind it.
What is kept of its prompt is not fed again. Every step holds one row for each stream that generates and as
many rows of prompts as are allowed, in that order: one pass over the weights for all.

An executor that draws tokens is given a step before the last one is done. Its rows then refer to tokens that
nobody has seen yet. A row that turns out to have been fed something else than what became of its stream is
void: it counts for nothing, and what it has written is written again or never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered

from tierd.backends.protocol import SCORED_ROWS
from tierd.core import (
    Batch,
    Chunk,
    Draw,
    Event,
    FinishedEvent,
    FinishReason,
    Following,
    Sequence,
    TextEvent,
    TokenLogprobs,
    Usage,
)
from tierd.engine.flights import Flight, counting, flights
from tierd.engine.pace import Allowance
from tierd.engine.pooling import vector_of, wanted_states
from tierd.engine.preemption import give_way, provide
from tierd.engine.sampler import awaits_text, draw
from tierd.engine.scoring import most_rows, spare_rows, target_draw, wanted_targets
from tierd.slot import Slot, Step, line_up


def schedule(slot: Slot, allowance: Allowance | None = None) -> Step | None:
    """Admit who fits, choose rows, take the pages they fill. None when nobody can have rows.

    allowance: of prompts; None: all that a step holds. The executor must have room for another step:
    `slot.has_room`.
    """
    without = provide(slot)
    while not without:
        admit_all(slot)
        if not give_way(slot):
            break
        without = provide(slot)
    there = {
        sequence: flight
        for sequence, flight in flights(slot).items()
        if sequence not in without and (sequence.following is None or _may_draw(slot, sequence.following))
    }
    guests = (slot.guests.popleft(),) if slot.guests else ()
    allowance = allowance or Allowance(slot.chunk_rows)
    allowance.rows -= sum(len(guest.chunk.tokens) for guest in guests)
    whole = not slot.executor.prefill_continues
    rows = choose_rows(there, allowance, slot.home.most, whole=whole, spare=spare_rows(slot))
    if not rows and not guests:
        return None
    sequences = tuple(sequence for sequence, _ in rows)
    chunks = tuple(_chunk(slot, sequence, there[sequence], count) for sequence, count in rows)
    draws: tuple[Draw, ...] = ()
    if slot.executor.depth > 1:
        draws = tuple(
            each
            for sequence, chunk in zip(sequences, chunks, strict=True)
            for each in _draws(sequence, chunk, slot.executor.vocabulary)
        )
    following = tuple(
        sequence.following
        for sequence, chunk in zip(sequences, chunks, strict=True)
        if sequence.following is not None and chunk.draws
    )
    return Step(Batch((*chunks, *(guest.chunk for guest in guests)), draws), sequences, guests, following)


def admit_all(slot: Slot) -> None:
    """Admit who fits."""
    while can_admit(slot):
        admit(slot)


def can_admit(slot: Slot) -> bool:
    """Whether who is next can run now. Pure."""
    first = slot.first
    return (
        first is not None
        and slot.serves
        and slot.occupied - len(slot.returning) < slot.settings.streams
        and len(first.tokens) <= slot.longest
        and slot.home.can_admit(first)
    )


def admit(slot: Slot) -> None:
    """Let who is next run, on what is kept of its tokens."""
    sequence = slot.line.popleft()
    slot.home.admit(sequence)
    line_up(slot.running, sequence)


def choose_rows(
    running: Mapping[Sequence, Flight],
    allowance: Allowance,
    most: int,
    *,
    whole: bool = False,
    spare: int = SCORED_ROWS,
) -> list[tuple[Sequence, int]]:
    """Return (sequence, number of rows) for the next step, in the order of `running`. Spends the allowance.

    Who generates gets a row in every step, whoever prefills. Prompts share the allowance in order, so each of
    them is done after the rows of those before it and its own, whatever stands behind. So do streams
    whose rows are lost, with all their tokens. most: positions that a stream can have. whole: prompts are fed
    in one piece, when there is room for it. spare: rows of prompts whose logits may be wanted, beside one of
    each stream.
    """
    rows: list[tuple[Sequence, int]] = []
    for sequence, flight in running.items():
        if sequence.paused or sequence.moves or sequence.follows is not None:
            continue
        there = sequence.fed + flight.rows
        if flight.tokens:
            if there < most and _can_look_ahead(sequence, flight):
                rows.append((sequence, 1))
            continue
        left = min(len(sequence.tokens), most) - there
        if left == 1 and sequence.generated:
            rows.append((sequence, 1))
        elif left and not (whole and left > allowance.rows):
            fits = left if whole else min(left, most_rows(sequence, there, spare))
            if count := allowance.take(there, fits):
                rows.append((sequence, count))
                spare -= max(0, _logits(sequence, there, there + count) - 1)
    return rows


def _may_draw(slot: Slot, following: Following) -> bool:
    """Whether a stream that has a grammar may have a row now; where it may not, it will be announced.

    Where the host draws, it may before it is known what may come next, unless that was too late.
    """
    return (_draws_later(slot) and not following.late) or following.known or following.announce()


def _draws_later(slot: Slot) -> bool:
    """Whether it need not be known what a row's stream may go on with before the row is computed."""
    return slot.executor.depth == 1 and slot.executor.rewinds


def _can_look_ahead(sequence: Sequence, flight: Flight) -> bool:
    """Whether the token in flight may be fed unseen: it is not the last, and the next draw needs no text."""
    return (
        flight.latest is not None
        and sequence.generated + flight.tokens < sequence.request.max_tokens
        and not awaits_text(sequence)
    )


def commit(
    slot: Slot,
    step: Step,
    tokens: Ordered[int | None],
    scores: Ordered[TokenLogprobs | None] = (),
    of_prompts: Ordered[tuple[TokenLogprobs, ...]] = (),
) -> list[tuple[Sequence, Event]]:
    """Book a finished step; return the events of its sequences, in order.

    tokens: the next token of each sequence of the step, None where its prompt is not fed whole yet, its row
    is void, or its last row is to be fed again. scores: their log-probabilities, None where nobody asks; ()
    when nobody does at all. of_prompts: those of each one's prompt; () when nobody asks.
    What a sequence that has left meanwhile would have got is thrown away.
    """
    events: list[tuple[Sequence, Event]] = []
    scores = scores or (None,) * len(tokens)
    counts = counting(slot, step)
    of_prompts = of_prompts or ((),) * len(tokens)
    for sequence, chunk, counted, token, score, of_prompt in zip(
        step.sequences, step.chunks, counts, tokens, scores, of_prompts, strict=True
    ):
        if not counted:
            continue
        sequence.fed += len(chunk.tokens) - (token is None and chunk.draws)
        slot.home.advanced(sequence)
        if of_prompt:
            sequence.scored = chunk.start + chunk.logit_rows[len(chunk.targets) - 1] + 1
            events.append((sequence, TextEvent("", prompt=of_prompt)))
        if token is None:
            if not sequence.request.max_tokens and sequence.fed == len(sequence.tokens):
                leave(slot, sequence)
                events.append((sequence, _fed(sequence)))
            continue
        sequence.tokens.append(token)
        if token != sequence.foreseen:
            _void(slot, sequence)
        text, reason = _advance(slot, sequence, token)
        told = _tell(sequence, score) if score is not None else ()
        if text or told:
            events.append((sequence, TextEvent(text, told, sequence.generated)))
        if reason is not None:
            leave(slot, sequence)
            stop = sequence.text.stopped_by
            end = () if stop is not None else tuple(sequence.logprobs)
            events.append((sequence, FinishedEvent(reason, usage(sequence), stop=stop, logprobs=end)))
        elif sequence.following is not None:
            sequence.following.advance(token, aside=not _draws_later(slot))
    return events


def _fed(sequence: Sequence) -> FinishedEvent:
    """Return the end of a stream that wanted nothing but to have its prompt fed."""
    if sequence.request.embedding is None:
        return FinishedEvent(FinishReason.LENGTH, usage(sequence))
    return FinishedEvent(FinishReason.STOP, usage(sequence), vector_of(sequence))


def leave(slot: Slot, sequence: Sequence) -> None:
    """Take a sequence out of the slot, wherever it is; nothing happens when it is not there.

    Its pages are given back at once, or by `settle` or `moved` when the executor is at work on them.
    """
    if sequence in slot.running:
        slot.running.remove(sequence)
        slot.leaving.add(sequence)
        if slot.preempting is sequence:
            slot.preempting = None
        _let_go(slot, sequence)
        return
    for queue in (slot.waiting, slot.returning, slot.exiles):
        if sequence in queue:
            queue.remove(sequence)
            give_up_saved(sequence)


def give_up_saved(sequence: Sequence) -> None:
    """Give up the rows that were saved of a sequence, if any were."""
    if sequence.saved is not None:
        sequence.saved.close()
        sequence.saved = None


def outgrown(slot: Slot) -> list[Sequence]:
    """Return the streams that have filled their pages, and that no step or move works for. Pure."""
    busy = {sequence for step in slot.steps for sequence in step.sequences}
    return [
        sequence
        for sequence in slot.running
        if slot.home.most <= sequence.fed < len(sequence.tokens)
        and not sequence.moves
        and sequence not in busy
    ]


def settle(slot: Slot, step: Step, *, failed: bool) -> None:
    """Note that a step of the slot is over; give back the pages of those who left while it ran.

    failed: the K/V of the step's rows is not valid. That of rows that were fed unseen tokens is not kept.
    """
    slot.steps.remove(step)
    if slot.lost:  # all that its streams had here is gone, and they with it
        return
    for sequence, chunk in zip(step.sequences, step.chunks, strict=True):
        if sequence in slot.running:
            continue
        if sequence in slot.leaving:
            if not failed and chunk.tokens[0] >= 0 and sequence.fed == chunk.start:
                sequence.fed += len(chunk.tokens)
            _let_go(slot, sequence)
        elif not any(sequence in later.sequences for later in slot.steps):
            slot.home.settled(sequence)


def moved(slot: Slot, sequence: Sequence | None) -> None:
    """Note that a move of a sequence's rows is over; give back its pages if it has left meanwhile."""
    if sequence in slot.leaving:
        _let_go(slot, sequence)


def usage(sequence: Sequence) -> Usage:
    """Count a sequence's tokens; an end-of-generation token counts, as with llama.cpp."""
    return Usage(
        prompt_tokens=len(sequence.request.prompt),
        completion_tokens=sequence.generated,
        cached_tokens=sequence.cached,
    )


def _tell(sequence: Sequence, score: TokenLogprobs) -> tuple[TokenLogprobs, ...]:
    """Take in the log-probabilities of a new token; return those of tokens that have begun to show.

    A token that ends the stream, or whose text a stop string cuts off, never shows: the former goes with
    the end.
    """
    sequence.logprobs.append(score)
    count = sequence.text.shown - sequence.told
    told, sequence.logprobs = tuple(sequence.logprobs[:count]), sequence.logprobs[count:]
    sequence.told += count
    return told


def _advance(slot: Slot, sequence: Sequence, token: int) -> tuple[str, FinishReason | None]:
    """Return the text that became certain with a new token, and why the stream ends, if it does."""
    request = sequence.request
    if token in slot.tokenizer.end_ids and (not request.ignore_eos or sequence.following is not None):
        return sequence.text.finish(), FinishReason.STOP
    text = sequence.text.push(token)
    if sequence.text.stopped_by is not None:
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
    slot.home.cover(sequence, end)
    targets = wanted_targets(sequence, start, end)
    draws = _generates(sequence, end)
    last = min(end, len(sequence.request.prompt) - 1) - start  # rows up to here may be scored
    return Chunk(
        tokens=(-1 - flight.latest,) if flight.latest is not None else tuple(sequence.tokens[start:end]),
        start=start,
        pages=tuple(sequence.pages),
        logit_rows=(*range(last - len(targets), last), *((count - 1,) if draws else ())),
        hidden_rows=wanted_states(sequence, start, end),
        targets=targets,
    )


def _generates(sequence: Sequence, end: int) -> bool:
    """Whether a token comes of the last row of a chunk that ends before a position."""
    return end >= len(sequence.tokens) and sequence.request.max_tokens > 0


def _logits(sequence: Sequence, start: int, end: int) -> int:
    """Return how many rows of a chunk have their logits wanted."""
    return len(wanted_targets(sequence, start, end)) + _generates(sequence, end)


def _draws(sequence: Sequence, chunk: Chunk, vocabulary: int) -> list[Draw]:
    """Say how to pick a token for each of a chunk's rows of logits."""
    top = sequence.request.prompt_logprobs
    draws = [target_draw(token, top, vocabulary) for token in chunk.targets]
    if chunk.draws:
        draws.append(draw(sequence, chunk.end, vocabulary))
    return draws


def _let_go(slot: Slot, sequence: Sequence) -> None:
    """Give back the pages of a sequence that has left, unless its rows move or a step adds more to keep.

    Rows that were fed unseen are not. While a step writes such, behind what is kept, others may look at the
    pages but not take them.
    """
    if sequence.moves:
        return
    chunks = [
        chunk
        for step in slot.steps
        for other, chunk in zip(step.sequences, step.chunks, strict=True)
        if other is sequence
    ]
    if any(chunk.tokens[0] >= 0 for chunk in chunks):
        return
    slot.leaving.remove(sequence)
    slot.home.let_go(sequence, written=bool(chunks))
    give_up_saved(sequence)
