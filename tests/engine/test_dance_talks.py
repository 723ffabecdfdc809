"""Tiny models take turns on a device that holds one: every stream says what it says undisturbed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import tiny_variants
from engine import harness
from engine.dance_scenes import Script, go_on_at_the_cpu, seeded, switch_often, take_turns
from engine.device_dance import GREEDY, PATIENT, RESTLESS, Ask, dancing, undisturbed
from tierd.backends import library
from tierd.core import FinishReason, SamplingParams, TokenMask
from tierd.settings import ModelSettings
from tiny import write_gemma3, write_llama

STREAMS = 4
# Sizes that all formats and codecs can have.
WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512}
LLAMAS = [name for name in tiny_variants.NAMES if name.startswith("llama")]
GEMMAS = [name for name in tiny_variants.NAMES if name.startswith("gemma")]
FORMATS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
CODECS = ["f16", "q8_0", "tq4"]
MIB = 1 << 20
PAGE = 4096


def model(id: str, path: Path, **options: object) -> ModelSettings:
    return ModelSettings(id=id, path=path, streams=STREAMS, **{"context": 128, **options})  # type: ignore[arg-type]


Pair = Callable[..., list[ModelSettings]]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Write two models; options: of both."""

    def write(**options: object) -> list[ModelSettings]:
        a = write_llama(tmp_path / "a.gguf", head_size=32, ff=96, seed=1)
        b = write_llama(tmp_path / "b.gguf", head_size=32, ff=96, seed=2)
        return [model("a", a, **options), model("b", b, **options)]

    return write


@pytest.mark.parametrize("codec", ["f16", pytest.param("q8_0", marks=pytest.mark.long), "tq4"])
def test_twenty_switches_in_the_middle_of_streams(codec: str, pair: Pair) -> None:
    models = pair(kv_dtype=codec)
    switch_often(models, Script.of(models, answer=40), 20)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("formats", [("Q4_K", "Q8_0"), ("Q4_1", "Q6_K"), ("BF16", "Q5_0")])
def test_a_hundred_switches_in_the_middle_of_streams(
    codec: str, formats: tuple[str, str], tmp_path: Path
) -> None:
    a = write_llama(tmp_path / "a.gguf", format=formats[0], **WIDE)
    b = write_gemma3(tmp_path / "b.gguf", format=formats[1], **WIDE)
    models = [model("a", a, kv_dtype=codec, context=320), model("b", b, kv_dtype=codec, context=320)]
    switch_often(models, Script.of(models, answer=200), 100)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["llama_untied", "llama_derived_head", "llama_factors", "llama_yarn"], id="llama"),
        pytest.param(["gemma3_untied", "gemma3_pattern"], id="gemma3"),
        pytest.param(LLAMAS, marks=pytest.mark.long, id="every llama"),
        pytest.param(GEMMAS, marks=pytest.mark.long, id="every gemma3"),
    ],
)
def test_models_of_all_kinds_take_turns(names: list[str], tmp_path: Path) -> None:
    models = [model(name, tiny_variants.write(name, tmp_path), context=64) for name in names]
    take_turns(models, Script.of(models, answer=4, streams=2))


@pytest.mark.long
def test_models_of_all_formats_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "PATIENCE", 120.0)
    paths = {format: write_llama(tmp_path / f"{format}.gguf", format=format, **WIDE) for format in FORMATS}
    models = [model(format, path, context=512) for format, path in paths.items()]
    take_turns(models, Script.of(models, answer=8))


@pytest.mark.parametrize(
    "codec",
    ["f16", pytest.param("q8_0", marks=pytest.mark.long), pytest.param("tq4", marks=pytest.mark.long)],
)
def test_streams_go_on_at_the_cpu(codec: str, pair: Pair) -> None:
    models = pair(kv_dtype=codec)
    go_on_at_the_cpu(models, Script.of(models, answer=50))


@pytest.mark.parametrize("resume", ["device", pytest.param("cpu", marks=pytest.mark.long)])
def test_streams_without_regions_and_their_prompts_go_on_too(resume: str, pair: Pair) -> None:
    """Two of four have none: they run on the CPU, but for prompts, which scratch regions are for."""
    models = pair(regions=2, resident_prefill_allowed=True)
    prompt = tuple(Random(1).choices(range(3, 300), k=60))
    asks = [
        Ask(name=f"{each.id} {n}", model=each.id, question=(n, *prompt), answer=12)
        for n in range(STREAMS)
        for each in models
    ]
    room = undisturbed(models, []).room_for_one
    with dancing(*models, room=room, switch=replace(RESTLESS, resume=resume)) as dance:
        dance.talks.play(asks)
        assert dance.snapshot.switches >= 2
        for each in models:
            assert {"away"} <= dance.served.passes(each.id).keys() <= {"away", "busy", "paged", "unhomed"}
        for ask in asks:
            dance.served.check_near(ask.model, ask.question, dance.talks.said[ask.name].tokens)
        dance.served.rests()


def kinds(id: str) -> list[Ask]:
    """Requests of one prompt that ask for all sorts of things; they share its rows."""
    prompt = tuple(range(60, 90))
    mask = TokenMask.of(range(50, 120), 301)
    wants: dict[str, dict[str, object]] = {
        "first": {"sampling": seeded(1)},
        "second": {"sampling": seeded(2)},
        "third": {"sampling": seeded(3)},
        "told": {"sampling": seeded(4), "top_logprobs": 5},
        "penalised": {"sampling": SamplingParams(repeat_penalty=1.5, presence_penalty=0.5, seed=5)},
        "windowed": {"sampling": replace(GREEDY, frequency_penalty=1.0, penalty_window=8)},
        "biased": {"sampling": replace(seeded(6), logit_bias=((7, 4.0), (9, -5.0)))},
        "allowed": {"sampling": replace(seeded(7), allowed=mask)},
        "stopped": {"sampling": seeded(8), "stop": tuple("aeioutnsrl")},
    }
    return [
        Ask(name=f"{id} {name}", model=id, question=prompt, answer=8, **want)  # type: ignore[arg-type]
        for name, want in wants.items()
    ]


def test_switches_change_nothing_of_what_streams_ask_for(pair: Pair) -> None:
    models = pair()
    asks = [*kinds("a"), *kinds("b")]
    expected = undisturbed(models, [asks])
    assert {said.reason for said in expected.said.values()} == {FinishReason.LENGTH, FinishReason.STOP}
    with dancing(*models, room=expected.room_for_one, switch=RESTLESS) as dance:
        dance.talks.play(asks)
        assert dance.snapshot.switches > len(models)
        for name, said in dance.talks.said.items():  # how much they share depends on when they come
            assert replace(said, cached=0) == replace(expected.said[name], cached=0)
        dance.check_lossless()
        dance.served.rests()


@pytest.mark.parametrize("trips", [6, pytest.param(200, marks=pytest.mark.long)])
def test_memory_is_flat(trips: int, pair: Pair) -> None:
    """The same talks on every trip, so that all that is kept of them is the same as well."""
    models = pair()
    script = Script.of(models, answer=4)
    room = undisturbed(models, []).room_for_one
    with dancing(*models, room=room, switch=PATIENT) as dance:
        dance.play_both(script.parked)
        kept: list[tuple[object, ...]] = []
        memory: list[int] = []
        for trip in range(trips):
            dance.play_both(replace(ask, name=f"{ask.name}, {trip}") for ask in script.live)
            bank, status = dance.snapshot.bank, dance.served.tier.status()
            kept.append((status.used, status.reservations, status.away, bank.used, bank.entries))
            memory.append(resident())
        for which in (2, 3):  # either model is there at the end of every other trip
            assert kept[which::2] == kept[which : which + 1] * len(kept[which::2])
        assert memory[-1] - memory[1] < 2 * MIB + trips * MIB // 32  # with all that clients were told
        dance.check_lossless()


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    gc.collect()
    library.trim()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
