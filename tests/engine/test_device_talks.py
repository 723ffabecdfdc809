"""Conversations on a device's regions: whatever becomes of their rows, all logits are the same, bit for bit.

Streams are compared with what comes of feeding the same tokens to the same executor from the first one on, in
a region of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

import row_moves
from engine import drive
from engine.harness import model
from engine.null_slot import request
from row_moves import Rows
from tierd.backends.host import ThreadPool
from tierd.backends.protocol import Result
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.image import default_directory
from tierd.backends.resident.memory import Shape
from tierd.backends.vkapi import Device
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.core import Batch, Chunk, Sequence
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.settings import LimitsSettings
from tierd.slot import Slot, Step
from tierd.tier.device_home import DeviceHome
from tiny import write_llama

REGIONS, POSITIONS, CHUNK_ROWS, STREAMS = 3, 128, 21, 3
VOCABULARY = 300
ANSWER = 5
EVERYTHING = 1 << 24


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    """One that the validation layer watches; that it found nothing is checked last."""
    device = Device.open(
        allow_software=True, validate="sync", pipeline_cache=default_directory().with_name("pipelines")
    )
    yield device
    device.close()
    assert device.messages == []


class OneStep:
    """An executor as one that is given a step at a time, and leaves it to others to draw tokens."""

    depth = 1

    def __init__(self, executor: ResidentExecutor) -> None:
        self.executor = executor

    def __getattr__(self, name: str) -> object:
        return getattr(self.executor, name)


@dataclass(frozen=True)
class Served:
    """What came of a request. logits: of its tokens, shape (tokens, vocabulary); None where nobody saw them.

    rows: of K/V of all tokens but the last, in each region where such are parked.
    """

    sequence: Sequence
    logits: npt.NDArray[np.float32] | None
    rows: list[Rows]

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens


@dataclass
class Talks:
    """A model on the device. Its last region is for what is expected."""

    executor: ResidentExecutor
    plan: Plan
    tokenizer: Tokenizer

    def slot(self, *, steps: int = 1, regions: int = REGIONS, bank: int = EVERYTHING) -> Slot:
        """Return a slot whose regions hold junk. steps: how many may be in flight, 1 or 2."""
        for region in range(REGIONS):
            junk = row_moves.junk(self.executor, POSITIONS, region)
            row_moves.write(self.executor, [region], junk, 0, POSITIONS)
        gone = Gone()
        home = DeviceHome(
            self.executor if steps == 2 else OneStep(self.executor),  # type: ignore[arg-type]
            model="m",
            origin="device",
            bank=Bank(bank, on_drop=gone.dropped),
            gone=gone,
            regions=regions,
        )
        return Slot(
            settings=model("m", streams=STREAMS),
            limits=LimitsSettings(),
            plan=self.plan,
            tokenizer=self.tokenizer,
            renderer=None,
            home=home,
            context=POSITIONS,
            chunk_rows=CHUNK_ROWS,
        )

    def serve(self, slot: Slot, *prompts: list[int]) -> list[Served]:
        """Serve prompts side by side, and who is there, to their ends."""
        logits: dict[Sequence, list[npt.NDArray[np.float32]]] = {}

        def note(step: Step, result: Result) -> None:
            wanted = [s for s, chunk in zip(step.sequences, step.chunks, strict=True) if chunk.logit_rows]
            for row, sequence in enumerate(wanted):
                if result.drawn(row) is None:
                    logits.setdefault(sequence, []).append(result.logits(row).copy())

        asked = [request(f"r{n}", prompt, ANSWER, model="m") for n, prompt in enumerate(prompts)]
        sequences = drive.enqueue(slot, *asked)
        for _ in drive.serve(slot, note):
            pass
        return [
            Served(
                sequence,
                np.array(logits[sequence]) if sequence in logits else None,
                self.rows(slot, sequence),
            )
            for sequence in sequences
        ]

    def rows(self, slot: Slot, sequence: Sequence) -> list[Rows]:
        """Return what lies in the regions where such a stream was parked."""
        regions = slot.home.regions  # type: ignore[attr-defined]
        tokens = sequence.tokens[:-1]
        there = [regions.region_of(claim) for claim in regions.claims() if regions.tokens_of(claim) == tokens]
        return [row_moves.read(self.executor, [region], 0, len(tokens)) for region in there]

    def check(self, served: Served, cached: int) -> None:
        """Check that what came is right to the last bit, and how much of it did not have to be fed."""
        prompt = list(served.sequence.request.prompt)
        tokens, logits = self.expected(prompt, served.sequence.request.max_tokens)
        assert served.tokens == tokens
        if served.logits is not None:
            np.testing.assert_array_equal(served.logits.view(np.uint32), logits.view(np.uint32))
        expected = row_moves.read(self.executor, [REGIONS], 0, len(tokens) - 1)
        assert served.rows
        for rows in served.rows:
            row_moves.same(rows, expected)
        assert served.sequence.cached == cached

    def expected(self, prompt: list[int], answer: int) -> tuple[list[int], npt.NDArray[np.float32]]:
        """Return the tokens of a request, and the logits of those of its answer."""
        tokens, rows, fed = list(prompt), [], 0
        while len(rows) < answer:
            part = tokens[fed : fed + CHUNK_ROWS]
            (row,) = self.executor.run(Batch((Chunk(part, fed, (REGIONS,), (len(part) - 1,)),)))
            fed += len(part)
            if fed == len(tokens):
                rows.append(row)
                tokens.append(int(row.argmax()))
        return tokens, np.array(rows)


@pytest.fixture(scope="module", params=["f16", "q8_0", "tq4"])
def talks(
    request: pytest.FixtureRequest, device: Device, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Talks]:
    path = write_llama(tmp_path_factory.mktemp("talks") / "tiny.gguf", head_size=32, ff=96)
    shape = Shape(regions=REGIONS + 1, positions=POSITIONS, max_rows=CHUNK_ROWS + STREAMS, selected=STREAMS)
    with GGUFFile.open(path) as file, closing(ThreadPool(1)) as pool:
        plan = build_plan(file)
        backend = ResidentBackend(device, pool, images=path.with_suffix(".images"))
        executor = backend.compile(plan, file, codec=KV_CODECS[request.param], shape=shape)
        tokenizer = build_tokenizer(file)
    yield Talks(executor, plan, tokenizer)
    executor.close()


@pytest.fixture(params=[1, 2])
def steps(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def prompt(seed: int, length: int) -> list[int]:
    return Random(seed).choices(range(VOCABULARY), k=length)


def test_a_talk_goes_on_in_the_region_where_it_was_parked(talks: Talks, steps: int) -> None:
    slot = talks.slot(steps=steps)
    asked, known = prompt(1, 37), 0
    for question in (11, 1, 30, 2):
        (served,) = talks.serve(slot, asked)
        talks.check(served, cached=known)
        asked, known = [*served.tokens, *prompt(question, question)], len(served.tokens) - 1
    assert slot.home.room.cached == 1


def test_a_parked_talk_is_forked_and_goes_on_itself(talks: Talks, steps: int) -> None:
    slot = talks.slot(steps=steps)
    (first,) = talks.serve(slot, prompt(1, 61))
    for shared in (45, 32, 1):
        (fork,) = talks.serve(slot, [*first.tokens[:shared], *prompt(2, 9)])
        talks.check(fork, cached=shared)
    (again,) = talks.serve(slot, [*first.tokens, 7])
    talks.check(again, cached=len(first.tokens) - 1)


def test_streams_of_one_prompt_wait_for_its_rows_and_fork_them(talks: Talks, steps: int) -> None:
    asked = prompt(3, 50)
    streams = talks.serve(talks.slot(steps=steps), asked, [*asked, 5, 6], asked)
    assert streams[0].tokens == streams[2].tokens
    for served, cached in zip(streams, (0, 49, 49), strict=True):
        talks.check(served, cached=cached)


def test_a_live_stream_is_forked(talks: Talks, steps: int) -> None:
    slot = talks.slot(steps=steps)
    (one,) = drive.enqueue(slot, request("one", prompt(4, 40), 12, model="m"))
    served = drive.serve(slot)
    while one.generated < 4:
        next(served)
    (fork,) = talks.serve(slot, [*one.tokens[:42], 9])
    talks.check(fork, cached=42)
    talks.check(Served(one, None, talks.rows(slot, one)), cached=0)


@pytest.mark.parametrize("regions", [1, 2])
def test_rows_come_back_from_the_bank_as_they_went(talks: Talks, steps: int, regions: int) -> None:
    """Into whatever region; what lies in other regions stays as it is."""
    slot = talks.slot(steps=steps, regions=regions)
    others = {
        region: row_moves.read(talks.executor, [region], 0, POSITIONS) for region in range(regions, REGIONS)
    }
    asked = [prompt(n, 33 + 7 * n) for n in range(3)]
    known = [0] * 3
    for turn in range(2):
        for n in range(3):
            (served,) = talks.serve(slot, asked[n])
            talks.check(served, cached=known[n])
            asked[n], known[n] = [*served.tokens, *prompt(turn, 3)], len(served.tokens) - 1
    for region, rows in others.items():
        row_moves.same(row_moves.read(talks.executor, [region], 0, POSITIONS), rows)


@pytest.mark.parametrize("turns", [20, pytest.param(200, marks=pytest.mark.long)])
def test_more_talks_than_regions_in_any_order(talks: Talks, turns: int) -> None:
    """Every text is right; tokens are fed again only as far as neither region nor bank had room for them."""
    slot = talks.slot(steps=2, bank=100 * sum(talks.executor.row_bytes))
    chance = Random(6)
    asked = [prompt(n, 20) for n in range(7)]
    seen: list[list[int]] = []
    refed = 0
    for turn in range(turns):
        n = chance.randrange(len(asked))
        (served,) = talks.serve(slot, asked[n])
        known = max((shared(asked[n][:-1], each) for each in seen), default=0)
        talks.check(served, cached=known - served.sequence.refed)
        refed += served.sequence.refed
        seen.append(served.tokens[:-1])
        asked[n] = [*served.tokens, *prompt(turn, 1 + turn % 9)]
        if len(asked[n]) > POSITIONS - ANSWER:
            asked[n] = [*prompt(n, 20), *prompt(turn, 3)]
    assert refed > 0
    assert slot.home.bank.dropped > 0  # type: ignore[attr-defined]


def shared(a: list[int], b: list[int]) -> int:
    """Return how many leading tokens are the same."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
