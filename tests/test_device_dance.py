"""Both real models take turns on a Vulkan device, here llvmpipe, that holds one of them.

With switch.resume = device a stream's ids are those of its model alone; with "cpu" each token's logit is
within 0.5 of the best when they are forced through the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import harness
from engine.dance_scenes import Script, go_on_at_the_cpu, seeded, switch_often
from engine.device_dance import GREEDY, PATIENT, Ask, Dance, dancing
from reference import oracle
from test_oracle import Note
from tierd.engine.switch import PHASES
from tierd.settings import ModelSettings
from tiny import write_llama

MIB = 1 << 20
# What both need besides weights is small.
ROOM = 300 * MIB
OPTIONS = {"bank": 256 * MIB, "host_mb": 512, "chunk_rows": 32, "threads": 2}
CODECS = ["f16", "q8_0", "tq4"]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "PATIENCE", 120.0)


@pytest.fixture
def prompts(oracle_dir: Path) -> dict[str, list[tuple[int, ...]]]:
    """Short texts, by model."""
    names = {"smollm2": oracle.SMOLLM2, "gemma3": oracle.GEMMA3}
    loaded = {id: oracle.load(oracle_dir, name)["greedy"] for id, name in names.items()}
    return {id: [tuple(row["prompt_tokens"]) for row in rows] for id, rows in loaded.items()}


def model(id: str, path: Path, *, streams: int = 2, codec: str = "f16") -> ModelSettings:
    return ModelSettings(id=id, path=path, streams=streams, context=256, kv_dtype=codec)


def asks(id: str, prompts: list[tuple[int, ...]], answer: int, again: str = "") -> list[Ask]:
    """A greedy stream and one that is drawn."""
    return [
        Ask(name=f"{id} {n}{again}", model=id, question=prompts[n], answer=answer, sampling=sampling)
        for n, sampling in enumerate((GREEDY, seeded(1)))
    ]


def test_a_goes_on_after_b_as_if_alone(
    smollm2_path: Path, gemma3_path: Path, prompts: dict[str, list[tuple[int, ...]]]
) -> None:
    models = [model("smollm2", smollm2_path), model("gemma3", gemma3_path)]
    with dancing(*models, room=ROOM, switch=PATIENT, **OPTIONS) as dance:
        talks = dance.talks
        a, b = asks("smollm2", prompts["smollm2"], 12), asks("gemma3", prompts["gemma3"], 4)
        talks.play(a)
        dance.force("gemma3")
        talks.play(b)
        dance.served.harness.engine.flush().result(harness.PATIENCE)
        dance.force("smollm2")

        dance.pace.hold()
        a_again, b_again = (
            asks("smollm2", prompts["smollm2"], 12, "!"),
            asks("gemma3", prompts["gemma3"], 4, "!"),
        )
        talks.ask(a_again)
        dance.until_live(2)
        dance.pace.steps(2)
        talks.ask(b_again)
        dance.force("gemma3")
        dance.until_live(2)
        dance.force("smollm2")
        dance.pace.free()
        talks.hear(a_again)
        dance.force("gemma3")
        talks.hear(b_again)
        for before, after in zip((*a, *b), (*a_again, *b_again), strict=True):
            assert talks.said[after.name] == talks.said[before.name]
        dance.check_lossless()


def test_a_goes_on_at_the_cpu(
    smollm2_path: Path, tmp_path: Path, prompts: dict[str, list[tuple[int, ...]]]
) -> None:
    """For one that is quick to come, as all that is large of it is room for K and V."""
    other = write_llama(tmp_path / "other.gguf", heads=8, kv_heads=8, head_size=128, context=16384)
    models = [model("smollm2", smollm2_path), ModelSettings(id="other", path=other, streams=2, context=16384)]
    with dancing(*models, room=ROOM, switch=replace(PATIENT, resume="cpu"), **OPTIONS) as dance:
        talks = dance.talks
        a = asks("smollm2", prompts["smollm2"], 12)
        dance.pace.hold()
        talks.ask(a)
        dance.until_live(2)
        dance.pace.steps(2)
        dance.force("other")
        dance.pace.free()
        talks.hear(a)
        assert dance.served.passes("smollm2").keys() == {"away"}
        assert dance.served.refed("smollm2") == 0
        dance.served.check_near("smollm2", a[0].question, talks.said[a[0].name].tokens)


def note_switches(dance: Dance, note: Note) -> None:
    """Note the median of each phase, milliseconds, over the switches that brought either model."""
    note("on", f"device, {dance.served.devices[0].facts.name}")
    for model, seconds in (("first", dance.seconds[0::2]), ("second", dance.seconds[1::2])):
        phases = {
            phase: round(1000 * float(np.median([each[phase] for each in seconds])), 1) for phase in PHASES
        }
        note(f"switch to the {model}, ms", phases)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_twenty_switches_in_the_middle_of_streams(
    codec: str,
    smollm2_path: Path,
    gemma3_path: Path,
    prompts: dict[str, list[tuple[int, ...]]],
    record_property: Note,
) -> None:
    models = [
        model("smollm2", smollm2_path, streams=4, codec=codec),
        model("gemma3", gemma3_path, streams=4, codec=codec),
    ]
    script = Script.of(models, answer=44, questions=lambda model: iter(prompts[model]))
    dance = switch_often(models, script, 20, **OPTIONS)
    note_switches(dance, record_property)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_streams_go_on_at_the_cpu(
    codec: str, smollm2_path: Path, gemma3_path: Path, prompts: dict[str, list[tuple[int, ...]]]
) -> None:
    models = [
        model("smollm2", smollm2_path, streams=4, codec=codec),
        model("gemma3", gemma3_path, streams=4, codec=codec),
    ]
    script = Script.of(models, answer=44, questions=lambda model: iter(prompts[model]))
    go_on_at_the_cpu(models, script, **OPTIONS)
