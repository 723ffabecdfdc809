from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.drive import begin, complete, ended, enqueue, greedy, rows, run
from engine.harness import NULL, model
from engine.null_slot import ByteTokenizer, null_slot, request
from tierd.core import FinishedEvent, FinishReason, Sequence, TextEvent, Usage
from tierd.engine.flights import Flight
from tierd.engine.pace import Allowance
from tierd.engine.scheduler import choose_rows, commit, leave, schedule, settle
from tierd.slot import Slot

PROMPTS = {f"r{i}": bytes(range(i, 3 * i + 1)) for i in range(8)}


def at_rest(slot: Slot) -> bool:
    pool = slot.home.pool
    return not slot.running and not slot.waiting and not pool.used and not pool.reserved


@pytest.mark.parametrize("chunk_rows", [1, 7, 64, 256])
@pytest.mark.parametrize("streams", [1, 3, 8])
def test_tokens_do_not_depend_on_chunks_or_company(chunk_rows: int, streams: int) -> None:
    slot = null_slot(model("null", streams=streams), chunk_rows=chunk_rows)
    sequences = run(slot, *(request(name, prompt, 11) for name, prompt in PROMPTS.items()))
    for sequence in sequences:
        assert sequence.tokens == greedy(sequence.request.prompt, 11)
    assert at_rest(slot)


def test_decoders_and_prompt_chunks_share_a_step() -> None:
    slot = null_slot(NULL, chunk_rows=5)
    enqueue(slot, request("a", b"abc"), request("b", b"0123456789"), request("c", b"xy"))
    assert rows(begin(slot)) == {"a": 3, "b": 2}
    complete(slot)
    assert rows(begin(slot)) == {"a": 1, "b": 5}
    complete(slot)
    step = begin(slot)
    assert rows(step) == {"a": 1, "b": 3, "c": 2}
    assert step is not None
    assert [chunk.logit_rows for chunk in step.batch.chunks] == [(0,), (2,), (1,)]
    assert [chunk.start for chunk in step.batch.chunks] == [4, 7, 0]
    complete(slot)
    assert rows(begin(slot)) == {"a": 1, "b": 1, "c": 1}


def test_prompts_are_fed_oldest_first_and_nobody_starves() -> None:
    """Four prompts of 20 tokens and 5 rows a step: each takes its four steps, whoever comes later.

    Whoever generates has a row in each of them.
    """
    slot = null_slot(model("null", streams=64), pages=256, chunk_rows=5)
    enqueue(slot, request("talks", b"x", 60))
    begin(slot)
    complete(slot)
    names = ["first", "second", "third", "fourth"]
    first_tokens: dict[str, int] = {}
    for i, name in enumerate(names):
        enqueue(slot, request(name, bytes([i] * 20), 60))
    for step in range(1, 17):
        taken = rows(begin(slot))
        assert taken["talks"] == 1
        assert sum(count for name, count in taken.items() if name not in first_tokens) - 1 == 5
        before = {s.request.id: s.generated for s in slot.running}
        complete(slot)
        for s in slot.running:
            if s.generated and not before[s.request.id]:
                first_tokens[s.request.id] = step
        enqueue(slot, request(f"later {step}", bytes([100 + step] * 20), 60))
    assert first_tokens == {"first": 4, "second": 8, "third": 12, "fourth": 16}


def test_a_paused_stream_keeps_its_pages_and_gets_no_rows() -> None:
    slot = null_slot(NULL, chunk_rows=16)
    paused, other = enqueue(slot, request("paused", b"ab", 12), request("other", b"cd", 3))
    begin(slot)
    complete(slot)
    paused.paused = True
    assert rows(begin(slot)) == {"other": 1}
    complete(slot)
    pages = list(paused.pages)
    run(slot)
    assert begin(slot) is None
    assert paused.pages == pages
    paused.paused = False
    run(slot)
    assert paused.tokens == greedy(b"ab", 12)
    assert other.tokens == greedy(b"cd", 3)
    assert at_rest(slot)


def test_a_part_of_a_prompt_asks_for_no_logits() -> None:
    slot = null_slot(NULL, chunk_rows=4)
    enqueue(slot, request("a", b"123456789"))
    wanted = []
    for _ in range(3):
        step = begin(slot)
        assert step is not None
        wanted.append(step.batch.chunks[0].logit_rows)
        assert bool(complete(slot)) == bool(wanted[-1])
    assert wanted == [(), (), (0,)]


def test_choosing_rows_changes_nothing() -> None:
    slot = null_slot(NULL)
    (a, b) = enqueue(slot, request("a", b"abc"), request("b", b"defg"))
    running = {a: Flight(), b: Flight()}
    for _ in range(2):
        assert choose_rows(running, Allowance(5), 256) == [(a, 3), (b, 2)]
    assert (a.fed, b.fed, slot.home.pool.used) == (0, 0, 0)


def test_first_come_first_served_as_pages_allow() -> None:
    slot = null_slot(NULL, pages=6)
    # 8 tokens and a page's worth more are three pages, one is for what may yet come; 3 + 2 - 1 are one
    enqueue(
        slot, request("big", b"8 tokens", 9), request("next", b"8 tokens", 9), request("small", b"abc", 2)
    )
    begin(slot)
    assert [s.request.id for s in slot.running] == ["big"]
    assert [s.request.id for s in slot.waiting] == ["next", "small"]
    assert (slot.home.pool.used, slot.home.pool.reserved) == (2, 1)
    ends: list[str] = []
    while slot.steps or begin(slot):
        ends += [sequence.request.id for sequence in ended(complete(slot))]
    assert ends == ["big", "small", "next"]
    assert at_rest(slot)


def test_the_last_page_is_enough() -> None:
    slot = null_slot(NULL, pages=2)
    (sequence,) = enqueue(slot, request("a", b"1234", 5))
    run(slot)
    assert sequence.generated == 5
    assert at_rest(slot)
    assert slot.home.pages_needed(request("b", b"1234", 6)) == 3


def test_no_more_streams_than_the_setting() -> None:
    slot = null_slot(model("null", streams=2))
    enqueue(slot, *(request(name, prompt) for name, prompt in PROMPTS.items()))
    begin(slot)
    assert len(slot.running) == 2
    assert len(slot.waiting) == 6


def test_pages_are_taken_as_they_fill() -> None:
    slot = null_slot(NULL)
    enqueue(slot, request("a", b"123", 10))
    used = []
    while begin(slot):
        used.append((slot.home.pool.used, slot.home.pool.reserved))
        complete(slot)
    assert used == [(1, 1)] * 2 + [(2, 0)] * 4 + [(3, 0)] * 4


@pytest.mark.parametrize("steps", [0, 1, 2, 4], ids=["queued", "first chunk", "second chunk", "generating"])
def test_a_stream_may_leave_between_steps(steps: int) -> None:
    slot = null_slot(NULL, chunk_rows=4)
    stays, leaves = enqueue(slot, request("stays", b"ab", 12), request("leaves", b"a long prompt"[:9], 12))
    for _ in range(steps):
        begin(slot)
        complete(slot)
    leave(slot, leaves)
    leave(slot, leaves)
    run(slot)
    assert stays.tokens == greedy(b"ab", 12)
    assert at_rest(slot)


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["first chunk", "last chunk", "generating"])
def test_pages_of_a_stream_that_left_in_flight_are_freed_after_the_step(steps: int) -> None:
    slot = null_slot(NULL, chunk_rows=7)
    stays, leaves = enqueue(slot, request("stays", b"ab", 12), request("leaves", b"123456789", 12))
    for _ in range(steps):
        begin(slot)
        complete(slot)
    begin(slot)
    used, length = slot.home.pool.used, len(leaves.tokens)
    leave(slot, leaves)
    assert slot.home.pool.used == used
    assert leaves.pages
    events = complete(slot)
    assert leaves not in [sequence for sequence, _ in events]
    assert len(leaves.tokens) == length
    assert not leaves.pages
    run(slot)
    assert stays.tokens == greedy(b"ab", 12)
    assert at_rest(slot)


def finish(tokens: list[int], **options: object) -> tuple[str, FinishReason, Usage]:
    """Commit the given tokens one by one; return the text, the reason and the usage at the end."""
    text, end = finished(tokens, **options)
    return text, end.reason, end.usage


def finished(tokens: list[int], **options: object) -> tuple[str, FinishedEvent]:
    """Commit the given tokens one by one; return the text and the end."""
    slot = null_slot(NULL)
    enqueue(slot, request("a", b"?", **options))  # type: ignore[arg-type]
    text = ""
    for token in tokens:
        step = schedule(slot)
        assert step is not None
        slot.steps.append(step)
        settle(slot, step, failed=False)
        for _, event in commit(slot, step, [token]):
            if isinstance(event, TextEvent):
                text += event.text
            else:
                assert isinstance(event, FinishedEvent)
                assert at_rest(slot)
                return text, event
    raise AssertionError("the stream did not end")


END = ByteTokenizer.eos_id


def test_an_end_token_stops_counts_and_is_not_text() -> None:
    assert finish([*b"Hi", END], ignore_eos=False) == ("Hi", FinishReason.STOP, Usage(1, 3))


def test_an_end_token_as_the_last_one_allowed_is_a_stop() -> None:
    assert finish([*b"Hi", END], ignore_eos=False, max_tokens=3)[1] is FinishReason.STOP


def test_with_ignore_eos_an_end_token_is_one_of_many() -> None:
    assert finish([END, *b"Hi"], max_tokens=3) == ("Hi", FinishReason.LENGTH, Usage(1, 3))


def test_max_tokens_cuts_and_half_a_character_is_not_lost() -> None:
    assert finish([0x41, 0xC3], max_tokens=2) == (
        "A\N{REPLACEMENT CHARACTER}",
        FinishReason.LENGTH,
        Usage(1, 2),
    )


def test_a_stop_string_ends_the_text_before_it() -> None:
    tokens = [*b"one, two. Never"]
    assert finish(tokens, max_tokens=99, stop=("o.",)) == ("one, tw", FinishReason.STOP, Usage(1, 9))


def test_the_end_says_which_stop_string_it_was() -> None:
    assert finished([*b"one, two"], max_tokens=99, stop=("x", "o"))[1].stop == "o"
    assert finished([*b"one", END], max_tokens=99, stop=("one,",), ignore_eos=False)[1].stop is None
    assert finished([*b"one"], max_tokens=3, stop=("one,",))[1].stop is None


def test_what_began_like_a_stop_string_is_text_at_an_end_token() -> None:
    assert finish([*b"twx", END], stop=("wxyz",), ignore_eos=False)[0] == "twx"


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, leave and are served in any order; the books balance and the tokens are right."""

    def __init__(self) -> None:
        super().__init__()
        self.slot = null_slot(model("null", streams=3), pages=9, chunk_rows=5, prefix_cache=False)
        self.there: list[Sequence] = []
        self.left_in_flight: list[Sequence] = []
        self.count = 0

    @rule(prompt=st.binary(min_size=1, max_size=14), max_tokens=st.integers(1, 12))
    def submit(self, prompt: bytes, max_tokens: int) -> None:
        self.count += 1
        self.there += enqueue(self.slot, request(f"r{self.count}", prompt, max_tokens))

    @precondition(lambda self: not self.slot.steps)
    @rule()
    def begin(self) -> None:
        assert bool(begin(self.slot)) == bool(self.there)

    @precondition(lambda self: self.slot.steps)
    @rule()
    def complete(self) -> None:
        for sequence in ended(complete(self.slot)):
            self.there.remove(sequence)
            assert sequence.tokens == greedy(sequence.request.prompt, sequence.request.max_tokens)
        self.left_in_flight.clear()

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.there))
        self.there.remove(sequence)
        leave(self.slot, sequence)
        if sequence.pages:
            self.left_in_flight.append(sequence)

    @invariant()
    def the_books_balance(self) -> None:
        slot, pool = self.slot, self.slot.home.pool
        assert [*slot.running, *slot.returning, *slot.waiting] == self.there
        held = [page for s in [*self.there, *self.left_in_flight] for page in s.pages]
        assert len(held) == len(set(held)) == pool.used == pool.total - pool.free
        promised = sum(slot.home.granted(s) - len(s.pages) for s in [*slot.running, *self.left_in_flight])
        assert pool.reserved == promised


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True
)
