"""A device that fails in each phase of a switch: streams of both models go on, and both come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from engine.device_dance import RESTLESS, Ask, Dance, dancing, undisturbed
from engine.failing import SUBMIT, WAIT, Phase
from tier.tiers import model
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.vkapi.results import DEVICE_LOST
from tierd.tier import retries
from tiny import write_llama

PHASES = {
    "pause": Phase("collect", WAIT),
    "hydrate, submission": Phase("read_rows", SUBMIT),
    "hydrate, wait": Phase("read_rows", WAIT),
    "drop": Phase("close", WAIT),
    "rearm, submission": Phase("arm", SUBMIT, of=ResidentBackend),
    "rearm, wait": Phase("arm", WAIT, of=ResidentBackend),
    "rehome, submission": Phase("write_rows", SUBMIT),
    "rehome, wait": Phase("write_rows", WAIT),
}
CASES = [
    pytest.param(
        phase, result, id=f"{phase}: {error}", marks=[] if result == DEVICE_LOST else pytest.mark.long
    )
    for phase, each in PHASES.items()
    for result, error in each.faults.items()
]
ROUNDS = count(1)


@pytest.fixture(scope="module")
def dance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dance]:
    folder = tmp_path_factory.mktemp("faults")
    models = [
        model(write_llama(folder / f"{id}.gguf", head_size=32, ff=96, seed=seed), id, context=128, regions=3)
        for seed, id in enumerate("ab")
    ]
    room = undisturbed(models, []).room_for_one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "TRIES", 1000)
        with dancing(*models, room=room, switch=RESTLESS) as dance:
            yield dance


@pytest.mark.parametrize(("phase", "result"), CASES)
def test_streams_go_on_and_both_models_come_back(dance: Dance, phase: str, result: int) -> None:
    served, talks, round = dance.served, dance.talks, next(ROUNDS)
    asks = [
        Ask(
            name=f"{id}{n} {round}",
            model=id,
            question=tuple(Random(round + n).choices(range(3, 300), k=9 + n)),
            answer=16,
        )
        for n in range(2)
        for id in "ab"
    ]
    with PHASES[phase].failing(result) as met:
        talks.play(asks)
        assert met.is_set()
    for ask in asks:
        served.check_near(ask.model, talks.prompt(ask.name), talks.said[ask.name].tokens)
    served.rests()
    passes = served.passes("a"), served.passes("b")
    talks.play(replace(ask, name=f"{ask.name} on", after=ask.name, answer=2) for ask in asks)
    assert (served.passes("a"), served.passes("b")) == passes
    served.rests()
    served.forget_devices()
