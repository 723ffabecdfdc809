"""The engine over devices that fail, few regions, a small bank and a slow CPU, whatever happens in any order.

Every request ends once, with the text that it has alone. When all have ended nobody holds anything.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from engine.device_slot import device_slot
from engine.harness import model
from engine.manual import Board, BoardExecutor
from engine.serving_machine import (
    CHUNK_ROWS,
    CONTEXT,
    MANY,
    OFTEN,
    POSITIONS,
    RARELY,
    TALKS,
    ServingMachine,
    fallback_of,
    play,
)
from tierd.core import PassReason
from tierd.settings import QueueSettings, ServerSettings, Settings


class DeviceMachine(ServingMachine):
    """Two models on one board."""

    seen: ClassVar[Counter[str]] = Counter()
    models = "aab"

    @initialize(
        regions=st.integers(1, 3),
        streams=st.integers(1, 4),
        bank=st.sampled_from((0, 40, 100, 1000)),
        spills=st.booleans(),
        keeps=st.sampled_from(OFTEN),
        scratch=st.booleans(),
        pages=st.sampled_from((24, 30, 256)),
        tries=st.sampled_from((0, 1, 3)),
        cpu=st.sampled_from(OFTEN),
        stops=st.sampled_from(RARELY),
        talks=TALKS,
    )
    def begin(
        self,
        regions: int,
        streams: int,
        bank: int,
        spills: bool,
        keeps: bool,
        scratch: bool,
        pages: int,
        tries: int,
        cpu: bool,
        stops: bool,
        talks: list[tuple[int, bytes, int]],
    ) -> None:
        readers = ServerSettings(reader_backlog=4, reader_timeout_s=10**6)
        there = Settings(queue=QueueSettings(capacity=MANY, timeout_s=0), server=readers)
        self.open(there, bank=bank, spills=spills, stops=stops)
        self.homeless = not cpu
        for id, most, count in (("a", regions, streams), ("b", 1, 2)):
            slot = device_slot(
                model(id, streams=count),
                regions=most,
                positions=POSITIONS,
                context=CONTEXT,
                bank=self.bank,
                gone=self.gone,
                keeps=keeps,
                scratch=scratch,
                chunk_rows=CHUNK_ROWS,
                executor=self.executor,
                cpu_step=self.cpu_step,
            )
            fallback = fallback_of(slot)
            fallback.tries, fallback.pages = tries, pages
            fallback.refusal = "" if cpu else "not there"
            self.slots.append(slot)
            self.loop.put(slot)
        self.ask_first(talks)

    def executor(self, **options: object) -> BoardExecutor:
        if self.board.abandoned:
            self.board = Board()
        return super().executor(**options)


USUAL = {
    *("whole", "lost", "stranded", "followed", "paused", "banked", "spilled"),
    *(PassReason.DEVICE_LOST, PassReason.UNHOMED, PassReason.PAGED, PassReason.CAP, PassReason.PINNED_OFF),
}
SELDOM = {"returned", "fetched", PassReason.BUSY, PassReason.GAP}


@pytest.mark.parametrize(
    ("rounds", "wanted"),
    [(5, USUAL), pytest.param(300, USUAL | SELDOM, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_every_stream_ends_with_its_text_and_leaves_nothing(rounds: int, wanted: set[str]) -> None:
    play(DeviceMachine, rounds)
    assert set(+DeviceMachine.seen) >= wanted, DeviceMachine.seen
    print(DeviceMachine.seen)
    assert DeviceMachine.seen["turns"] > 400 * rounds, DeviceMachine.seen
