"""That nothing recorded races: a barrier stands between any two dispatches that touch the same memory."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from backends.resident import touched
from backends.resident.conftest import WIDE, Opener, taken_for_gpu
from tierd.backends.resident.assembly import Dispatch, Shader
from tierd.backends.resident.grid import Grids, Live, Per
from tierd.backends.resident.memory import Shape
from tierd.backends.resident.program import Recording, Sequencer
from tierd.models import GGUFFile

SHAPE = Shape(regions=2, positions=512, max_rows=16, selected=4)
SIZES = {"heads": 2, "kv_heads": 1, "head_size": 40, "n_embd": 96, "ff": 160}
MODELS = {
    "llama": (tiny.write_llama, {"format": "Q4_1", **WIDE}),
    "llama of floats": (tiny.write_llama, {"format": "F32", "biases": True, **SIZES}),
    "gemma3": (tiny.write_gemma3, {"format": "Q4_1", **WIDE}),
    "gemma3 of floats": (tiny.write_gemma3, {"format": "F32", **SIZES}),
}


Things = list[set[int]]
Programs = list[tuple[list[Dispatch], touched.Live]]


class Log:
    """Stands for a recorder, its pipelines and a step's block; notes what it is told."""

    buffer = "block"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def get(self, shader: Shader) -> Shader:
        return shader

    def groups_at(self, grid: int) -> int:
        return grid

    def bind(self, pipeline: Shader) -> None:
        self.calls.append(("bind", pipeline))

    def push(self, constants: bytes) -> None:
        self.calls.append(("push", constants))

    def dispatch_indirect(self, buffer: str, offset: int) -> None:
        assert buffer == self.buffer
        self.calls.append(("dispatch", offset))

    def barrier(self) -> None:
        self.calls.append(("barrier", None))

    def finish(self) -> str:
        return "commands"


def sequenced(program: Sequence[Dispatch], grids: Grids) -> tuple[Log, Recording]:
    log = Log()
    sequencer = Sequencer(log, log, grids, log)
    sequencer.add(program)
    return log, sequencer.finish()


def phases_of(log: Log) -> list[int]:
    """Return how many barriers stand before each dispatch."""
    barriers, phases = 0, []
    for call, _ in log.calls:
        barriers += call == "barrier"
        if call == "dispatch":
            phases.append(barriers)
    return phases


def random_program(seed: int) -> list[Dispatch]:
    rng = np.random.default_rng(seed)

    def some(most: int) -> frozenset[Hashable]:
        return frozenset(map(int, rng.integers(0, 12, rng.integers(0, most + 1))))

    return [
        Dispatch(
            Shader(f"kernel {rng.integers(3)}"), bytes([n]), (int(rng.integers(1, 4)), 1, 1), some(3), some(2)
        )
        for n in range(40)
    ]


def conflict(one: Dispatch, other: Dispatch) -> bool:
    return bool(one.writes & (other.reads | other.writes) or one.reads & other.writes)


@pytest.mark.parametrize("seed", range(20))
def test_a_barrier_stands_between_any_two_that_conflict(seed: int) -> None:
    program = random_program(seed)
    log, recording = sequenced(program, Grids())
    phases = phases_of(log)
    pairs = [(i, j) for i, j in itertools.combinations(range(len(program)), 2) if phases[i] == phases[j]]
    assert not [(i, j) for i, j in pairs if conflict(program[i], program[j])]
    assert recording.barriers == phases[-1]
    assert recording.dispatches == len(phases) == len(program)
    assert 0 < recording.barriers < len(program) - 1


@pytest.mark.parametrize("seed", range(20))
def test_no_barrier_is_in_vain(seed: int) -> None:
    """What stands behind one conflicts with something between it and the one before."""
    program = random_program(seed)
    phases = phases_of(sequenced(program, Grids())[0])
    for j in range(1, len(program)):
        if phases[j] > phases[j - 1]:
            assert any(conflict(program[i], program[j]) for i in range(j) if phases[i] == phases[j] - 1)


def test_every_dispatch_has_its_pipeline_push_and_grid() -> None:
    program, grids = random_program(0), Grids()
    log, _ = sequenced(program, grids)
    found, bound, pushed = [], None, None
    for call, value in log.calls:
        match call:
            case "bind":
                bound = value
            case "push":
                pushed = value
            case "dispatch":
                found.append((bound, pushed, value))
    assert found == [(each.shader, each.push, grids.number(each.grid)) for each in program]
    assert len(grids) == 3


@pytest.fixture(params=MODELS)
def programs(request: pytest.FixtureRequest, tmp_path: Path, opened: Opener) -> Iterator[Programs]:
    """The programs of a model for steps of several sizes, with splits, and what is live in each."""
    write, sizes = MODELS[request.param]
    sizes_of_steps = [(1, 1, 0), (8, 4, 0), (16, 0, 0), (16, 4, 0), (0, 4, 0), (16, 4, 9), (16, 0, 16)]
    with (
        GGUFFile.open(write(tmp_path / "m.gguf", **sizes)) as file,
        taken_for_gpu(opened.backend.device, dot=True),
    ):
        executor = opened(file, shape=SHAPE)
        yield [
            (
                executor.dispatches(rows, scored, hidden),
                touched.Live(rows, scored + hidden, scored, SHAPE.regions),
            )
            for rows, scored, hidden in sizes_of_steps
        ]


def shared(things: Things, others: Things) -> int:
    """Return how many things, of either side, the two sides have in common."""
    common = [[not one.isdisjoint(other) for other in others] for one in things]
    return max(sum(map(any, common)), sum(map(any, zip(*common, strict=True))))


def test_what_dispatches_declare_covers_what_they_touch(programs: Programs) -> None:
    """Whatever two of them touch, one of them to write, they have as many names in common for."""
    for program, live in programs:
        things = [touched.of(dispatch, live) for dispatch in program]
        for i, j in itertools.combinations(range(len(program)), 2):
            (reads, writes), (later_reads, later_writes) = things[i], things[j]
            one, other = program[i], program[j]
            names = (one.shader.kernel, i, other.shader.kernel, j)
            assert shared(writes, later_reads) <= len(one.writes & other.reads), names
            assert shared(reads, later_writes) <= len(one.reads & other.writes), names
            assert shared(writes, later_writes) <= len(one.writes & other.writes), names


def test_a_barrier_stands_between_any_two_that_touch_the_same_bytes(programs: Programs) -> None:
    for program, live in programs:
        things = [touched.of(dispatch, live) for dispatch in program]
        phases = phases_of(sequenced(program, Grids())[0])
        found = 0
        for i, j in itertools.combinations(range(len(program)), 2):
            (reads, writes), (later_reads, later_writes) = things[i], things[j]
            if shared(writes, [*later_reads, *later_writes]) or shared(reads, later_writes):
                assert phases[i] < phases[j], (program[i].shader.kernel, i, program[j].shader.kernel, j)
                found += 1
        assert found >= len(program) - 1


def test_attention_shares_what_splits_leave(programs: Programs) -> None:
    """The programs above do have that memory, so that it is among what is looked at."""
    program, live = programs[0]
    attends = [each for each in program if each.shader.kernel == "attention"]
    assert all(each.grid[2] == Per(Live.SPLITS) for each in attends)
    first, second, *_ = (set().union(*touched.of(each, live)[1]) for each in attends)
    assert touched.scratch_of(attends[0], live) <= first & second
