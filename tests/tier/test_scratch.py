from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tierd.core import PassReason
from tierd.tier.scratch import Scratch

POSITIONS = 16


@pytest.fixture
def scratch() -> Scratch:
    return Scratch(POSITIONS)


def test_a_prompt_runs_chunk_by_chunk(scratch: Scratch) -> None:
    for start, stop in [(0, 4), (4, 5), (5, POSITIONS)]:
        assert scratch.refusal("a", start, stop) is None
        scratch.fed("a", start, stop)
        assert (scratch.holder, scratch.rows) == ("a", stop)
    scratch.leave("a")
    assert (scratch.holder, scratch.rows) == (None, 0)


def test_cap(scratch: Scratch) -> None:
    scratch.fed("a", 0, 8)
    assert scratch.refusal("a", 8, POSITIONS) is None
    assert scratch.refusal("a", 8, POSITIONS + 1) is PassReason.CAP
    assert scratch.refusal("a", 8, POSITIONS + 1, pinned_off=True) is PassReason.CAP


def test_pinned_off(scratch: Scratch) -> None:
    assert scratch.refusal("a", 0, 4, pinned_off=True) is PassReason.PINNED_OFF
    scratch.fed("a", 0, 4)
    assert scratch.refusal("a", 4, 8, pinned_off=True) is PassReason.PINNED_OFF
    assert scratch.refusal("a", 4, 8) is None


def test_busy_until_the_other_prompt_is_over(scratch: Scratch) -> None:
    scratch.fed("a", 0, 4)
    assert scratch.refusal("b", 0, 4) is PassReason.BUSY
    assert scratch.refusal("b", 4, 8) is PassReason.BUSY
    scratch.leave("b")
    assert scratch.refusal("b", 0, 4) is PassReason.BUSY
    scratch.leave("a")
    assert scratch.refusal("b", 0, 4) is None


def test_superseded_once_it_has_fallen_behind(scratch: Scratch) -> None:
    scratch.fed("a", 0, 4)
    scratch.passed("a", 4)
    assert scratch.refusal("b", 0, 4) is None
    assert scratch.refusal("a", 4, 8) is None  # the region is still its own
    scratch.fed("b", 0, 4)
    assert scratch.refusal("a", 8, 12) is PassReason.SUPERSEDED
    assert scratch.refusal("a", 0, 4) is PassReason.BUSY
    scratch.leave("b")
    assert scratch.refusal("a", 8, 12) is PassReason.SUPERSEDED
    scratch.fed("a", 0, 4)
    assert scratch.refusal("a", 8, 12) is PassReason.GAP
    scratch.leave("a")
    assert scratch.refusal("a", 8, 12) is PassReason.GAP


def test_a_chunk_that_went_elsewhere_is_caught_up_with(scratch: Scratch) -> None:
    scratch.fed("a", 0, 4)
    scratch.passed("a", 4)
    scratch.fed("a", 4, 8)
    assert scratch.refusal("b", 0, 4) is PassReason.BUSY


def test_continuation(scratch: Scratch) -> None:
    assert scratch.refusal("a", 0, 4, prefill_continues=False) is None
    scratch.fed("a", 0, 4)
    assert scratch.refusal("a", 4, 8, prefill_continues=False) is PassReason.CONTINUATION
    assert scratch.refusal("a", 0, 8, prefill_continues=False) is None


def test_gap(scratch: Scratch) -> None:
    assert scratch.refusal("a", 4, 8) is PassReason.GAP  # its beginning came out of the prefix cache
    scratch.fed("a", 0, 4)
    scratch.passed("a", 4)
    assert scratch.refusal("a", 8, 12) is PassReason.GAP


def test_rewind(scratch: Scratch) -> None:
    scratch.fed("a", 0, 8)
    assert scratch.refusal("a", 6, 8, rewinds=False) is PassReason.REWIND
    assert scratch.refusal("a", 0, 8, rewinds=False) is None  # it begins anew
    assert scratch.refusal("a", 6, 8) is None
    scratch.fed("a", 6, 8)
    assert scratch.rows == 8
    scratch.fed("a", 2, 4)
    assert scratch.rows == 4


def test_positions_that_are_fed_again_elsewhere_do_not_count(scratch: Scratch) -> None:
    scratch.fed("a", 0, 8)
    scratch.passed("a", 6)
    assert scratch.rows == 6
    assert scratch.refusal("a", 8, 10) is PassReason.GAP


def test_what_others_do_elsewhere_is_of_no_account(scratch: Scratch) -> None:
    scratch.fed("a", 0, 8)
    scratch.passed("b", 0)
    assert scratch.rows == 8
    assert scratch.refusal("b", 0, 4) is PassReason.BUSY


@pytest.mark.parametrize(
    ("session", "start", "stop", "words"),
    [
        ("b", 0, 4, PassReason.BUSY.words),
        ("a", 5, 8, PassReason.GAP.words),
        ("a", 4, POSITIONS + 1, PassReason.CAP.words),
    ],
)
def test_what_is_refused_is_not_fed(
    scratch: Scratch, session: str, start: int, stop: int, words: str
) -> None:
    scratch.fed("a", 0, 4)
    with pytest.raises(ValueError, match=words):
        scratch.fed(session, start, stop)
    assert (scratch.holder, scratch.rows) == ("a", 4)


class ScratchMachine(RuleBasedStateMachine):
    """Prompts run in the region when that is allowed, else on the CPU. A row is told by when it was fed."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = Scratch(POSITIONS)
        self.region: list[int] = []  # rows as the device has them
        self.prompts: dict[int, list[int]] = {}  # rows as they should be
        self.written = 0

    @rule(
        session=st.integers(0, 3),
        back=st.integers(0, 3),
        count=st.integers(1, 5),
        pinned_off=st.booleans(),
        prefill_continues=st.booleans(),
        rewinds=st.booleans(),
    )
    def feed(self, session: int, back: int, count: int, **facts: bool) -> None:
        rows = self.prompts.setdefault(session, [])
        start = max(0, len(rows) - back)
        stop = start + count
        chunk = [*range(self.written, self.written + count)]
        self.written += count
        reason = self.scratch.refusal(session, start, stop, **facts)
        if reason is None:
            assert stop <= POSITIONS
            assert not facts["pinned_off"]
            if start:
                assert self.region[:start] == rows[:start]
                assert facts["prefill_continues"]
                assert facts["rewinds"] or start == len(self.region)
            self.scratch.fed(session, start, stop)
            self.region[start:] = chunk
        else:
            self.scratch.passed(session, start)
        rows[start:] = chunk

    @rule(session=st.integers(0, 3))
    def end(self, session: int) -> None:
        self.prompts.pop(session, None)
        self.scratch.leave(session)

    @rule(session=st.integers(0, 3), start=st.integers(0, POSITIONS))
    def ask(self, session: int, start: int) -> None:
        before = vars(self.scratch).copy()
        reason = self.scratch.refusal(session, start, start + 1)
        assert vars(self.scratch) == before
        holder = self.scratch.holder
        complete = holder is not None and self.prompts[holder] == self.region
        if reason is PassReason.BUSY:
            assert session != holder
            assert complete
        if reason is None and holder not in (None, session):
            assert not complete

    @invariant()
    def its_rows_are_the_holders(self) -> None:
        if self.scratch.holder is None:
            assert self.scratch.rows == 0
        else:
            rows = self.prompts[self.scratch.holder]
            assert self.region[: self.scratch.rows] == rows[: self.scratch.rows]


TestScratchMachine = ScratchMachine.TestCase
TestScratchMachine.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True
)
