"""Streams that give up their pages for others, and go on as if nothing had been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from engine import harness
from engine.drive import begin, carry, complete, enqueue, greedy, run
from engine.harness import NULL, Gate, Harness, model, running
from engine.null_slot import null_slot, request
from engine.scored import scoring
from engine.words import Word
from tierd.backends.host import HostBackend
from tierd.core import FailedEvent, FinishedEvent, Request, SamplingParams, Sequence, TextEvent, TokenLogprobs
from tierd.engine import queue
from tierd.engine.scheduler import leave
from tierd.kv.bank import Bank
from tierd.settings import EngineSettings, KVSettings, ModelSettings, QueueSettings, ServerSettings, Settings
from tierd.slot import Slot, open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

ROOM = 1 << 20
BANKS = {"no bank": None, "a full bank": 0, "a small bank": 120, "a bank": ROOM}


def tight(bank: int | None = None, *, pages: int = 9, streams: int = 4, depth: int = 1) -> Slot:
    """A slot with pages for about two of the streams of these tests. bank: bytes that it holds."""
    there = None if bank is None else Bank(bank)
    return null_slot(model("null", streams=streams), pages=pages, bank=there, depth=depth)


def talks(count: int, tokens: int = 26) -> list[Request]:
    return [request(f"r{i}", bytes([i]) * (2 + i), tokens) for i in range(count)]


def at_rest(slot: Slot) -> bool:
    pool, bank = slot.home.pool, slot.home.bank
    assert not slot.home.moves
    assert not slot.leaving
    assert slot.preempting is None
    assert bank is None or not any(entry.live for entry in bank.entries)
    return not pool.used and not pool.reserved and pool.free + pool.cached == pool.total


def serve_until_returning(slot: Slot) -> Sequence:
    """Go on until somebody has given up its pages; return who."""
    while not slot.returning:
        begin(slot)
        carry(slot)
        if slot.steps:
            complete(slot)
    return slot.returning[0]


@pytest.mark.parametrize("bank", BANKS.values(), ids=BANKS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_streams_say_the_same_where_pages_run_out(bank: int | None, depth: int) -> None:
    slot = tight(bank, depth=depth)
    sequences = run(slot, *talks(6))
    for sequence in sequences:
        assert sequence.tokens == greedy(sequence.request.prompt, 26)
    assert sum(sequence.preemptions for sequence in sequences) == slot.preemptions.total() > 1
    wanted = {None: {"dropped"}, 0: {"dropped"}, 120: {"banked", "dropped"}, ROOM: {"banked"}}[bank]
    assert set(slot.preemptions) == wanted
    assert at_rest(slot)


def test_the_last_in_the_order_goes_and_comes_back_first() -> None:
    slot = tight()
    enqueue(slot, *talks(4))
    for priority, sequence in zip((0, -1, 2, 1), slot.waiting, strict=True):
        sequence.rank += 100 * priority
    slot.waiting = type(slot.waiting)(sorted(slot.waiting, key=lambda sequence: sequence.rank))
    order = [sequence.request.id for sequence in slot.waiting]
    assert order == ["r1", "r0", "r3", "r2"]
    gone = serve_until_returning(slot)
    assert gone.request.id == [*order[: len(slot.running)], gone.request.id][-1]
    assert [sequence.request.id for sequence in slot.running] == order[: len(slot.running)]
    assert slot.first is gone
    run(slot)
    assert at_rest(slot)


def test_nobody_is_admitted_who_would_drive_others_out_at_once() -> None:
    slot = tight(pages=6)
    enqueue(slot, *talks(2, tokens=20), request("small", b"?", 2))
    begin(slot)
    assert len(slot.running) == 2
    # Of 6 pages they were granted 2 each, and each may want another: nothing is left for a third one.
    assert [sequence.request.id for sequence in slot.waiting] == ["small"]
    assert queue.ready(slot) == 0
    complete(slot)
    run(slot)
    assert at_rest(slot)


def test_rows_that_the_pages_still_have_are_not_brought_back() -> None:
    slot = tight(ROOM)
    first, *_ = sequences = enqueue(slot, *talks(3))
    gone = serve_until_returning(slot)
    assert gone.saved is not None
    for other in sequences:
        if other is not gone:
            leave(slot, other)
    begin(slot)
    assert gone in slot.running
    assert gone.saved is None
    assert not slot.home.moves
    assert gone.fed == len(gone.tokens) - 1
    complete(slot)
    run(slot)
    assert gone.tokens == greedy(gone.request.prompt, 26)
    assert first.preemptions == 0
    assert at_rest(slot)


@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_stream_may_leave_while_it_gives_up_its_pages(when: str) -> None:
    slot = tight(ROOM, depth=2)
    sequences = enqueue(slot, *talks(3))
    while slot.preempting is None:
        begin(slot)
        if not slot.has_room:
            complete(slot)
    gone = slot.preempting
    if when != "before":
        while slot.steps:
            complete(slot)
        begin(slot)
        assert slot.home.moves
    if when == "after":
        carry(slot)
        assert slot.returning
    leave(slot, gone)
    run(slot)
    for sequence in sequences:
        if sequence is not gone:
            assert sequence.tokens == greedy(sequence.request.prompt, 26)
    assert at_rest(slot)
    assert gone.preemptions == (when == "after")


def test_what_a_stream_had_itself_does_not_count_as_cached() -> None:
    slot = tight()
    run(slot, request("before", b"\x01" * 9, 1))
    long, short = enqueue(slot, request("long", b"\x02" * 9, 24), request("short", b"\x01" * 11, 14))
    run(slot)
    assert short.preemptions
    assert (long.cached, short.cached) == (0, 9)
    assert short.tokens == greedy(short.request.prompt, 14)


def test_those_that_wait_are_counted_behind_those_that_come_back() -> None:
    slot = tight()
    enqueue(slot, *talks(3))
    serve_until_returning(slot)
    enqueue(slot, request("waits", b"?", 2))
    assert queue.ready(slot) == 0
    limits = queue.QueueSettings(timeout_s=5)
    assert queue.overdue(slot, limits, 6.0) is slot.waiting[0]
    run(slot)


def test_preemptions_are_told() -> None:
    bank, gate = Bank(ROOM), Gate()
    with running(
        model("null", streams=4), pages=9, bank=bank, before_step=gate, engine={"bank": bank}
    ) as house:
        for asked in talks(3):
            house.engine.submit(asked)
        for _ in range(40):
            gate.let()
            gate.wait()
            if house.engine.snapshot.models["null"].preempted:
                break
        state = house.engine.snapshot.models["null"]
        assert (state.preempted, state.preemptions) == (1, {"banked": 1})
        sample = house.metrics.registry.get_sample_value
        assert sample("tierd_requests_preempted", {"model": "null"}) == 1
        gate.let(1000)
        for asked in talks(3):
            assert isinstance(house.mail.terminal(asked.id), FinishedEvent)
        house.snapshot_when(lambda snapshot: not snapshot.models["null"].running)
        count = house.engine.snapshot.models["null"].preemptions["banked"]
        assert sample("tierd_preemptions_total", {"model": "null", "rows": "banked"}) == count >= 1
        assert house.rests()


def test_who_could_be_admitted_is_once_others_have_gone() -> None:
    """Whatever pages these share, with each other, with those that stay, and with who waits."""
    seen = Counter[tuple[bool, bool]]()
    for seed in range(300):
        dice = Random(seed)
        slot = null_slot(model("null", streams=8), pages=dice.randint(8, 24))
        for name in range(dice.randint(2, 8)):
            prompt = dice.choice((b"", b"abcdefghijkl", b"zzzzzzzz")) + bytes(dice.choices(b"qr", k=5))
            enqueue(slot, request(f"r{name}", prompt, dice.randint(1, 16)))
            for _ in range(dice.randint(0, 9)):
                begin(slot)
                if slot.steps:
                    complete(slot)
        slot.waiting.clear()
        (waits,) = enqueue(slot, request("waits", b"abcdefghijkl" + bytes(dice.randint(1, 12)), 8))
        going = [sequence for sequence in slot.running if dice.random() < 0.5]
        now, told = slot.home.can_admit(waits), slot.home.could_admit(waits, going)  # type: ignore[attr-defined]
        for sequence in going:
            leave(slot, sequence)
        assert slot.home.can_admit(waits) == told
        seen[now, told] += 1
    assert min(seen[now, told] for now, told in ((True, True), (False, True), (False, False))) > 10


@pytest.mark.parametrize("what", ["drain", "unload"])
def test_those_that_come_back_are_waited_for(what: str) -> None:
    """A drain turns away who waits for its first place."""
    bank, gate = Bank(ROOM), Gate()
    with running(
        model("null", streams=4), pages=9, bank=bank, before_step=gate, engine={"bank": bank}
    ) as house:
        for asked in talks(3):
            house.engine.submit(asked)
        while not house.engine.snapshot.models["null"].preempted:
            gate.let()
            gate.wait()
        house.engine.submit(request("waits", b"?", 20))
        house.snapshot_when(lambda snapshot: snapshot.models["null"].waiting == 1)
        done = house.engine.drain() if what == "drain" else house.engine.unload("null")
        gate.let(1000)
        done.result(harness.PATIENCE)
        for asked in talks(3):
            end = house.mail.terminal(asked.id)
            assert isinstance(end, FinishedEvent)
            assert end.usage.completion_tokens == asked.max_tokens
        assert isinstance(house.mail.terminal("waits"), FailedEvent if what == "drain" else FinishedEvent)
        assert not bank.entries


@pytest.mark.parametrize("bank", BANKS.values(), ids=BANKS)
@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_fed_again_is_counted(bank: int | None, depth: int) -> None:
    """Each row that counts was fed for the first time, or again."""
    asked, there = talks(6), None if bank is None else Bank(bank)
    few = {"pages": 9, "bank": there, "depth": depth, "prefix_cache": False}
    with running(model("null", streams=4), engine={"bank": there}, **few) as house:
        for one in asked:
            house.engine.submit(one)
        ends = [house.mail.terminal(one.id) for one in asked]
        house.snapshot_when(lambda _: house.rests())
        sample = partial(house.metrics.registry.get_sample_value, labels={"model": "null"})
    assert all(isinstance(end, FinishedEvent) and not end.usage.cached_tokens for end in ends)
    prompts = sum(len(one.prompt) for one in asked)
    once = prompts + sum(one.max_tokens - 1 for one in asked)
    rows, discarded = sample("tierd_step_rows_sum"), sample("tierd_rows_discarded_total")
    again, fed = sample("tierd_kv_reprefilled_tokens_total"), sample("tierd_prompt_tokens_total")
    assert rows is not None
    assert discarded is not None
    assert again == rows - discarded - once
    assert (again > 0) is (bank != ROOM)
    assert fed is not None
    assert prompts <= fed <= prompts + again
    assert (fed > prompts) is (bank != ROOM)


# ---- Whatever it is that was asked for

PROMPT = bytes(range(60, 80))
KINDS = {
    "grammar": replace(request("k", PROMPT, 41, temperature=1, ignore_eos=False), grammar=Word(40)),
    "log-probabilities": replace(request("k", PROMPT, 40, temperature=1, seed=3), top_logprobs=2),
    "scored prompt": replace(scoring("k", PROMPT, 40), top_logprobs=0),
    "penalties": replace(request("k", PROMPT, 40), sampling=SamplingParams(frequency_penalty=1.5)),
}


def heard(house: Harness, *asked: Request, begin: Callable[[], None] = lambda: None) -> list[object]:
    """Submit requests, then `begin`; return all that each was told, but for how its text was cut."""
    for one in asked:
        house.engine.submit(one)
    begin()
    told: list[object] = []
    for one in asked:
        end = house.mail.terminal(one.id)
        assert isinstance(end, FinishedEvent), end
        texts = [event for event in house.mail.events(one.id) if isinstance(event, TextEvent)]
        scores = [score for text in texts for score in (*text.prompt, *text.logprobs)]
        told.append((house.mail.text(one.id), scores, end))
    return told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bank", [None, ROOM], ids=["dropped", "banked"])
@pytest.mark.parametrize(("chunk_rows", "pages"), [(1, 17), (16, 20)], ids=["its prompt", "its answer"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_stream_is_told_the_same_whatever_it_asks_for(
    kind: str, bank: int | None, chunk_rows: int, pages: int, depth: int
) -> None:
    """It gives up its pages in the middle of its prompt, or of its answer."""
    talk, asked = request("talk", b"hello", 60), replace(KINDS[kind], priority=1)
    with running(NULL, prefix_cache=False) as house:
        alone = heard(house, talk) + heard(house, asked)
    gate, there = Gate(), None if bank is None else Bank(bank)
    few = {"pages": pages, "chunk_rows": chunk_rows, "depth": depth, "bank": there, "before_step": gate}
    with running(NULL, engine={"bank": there}, **few) as house:
        assert heard(house, talk, asked, begin=lambda: gate.let(1000)) == alone
        assert house.rests()
        assert house.engine.snapshot.models["null"].preemptions.keys() == {"banked" if there else "dropped"}


# ---- On the host: the same ids as alone

CODECS = ("f16", "q8_0", "tq4")
CONTEXT = 512


def conversations(count: int) -> list[Request]:
    """Some begin alike; every other one draws at random."""
    opening = [1 + j * j % 200 for j in range(90)]
    return [
        request(
            f"r{i}",
            [*opening[: 0 if i % 3 else 90], *(1 + (7 * i + j * j) % 300 for j in range(20 + 7 * i))],
            120 + 30 * (i % 6),
            model="m",
            temperature=i % 2,
            seed=i,
        )
        for i in range(count)
    ]


def said(
    path: Path, asked: list[Request], *, codec: str, memory_mb: int, streams: int, bank_kib: int = 0
) -> tuple[list[list[TokenLogprobs]], Counter[str]]:
    """Serve requests all at once; return their ids, with what was told of each, and what was preempted."""
    settings = Settings(
        server=ServerSettings(reader_backlog=65536),  # nobody reads
        queue=QueueSettings(timeout_s=0),
        engine=EngineSettings(gap_ms=5),
        kv=KVSettings(memory_mb=memory_mb, prefix_cache=streams > 1),
    )
    backend, bank = HostBackend(1), Bank(bank_kib << 10)
    try:
        opener = partial(open_slot, settings=settings, site=HostSite(backend, bank=bank))
        served = ModelSettings(id="m", path=path, streams=streams, context=CONTEXT, kv_dtype=codec)
        with running(served, open_slot=opener, settings=settings, engine={"bank": bank}) as house:
            for one in asked:
                house.engine.submit(replace(one, top_logprobs=0))
            for one in asked:
                assert isinstance(house.mail.terminal(one.id), FinishedEvent)
            assert house.rests()
            slot = house.slots["m"]
            pool = slot.home.pool
            assert pool.free + pool.cached == pool.total
            assert not bank.entries
            events = [house.mail.events(one.id) for one in asked]
    finally:
        backend.close()
    told = [
        [each for event in one if isinstance(event, TextEvent) for each in event.logprobs] for one in events
    ]
    return told, slot.preemptions


@pytest.mark.parametrize("codec", CODECS)
def test_ids_are_those_alone_where_pages_run_out_under_eight_others(codec: str, tmp_path: Path) -> None:
    """Fifty-one conversations over the three codecs; pages for a few of nine streams, a bank for some."""
    kv_heads = {"f16": 2, "q8_0": 4, "tq4": 8}[codec]  # about fifteen pages a MiB
    path = write_llama(tmp_path / "tiny.gguf", heads=8, kv_heads=kv_heads, head_size=64, context=CONTEXT)
    asked = conversations(17)
    company, preemptions = said(path, asked, codec=codec, memory_mb=1, streams=9, bank_kib=400)
    assert preemptions["banked"] > 0
    alone, _ = said(path, asked, codec=codec, memory_mb=1, streams=1)
    assert company == alone
    assert [len(told) for told in alone] == [one.max_tokens for one in asked]
