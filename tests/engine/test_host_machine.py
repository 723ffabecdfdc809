"""The engine over models on the CPU with few pages and a small bank, whatever happens in any order.

Every request ends once, with the text that it has alone, however often it had to give up its pages. When all
have ended nobody holds anything.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from engine.harness import model
from engine.null_slot import PAGE_POSITIONS, null_slot
from engine.serving_machine import (
    A_FAULT,
    CALLS,
    CHUNK_ROWS,
    CONTEXT,
    MANY,
    OFTEN,
    RARELY,
    TALKS,
    Calls,
    ServingMachine,
    play,
)
from tierd.errors import ExecutorError
from tierd.settings import EngineSettings, QueueSettings, ServerSettings, Settings

FULL = CONTEXT // PAGE_POSITIONS  # pages of one stream that is as long as may be


class HostMachine(ServingMachine):
    """Two models on one CPU, which their steps share."""

    seen: ClassVar[Counter[str]] = Counter()
    models = "aab"

    @initialize(
        pages=st.integers(FULL, 2 * FULL),
        streams=st.integers(2, 6),
        depth=st.sampled_from((1, 1, 2)),
        bank=st.sampled_from((0, 40, 100, 1000)),
        spills=st.booleans(),
        keeps=st.sampled_from(OFTEN),
        ageing=st.sampled_from((0.0, 1.0, 60.0)),
        stops=st.sampled_from(RARELY),
        talks=TALKS,
    )
    def begin(
        self,
        pages: int,
        streams: int,
        depth: int,
        bank: int,
        spills: bool,
        keeps: bool,
        ageing: float,
        stops: bool,
        talks: list[tuple[int, bytes, int]],
    ) -> None:
        there = Settings(
            engine=EngineSettings(gap_ms=1),
            queue=QueueSettings(capacity=MANY, timeout_s=0, ageing_s=ageing),
            server=ServerSettings(reader_backlog=4, reader_timeout_s=10**6),
        )
        self.open(there, bank=bank, spills=spills, stops=stops)
        for id, count, most in (("a", pages, streams), ("b", FULL, 2)):
            slot = null_slot(
                model(id, streams=most),
                device="cpu",
                pages=count,
                context=CONTEXT,
                chunk_rows=CHUNK_ROWS,
                prefix_cache=keeps,
                depth=depth,
                bank=self.bank,
                executor=lambda before_step, **options: self.executor(**options),
            )
            self.slots.append(slot)
            self.loop.put(slot)
        self.ask_first(talks)

    @precondition(lambda self: not self.calm)
    @rule(call=st.sampled_from(("step", "in", "out", "out", "behind")), calls=CALLS)
    def disturb(self, call: str, calls: Calls) -> None:  # type: ignore[override]
        """Have the next call fail, and nothing else."""
        self.board.armed[call] = ExecutorError(A_FAULT)
        self.failures |= call == "step"
        self.do(*calls)


USUAL = {"whole", "paused", "spilled", "preempted, banked", "preempted, dropped"}


@pytest.mark.parametrize("rounds", [3, pytest.param(300, marks=pytest.mark.long)], ids=["short", "long"])
def test_every_stream_ends_with_its_text_though_pages_run_out(rounds: int) -> None:
    play(HostMachine, rounds)
    assert set(+HostMachine.seen) >= USUAL, HostMachine.seen
    print(HostMachine.seen)
    assert HostMachine.seen["turns"] > 400 * rounds, HostMachine.seen
