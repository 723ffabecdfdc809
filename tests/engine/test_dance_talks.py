"""Tiny models take turns on a device that holds one: every stream says what it says undisturbed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import tiny_variants
from engine.device_dance import GREEDY, PATIENT, RESTLESS, Ask, Dance, dancing, of, undisturbed
from tierd.backends import library
from tierd.core import FinishReason, SamplingParams, TokenMask
from tierd.settings import ModelSettings
from tiny import write_gemma3, write_llama

STREAMS = 4
# Sizes that all formats and codecs can have.
WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512, "layers": 2}
LLAMAS = [name for name in tiny_variants.NAMES if name.startswith("llama")]
GEMMAS = [name for name in tiny_variants.NAMES if name.startswith("gemma")]
FORMATS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
MIB = 1 << 20
RESUME_CPU = replace(PATIENT, resume="cpu")


def seeded(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.5, top_k=50, top_p=0.95, min_p=0.01, seed=seed)


def question(first: int, length: int) -> tuple[int, ...]:
    """Return tokens of which no other question has the first."""
    return (first, *Random(first).choices(range(3, 300), k=length - 1))


def model(id: str, path: Path, **options: object) -> ModelSettings:
    return ModelSettings(id=id, path=path, streams=STREAMS, **{"context": 128, **options})  # type: ignore[arg-type]


def stages(id: str, *, answer: int, streams: int = STREAMS) -> list[list[Ask]]:
    """Conversations that are parked; streams, half of which go on with such; and all go on once more."""
    parked, live, last = [], [], []
    for n in range(streams):
        sampling = seeded(n) if n % 2 else GREEDY
        before, now = f"{id}-parked{n}", f"{id}-live{n}"
        parked.append(Ask(name=before, model=id, question=question(n, 9 + n), answer=3, sampling=sampling))
        live.append(
            Ask(
                name=now,
                model=id,
                question=question(20 + n, 5 + 3 * n),
                after=before if n < streams // 2 else "",
                answer=answer + n,
                sampling=sampling,
            )
        )
        last.append(
            Ask(
                name=f"{id}-last{n}",
                model=id,
                question=question(40 + n, 2 + n),
                after=now if n < streams // 2 else before,
                answer=3,
                sampling=sampling,
            )
        )
    return [parked, live, last]


def together(*models: list[list[Ask]]) -> list[list[Ask]]:
    """Return the stages of models as those of all."""
    return [[ask for stage in each for ask in stage] for each in zip(*models, strict=True)]


Pair = Callable[..., list[ModelSettings]]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Write two models, "a" and "b"; options: of both."""

    def write(**options: object) -> list[ModelSettings]:
        a = write_llama(tmp_path / "a.gguf", head_size=32, seed=1)
        b = write_llama(tmp_path / "b.gguf", head_size=32, seed=2)
        return [model("a", a, **options), model("b", b, **options)]

    return write


def other(id: str) -> str:
    return "a" if id == "b" else "b"


def switch_and_hear(dance: Dance, stages: list[list[Ask]]) -> None:
    """Play stages to their ends, each model's while it is there."""
    for stage in stages:
        dance.talks.play(of(dance.on, stage))
        dance.force(other(dance.on))
        dance.talks.play(of(dance.on, stage))


def twenty_switches(models: list[ModelSettings], turns: int = 20) -> None:
    parked, live, last = played = together(stages("a", answer=2 * turns), stages("b", answer=2 * turns))
    expected = undisturbed(models, played)
    with dancing(*models, room=expected.room_for_one, switch=PATIENT) as dance:
        dance.talks.play(parked)
        dance.pace.hold()
        dance.talks.ask(live)
        dance.until_live(STREAMS)
        before = dance.snapshot.switches
        for turn in range(turns):
            dance.force(other(dance.on))
            if turn == 0:
                dance.until_live(STREAMS)
            assert dance.live("a") == dance.live("b") == STREAMS
            dance.pace.steps(2)
        assert dance.snapshot.switches == before + turns
        dance.pace.free()
        dance.talks.hear(of(dance.on, live))
        dance.force(other(dance.on))
        dance.talks.hear(of(dance.on, live))
        switch_and_hear(dance, [last])
        assert dance.talks.said == expected.said
        dance.check_lossless()
        dance.served.rests()


@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
def test_twenty_switches_in_the_middle_of_streams(codec: str, pair: Pair) -> None:
    twenty_switches(pair(kv_dtype=codec))


@pytest.mark.long
@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
@pytest.mark.parametrize("formats", [("Q4_K", "Q8_0"), ("Q4_1", "Q6_K"), ("BF16", "Q5_0")])
def test_hundred_switches_in_the_middle_of_streams(
    codec: str, formats: tuple[str, str], tmp_path: Path
) -> None:
    a = write_llama(tmp_path / "a.gguf", format=formats[0], **WIDE)
    b = write_gemma3(tmp_path / "b.gguf", format=formats[1], **(WIDE | {"layers": 7}))
    twenty_switches([model(id, path, kv_dtype=codec, context=320) for id, path in (("a", a), ("b", b))], 100)


def take_turns(models: list[ModelSettings], *, answer: int, streams: int) -> None:
    """Let all talk at once: whoever is waited for comes, whatever runs."""
    played = together(*(stages(each.id, answer=answer, streams=streams) for each in models))
    expected = undisturbed(models, played)
    with dancing(*models, room=expected.room_for_one, switch=RESTLESS) as dance:
        for stage in played:
            dance.talks.play(stage)
        assert dance.snapshot.switches > len(played) * len(models)
        assert dance.talks.said == expected.said
        dance.check_lossless()
        dance.served.rests()


@pytest.mark.parametrize(
    "names",
    [
        ["llama_untied", "llama_derived_head", "llama_factors", "llama_yarn"],
        ["gemma3_untied", "gemma3_pattern"],
        pytest.param(LLAMAS, marks=pytest.mark.long),
        pytest.param(GEMMAS, marks=pytest.mark.long),
    ],
    ids=["llama", "gemma3", "all llama", "all gemma3"],
)
def test_all_kinds_of_models_take_turns(names: list[str], tmp_path: Path) -> None:
    models = [model(name, tiny_variants.write(name, tmp_path), context=64) for name in names]
    take_turns(models, answer=4, streams=2)


@pytest.mark.long
def test_models_of_all_formats_take_turns(tmp_path: Path) -> None:
    paths = {format: write_llama(tmp_path / f"{format}.gguf", format=format, **WIDE) for format in FORMATS}
    take_turns([model(format, path) for format, path in paths.items()], answer=8, streams=STREAMS)


def kinds(id: str) -> list[Ask]:
    """Requests of one prompt that ask for all sorts of things; they share its rows."""
    shared = question(60, 30)
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
        Ask(name=f"{id}-{name}", model=id, question=shared, answer=8, **want)  # type: ignore[arg-type]
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
        for name, said in dance.talks.said.items():
            assert replace(said, cached=0) == replace(expected.said[name], cached=0)
        dance.check_lossless()
        dance.served.rests()


@pytest.mark.parametrize("trips", [6, pytest.param(200, marks=pytest.mark.long)])
def test_memory_is_flat(trips: int, pair: Pair) -> None:
    """The same talks on every trip, so that all that is kept of them is the same as well."""
    models = pair()
    parked, live, _ = together(stages("a", answer=4), stages("b", answer=4))
    expected = undisturbed(models, [])
    with dancing(*models, room=expected.room_for_one, switch=PATIENT) as dance:
        switch_and_hear(dance, [parked])
        kept: list[tuple[object, ...]] = []
        memory: list[int] = []
        for trip in range(trips):
            switch_and_hear(dance, [[replace(ask, name=f"{ask.name} {trip}") for ask in live]])
            bank, status = dance.snapshot.bank, dance.served.tier.status()
            kept.append((status.used, status.reservations, status.away, bank.used, bank.entries))
            memory.append(resident())
        for which in (2, 3):  # either model is there at the end of every other trip
            assert kept[which::2] == kept[which : which + 1] * len(kept[which::2])
        assert memory[-1] - memory[1] < MIB + trips * MIB // 32  # with all that clients were told
        dance.check_lossless()


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    gc.collect()
    library.trim()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    "codec",
    ["f16", pytest.param("q8_0", marks=pytest.mark.long), pytest.param("tq4", marks=pytest.mark.long)],
)
def test_streams_go_on_at_the_cpu(codec: str, pair: Pair) -> None:
    """One half to their ends, the other until their model is back; each token is the best, or nearly."""
    models = pair(kv_dtype=codec)
    parked, live, last = together(stages("a", answer=50), stages("b", answer=50))
    expected = undisturbed(models, [])
    with dancing(*models, room=expected.room_for_one, switch=RESUME_CPU) as dance:
        switch_and_hear(dance, [parked])
        ended: list[Ask] = []
        for turn in range(4):
            id = dance.on
            asks = [replace(ask, name=f"{ask.name} {turn}") for ask in of(id, live)]
            dance.pace.hold()
            dance.talks.ask(asks)
            dance.until_live(STREAMS)
            dance.pace.steps(2)
            dance.force(other(id))
            dance.pace.steps(4)
            if turn % 2:
                dance.force(id)
                dance.served.harness.snapshot_when(
                    lambda snapshot, id=id: all(
                        session.region is not None and not session.moving
                        for session in snapshot.models[id].sessions
                    )
                )
                dance.pace.steps(2)
            dance.pace.free()
            dance.talks.hear(asks)
            ended += asks
        for id in "ab":
            assert dance.served.passes(id).keys() == {"away"}
        passes = {id: dance.served.passes(id) for id in "ab"}
        undivided = [ask for ask in last if ask.after in dance.talks.said]
        further = [replace(ask, name=f"{ask.name} on", after=ask.name, answer=3) for ask in ended[-STREAMS:]]
        switch_and_hear(dance, [undivided, further])
        assert {id: dance.served.passes(id) for id in "ab"} == passes
        for ask in undivided:
            known = len(dance.talks.prompt(ask.after)) + len(dance.talks.said[ask.after].tokens) - 1
            assert dance.talks.said[ask.name].cached == known
        for ask in (*ended, *undivided, *further):
            if ask.sampling is GREEDY:
                tokens = dance.talks.said[ask.name].tokens
                dance.served.check_near(ask.model, dance.talks.prompt(ask.name), tokens)
        assert dance.served.refed("a") == dance.served.refed("b") == 0
        dance.served.rests()
