"""How much of a prompt goes into a step, by what steps have taken; here these take what the tests say."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.device_slot import device_slot
from engine.drive import begin, complete, enqueue, rows, run
from engine.harness import model
from engine.null_slot import null_slot, request
from tierd.engine.pace import Allowance, Pace, Paces, generates, least_rows
from tierd.engine.scheduler import schedule
from tierd.slot import Slot

GAP = 0.06
LEAST, MOST = 8, 256
Seconds = Callable[[int, int], float]  # of a step: of prompts so many rows, from a position on


def host(start: int, count: int) -> float:
    """About what SmolLM2 takes on two cores, beside four streams."""
    return 0.004 + count * (0.0003 + 2e-7 * (start + count / 2))


def read(pace: Pace, seconds: Seconds, length: int, singles: int = 4) -> list[tuple[int, float]]:
    """Read a prompt beside streams; return the rows of its steps and what each took."""
    steps, start = [], 0
    while start < length:
        allowance = Allowance(MOST, LEAST, GAP - pace.single_seconds, pace)
        count = allowance.take(start, length - start)
        took = seconds(start, count)
        pace.note([*[(100, 1)] * singles, (start, count)], took)
        steps.append((count, took))
        start += count
    return steps


def generate(pace: Pace, seconds: Seconds, steps: int = 5) -> None:
    for _ in range(steps):
        pace.note([(100, 1)] * 4, seconds(0, 0))


def test_a_step_that_nothing_is_known_of_has_the_least_rows() -> None:
    pace = Pace()
    generate(pace, host)
    steps = read(pace, host, 6000)
    assert steps[0][0] == LEAST
    assert steps[1][0] > 4 * LEAST
    assert all(took <= 1.1 * GAP for _, took in steps)


def test_steps_are_nearly_as_long_as_they_may_be_wherever_a_prompt_is() -> None:
    pace = Pace()
    generate(pace, host)
    read(pace, host, 6000)
    steps = read(pace, host, 6000)[:-1]
    assert all(0.6 * GAP < took <= 1.1 * GAP for _, took in steps[3:])
    assert max(count for count, _ in steps) > 2 * steps[-1][0]


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_single_slow_steps_count_little(seed: int) -> None:
    draw = random.Random(seed)

    def noisy(start: int, count: int) -> float:
        return host(start, count) * draw.uniform(0.8, 1.2) * (10 if draw.random() < 0.05 else 1)

    pace, start, calm = Pace(), 0, []
    generate(pace, noisy)
    for count, _ in read(pace, noisy, 6000):
        calm.append(host(start, count))
        start += count
    assert max(calm) < 1.6 * GAP
    assert sum(calm) / len(calm) > 0.6 * GAP


def test_what_has_become_slower_or_faster_is_noticed() -> None:
    pace = Pace()
    read(pace, host, 2000)

    def slower(start: int, count: int) -> float:
        return 5 * host(start, count)

    took = [seconds for _, seconds in read(pace, slower, 1000)]
    assert min(took[:2]) > 2 * GAP
    assert max(took[2:]) < 1.3 * GAP
    generate(pace, host)
    took = [seconds for _, seconds in read(pace, host, 2000)]
    assert min(took[3:-1]) > 0.6 * GAP


@pytest.mark.parametrize("slow", [1, 3], ids=["the first step", "all steps"])
def test_slow_steps_without_prompts_are_forgotten_while_prompts_come(slow: int) -> None:
    """Where one prompt follows another no step is without any, to tell that it takes less by now."""
    pace = Pace()
    generate(pace, lambda *_: 2 * GAP, slow)
    took = [seconds for _, seconds in read(pace, host, 3000)]
    assert min(took[5:-1]) > 0.6 * GAP
    assert max(took) <= 1.2 * GAP
    assert pace.single_seconds < GAP / 2


def test_steps_without_streams_do_not_tell_what_these_take() -> None:
    pace = Pace()
    generate(pace, host)
    single = pace.single_seconds
    pace.note([(0, 8)], single / 2)
    pace.note([(8, 8)], single / 2)
    assert pace.single_seconds == single


def test_a_prompt_goes_on_however_long_steps_take() -> None:
    pace = Pace()
    generate(pace, lambda *_: 1.0)
    assert {count for count, _ in read(pace, lambda *_: 2.0, 160)} == {LEAST}


def test_prompts_share_what_there_is_in_order() -> None:
    pace = Pace()
    pace.note([(200, 100)], 0.1)
    allowance = Allowance(MOST, 2 * LEAST, 0.0601, pace)
    assert allowance.take(0, 20) == 20
    assert allowance.take(2480, 100) == 4
    assert allowance.take(2480, 100) == 0


def test_steps_without_streams_tell_what_rows_cost_at_most() -> None:
    pace = Pace()
    pace.note([(0, 200)], 0.1)
    assert pace.row_seconds(0) == pytest.approx(0.0005)
    assert pace.row_seconds(1024) == pytest.approx(0.0005 * 4)
    for _ in range(3):
        pace.note([(3900, 200)], 0.15)
    assert pace.row_seconds(1024) == pytest.approx(0.00075)
    assert pace.row_seconds(20_000) == pytest.approx(0.00075 * 5)


def test_the_few_rows_that_a_prompt_ends_with_tell_nothing() -> None:
    pace = Pace()
    pace.note([(0, LEAST - 1), (7, 1)], 0.1)
    assert pace == Pace()


def talking(slot: Slot, prompt: bytes = b"?" * 200) -> Slot:
    """Let a stream of a slot generate while a prompt waits."""
    enqueue(slot, request("talks", b"ab", 40))
    begin(slot)
    complete(slot)
    enqueue(slot, request("reads", prompt, 2))
    return slot


def slot(name: str = "null", weight: int = 1, **options: int) -> Slot:
    return null_slot(model(name, streams=4, weight=weight), pages=128, chunk_rows=MOST, **options)


def test_the_whole_step_is_for_prompts_while_nobody_generates() -> None:
    here, paces = slot(), Paces(GAP)
    (prompt,) = enqueue(here, request("reads", b"?" * 400, 2))
    assert paces.allowance(here, [here]) == Allowance(MOST)
    talker = talking(slot("other"), b"")
    assert generates(talker)
    assert paces.allowance(here, [here, talker]).least == LEAST
    talker.running[0].paused = True
    assert paces.allowance(here, [here, talker]) == Allowance(MOST)
    assert Paces(0).allowance(talking(slot()), []) == Allowance(MOST)
    assert not prompt.generated


def test_models_of_a_device_share_the_gap_by_weight() -> None:
    here, other, idle = talking(slot()), talking(slot("other", weight=2)), slot("idle")
    paces = Paces(GAP)
    assert paces.allowance(here, [here, idle]).seconds == pytest.approx(GAP)
    assert paces.allowance(here, [here, other, idle]).seconds == pytest.approx(GAP / 3)
    assert paces.allowance(other, [here, other, idle]).seconds == pytest.approx(GAP * 2 / 3)


def test_a_device_reads_its_whole_window() -> None:
    here = device_slot(model("null", streams=2))
    assert least_rows(here) == here.chunk_rows
    talking(here, b"?" * 20)
    assert Paces(GAP).allowance(here, [here]) == Allowance(here.chunk_rows)


def test_steps_hold_what_they_are_allowed_and_the_tokens_stay_the_same() -> None:
    asked = [request(f"r{i}", bytes(range(i, 90 + i)), 20) for i in range(3)]
    whole = [sequence.tokens for sequence in run(slot(), *asked)]
    cut, draw, paces = slot(), random.Random(3), Paces(GAP)
    sequences = enqueue(cut, *asked)
    counts = set()
    while (step := schedule(cut, paces.allowance(cut, [cut]))) is not None:
        counts.update(count for count in rows(step).values() if count > 1)
        cut.steps.append(step)
        cut.executor.submit(step.batch)
        paces.note(cut, step, draw.uniform(0.001, 0.2))
        complete(cut)
        enqueue(cut, *asked[3:])
    assert [sequence.tokens for sequence in sequences] == whole
    assert counts


def test_a_model_that_is_gone_is_forgotten() -> None:
    here, paces = talking(slot()), Paces(GAP)
    paces.note(here, begin(here), 0.05)  # type: ignore[arg-type]
    assert paces.allowance(here, [here]).pace != Pace()
    paces.forget(here)
    assert paces.allowance(here, [here]).pace == Pace()
