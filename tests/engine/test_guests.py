"""Prompts of streams on the CPU, computed in their model's scratch region on the device, or why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from engine.device_drive import MODEL, ended, fed, passes
from engine.device_slot import device_slot
from engine.embedded import embed, expected
from engine.harness import Gate, Harness, model, running
from engine.null_slot import request
from tierd.core import Pooling
from tierd.errors import DeviceLostError

A, B, C = b"a" * 480, b"b" * 24, b"c" * 24


@contextmanager
def played(*, positions: int = 512, **facts: bool) -> Iterator[tuple[Harness, Gate, Gate]]:
    """Run a model with chunks of 16 rows; return its engine, and the gates of device and CPU."""
    device, cpu = Gate(), Gate()
    slot = partial(
        device_slot,
        regions=1,
        positions=positions,
        scratch=True,
        before_step=device,
        cpu_step=cpu,
        context=512,
        **facts,
    )
    with running(model(MODEL, streams=3), open_slot=slot) as harness:
        try:
            yield harness, device, cpu
        finally:
            device.let(1000)
            cpu.let(1000)


def begin(harness: Harness, device: Gate, *prompts: tuple[str, bytes], tokens: int = 8) -> None:
    """Have "a" in the region, in the midst of its prompt, and the others handed to the CPU."""
    harness.engine.submit(request("a", A, tokens))
    device.wait()
    for name, prompt in prompts:
        harness.engine.submit(request(name, prompt, 8))
    harness.snapshot_when(
        lambda snapshot: all(
            any(session.request == name and session.reason for session in snapshot.models[MODEL].sessions)
            for name, _ in prompts
        )
    )


def advance(harness: Harness, device: Gate, id: str, positions: int) -> None:
    """Let the device take steps until so many positions of a stream are fed."""
    for _ in range(30):
        device.let()
        device.wait()
        if fed(harness, id, positions, patience=0.02):
            return
    raise AssertionError(f"{id} is not fed: {harness.engine.snapshot}")


def test_prompts_are_computed_on_the_device_and_go_on_from_pages_of_the_host() -> None:
    with played() as (harness, device, cpu):
        begin(harness, device, ("b", B))
        advance(harness, device, "b", 23)
        cpu.let(8)
        ended(harness, "b", B)
        assert passes(harness) == {"unhomed": 8}
        device.let(1000)
        ended(harness, "a", A)


def test_rows_that_the_device_computed_are_not_shared_with_streams_of_the_cpu() -> None:
    with played() as (harness, device, cpu):
        begin(harness, device, ("b", B))
        cpu.let(1000)
        advance(harness, device, "b", 23)
        ended(harness, "b", B)
        assert harness.slots[MODEL].understudy.home.room.cached == 0


def test_a_prompt_whose_first_rows_the_host_has_is_not_continued_on_the_device() -> None:
    with played() as (harness, device, cpu):
        cpu.let(1000)
        harness.engine.submit(request("a", b"a", 100))
        advance(harness, device, "a", 2)
        harness.engine.submit(request("b", B, 8))  # while "a" generates: all on the CPU
        ended(harness, "b", B)
        harness.engine.cancel("a")
        device.let(2)
        harness.snapshot_when(lambda snapshot: not snapshot.models[MODEL].running)
        harness.engine.submit(request("c", A, 8))
        harness.snapshot_when(lambda snapshot: snapshot.models[MODEL].pages_used == 1)
        before = passes(harness)
        harness.engine.submit(request("again", B + b"more", 8))
        end = ended(harness, "again", B + b"more")
        assert end.usage.cached_tokens == len(B)
        assert passes(harness) == {**before, "unhomed": before["unhomed"] + 7, "gap": 1}


def test_the_scratch_region_is_another_streams() -> None:
    with played() as (harness, device, cpu):
        begin(harness, device, ("b", B), ("c", C))
        cpu.let(1000)
        advance(harness, device, "b", 8)
        ended(harness, "c", C)
        assert passes(harness)["busy"] == 2
        device.let(1000)
        ended(harness, "a", A)
        ended(harness, "b", B)


def test_streams_of_the_device_come_first() -> None:
    with played() as (harness, device, cpu):
        harness.engine.submit(request("a", b"a", 60))
        advance(harness, device, "a", 2)
        harness.engine.submit(request("b", B, 8))
        cpu.let(1000)
        ended(harness, "b", B)
        assert passes(harness) == {"pinned_off": 2, "unhomed": 7}


@pytest.mark.parametrize(
    ("facts", "counted"),
    [
        ({}, {"cap": 3 + 7}),
        ({"prefill_continues": False}, {"continuation": 3, "cap": 3 + 7}),
    ],
)
def test_a_prompt_longer_than_the_region(facts: dict[str, bool], counted: dict[str, int]) -> None:
    prompt = b"0123456789" * 10
    with played(positions=64, **facts) as (harness, device, cpu):
        device.let(1000)
        cpu.let(1000)
        harness.engine.submit(request("b", prompt, 8))
        ended(harness, "b", prompt)
        assert passes(harness) == counted


def test_rows_that_the_cpu_has_computed_are_a_gap() -> None:
    prompt = b"b" * 400
    with played() as (harness, device, cpu):
        begin(harness, device, ("b", prompt), tokens=30)
        for _ in range(55):  # until "a" generates, and the CPU has been given a chunk
            device.let()
            device.wait()
            if fed(harness, "b", 400, patience=0.02) or "pinned_off" in passes(harness):
                break
        harness.engine.cancel("a")
        device.let(1000)
        cpu.let(1000)
        ended(harness, "b", prompt)
        counted = passes(harness)
        assert (counted.pop("pinned_off"), counted.pop("paged")) == (1, 7)
        assert set(counted) == {"gap"}


@pytest.mark.parametrize("leaves", [False, True])
def test_a_device_lost_with_a_guest(leaves: bool) -> None:
    faults = iter([None, None, DeviceLostError("lost")])
    device, cpu = Gate(), Gate()

    def step(batch: object) -> None:
        device(batch)  # type: ignore[arg-type]
        error = next(faults, None)
        if error is not None:
            raise error

    slot = partial(device_slot, regions=1, positions=512, scratch=True, before_step=step, cpu_step=cpu)
    with running(model(MODEL, streams=3), open_slot=slot) as harness:
        begin(harness, device, ("b", B))
        if leaves:
            harness.engine.cancel("b")
        device.let(1000)
        cpu.let(1000)
        ended(harness, "a", A)
        if not leaves:
            ended(harness, "b", B)
        harness.snapshot_when(lambda s: not s.models[MODEL].decline and not s.models[MODEL].running)


def test_a_prompt_of_which_more_is_wanted_than_rows_stays_on_the_cpu() -> None:
    """Hidden states, that is. The device, which waits, has nothing of it."""
    with played() as (harness, device, cpu):
        begin(harness, device)
        cpu.let(2)
        harness.engine.submit(embed("e", B, Pooling.MEAN))
        end = harness.mail.terminal("e")
        np.testing.assert_array_equal(end.embedding, expected(B, Pooling.MEAN))
        assert passes(harness) == {"unhomed": 1, "gap": 1}
