"""A running engine whose device fails at each phase of its work: streams go on, and the device comes back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.device_live import Served, serving
from engine.failing import SUBMIT, WAIT, Phase
from faulty import in_turn
from live import wait_until
from tier.tiers import model
from tierd.backends.vkapi.results import DEVICE_LOST
from tierd.tier import retries
from tiny import write_llama

PHASES = {
    "submission": Phase("submit", SUBMIT, flights=0),
    "submission behind a step": Phase("submit", SUBMIT, flights=1),
    "wait": Phase("collect", WAIT),
    "wait with a step behind": Phase("collect", WAIT, flights=2),
    "submission of a read-back": Phase("collect", SUBMIT),
    "wait for a read-back": Phase("collect", WAIT, after=1),
    "submission of rows out": Phase("read_rows", SUBMIT),
    "wait for rows out": Phase("read_rows", WAIT),
    "submission of rows in": Phase("write_rows", SUBMIT),
    "wait for rows in": Phase("write_rows", WAIT),
    "submission of copies": Phase("copy_rows", SUBMIT),
    "submission behind copies": Phase("copy_rows", SUBMIT, after=1),
}
CASES = in_turn({phase: each.faults for phase, each in PHASES.items()})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("faults") / "tiny.gguf", head_size=32, ff=96)


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "TRIES", 1000)
        with serving(model(path, context=128, regions=3)) as served:
            yield served


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 300, length)]


@pytest.mark.parametrize(("phase", "result"), CASES)
def test_streams_go_on_and_the_device_comes_back(served: Served, phase: str, result: int) -> None:
    """Three talks are parked and the bank has a fourth, which comes back; another stream forks one."""
    talks = [prompt(served.asked + n, 20 + n) for n in range(4)]
    for talk in talks:
        served.serve(talk, 2)
    served.rests()
    threads, before = names(), served.passes()
    flat = "read-back" in phase
    prompts = [[*talks[0], 5, 6], [*talks[3][:19], *prompt(9, 17)]]
    with PHASES[phase].failing(result) as met:
        asked = [served.ask(each, flat=flat) for each in prompts]
        for id, each in zip(asked, prompts, strict=True):
            served.check(id, each, greedy=not flat)
        assert met.is_set()
    served.rests()
    assert [bool(device.abandoned) for device in served.devices] == [True, False]
    passes = served.passes()
    assert any(passes.get(reason, 0) > before.get(reason, 0) for reason in ("device_lost", "paged"))

    served.serve(prompt(4, 30))
    assert served.passes() == passes
    wait_until(lambda: names() <= threads + Counter(["tierd-cpu"]))
    served.forget_devices()


def test_all_models_of_a_device_go_on_without_it_and_come_back(path: Path) -> None:
    models = [model(path, id, context=128) for id in ("tiny", "other")]
    asked = [prompt(n, 30 + n) for n in range(4)]
    with serving(*models) as served, PHASES["wait"].failing(DEVICE_LOST) as met:
        ids = [served.ask(each, model=models[n % 2].id) for n, each in enumerate(asked)]
        for id, each in zip(ids, asked, strict=True):
            served.check(id, each)
        assert met.is_set()
        served.rests()
        assert [bool(device.abandoned) for device in served.devices] == [True, False]


def test_a_device_that_fails_again_and_again_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "TRIES", 2)
    with serving(model(path, context=128)) as served:
        for n in range(4):
            with PHASES["wait"].failing(DEVICE_LOST) as met:
                served.serve(prompt(n, 30))
            assert met.is_set() is (n < 3)
            if n < 2:
                served.rests()
        assert len(served.devices) == 3
        assert served.harness.engine.snapshot.models["tiny"].outcome == "cpu"


def names() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate())
