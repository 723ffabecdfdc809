"""A server in the middle of everything at once: what it says is right, and nothing is left of it."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from chaos.book import Book, Trace
from chaos.crowd import Ask, Storm, hear
from chaos.house import BAR_S, House, housed
from kompute import Faults, needs_kompute
from live import wait_until
from tierd.settings import ModelSettings, SwitchSettings
from tiny import write_llama

CODECS = ("f16", "q8_0", "tq4")
# They leave as soon as somebody waits for another.
RESTLESS = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0)
TO_THE_CPU = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0, resume="cpu")

Note = Callable[[str, object], None]


def write_models(folder: Path) -> list[ModelSettings]:
    """Write one model for each codec. The last has fewer regions than streams, and one for their prompts."""
    return [
        ModelSettings(
            id=codec,
            path=write_llama(folder / f"{codec}.gguf", head_size=32, ff=96, seed=seed),
            default=not seed,
            streams=4,
            context=256,
            kv_dtype=codec,
            regions=2 if codec == "tq4" else 0,
            resident_prefill_allowed=codec == "tq4",
        )
        for seed, codec in enumerate(CODECS)
    ]


def first_asks(model: str) -> list[Ask]:
    """Short prompts and one longer than a chunk, by ids and by words; every other is drawn."""
    random, asks = Random(model), []
    for n, length in enumerate((4, 17, 60)):
        prompt = tuple(random.choices(range(3, 300), k=length))
        asks.append(Ask("/v1/completions", (("model", model), ("prompt", prompt), *picked(n))))
    messages = ({"role": "user", "content": "what will all the people say of that"},)
    return [*asks, Ask("/v1/chat/completions", (("model", model), ("messages", messages), *picked(1)))]


def picked(n: int) -> list[tuple[str, object]]:
    """How tokens are picked: the best, or drawn with a seed."""
    if n % 2 == 0:
        return [("temperature", 0), ("seed", n)]
    return [("temperature", 1.5), ("top_k", 8), ("seed", n)]


def ask_all(house: House, asks: Iterable[Ask], *, stream: bool) -> list[Trace]:
    """Send requests, one by one; return what came of them, all of them whole."""
    traces = []
    for ask in asks:
        heard = hear(house.live.http, ask, ask.most, stream=stream)
        assert heard is not None
        assert heard.status == 200, heard
        traces.append(house.traces.of[heard.name])
    return traces


def go_on(ask: Ask, trace: Trace) -> Ask:
    """Return a request that goes on with what was said to another."""
    prompt = (*trace.sequence.request.prompt, *trace.tokens, 5, 7, 11)
    return replace(ask, body=tuple({**dict(ask.body), "prompt": prompt}.items()))


def write_large(folder: Path) -> ModelSettings:
    """Write a model of which the device holds some layers, and not the whole, whoever is there."""
    path = write_llama(
        folder / "large.gguf",
        format="Q8_0", seed=len(CODECS), n_embd=256, head_size=64, heads=4, kv_heads=2, ff=512, layers=4,
    )  # fmt: skip
    return ModelSettings(id="large", path=path, streams=4, context=256, ctx_strict=True)


def study(models: list[ModelSettings]) -> tuple[Book, tuple[Ask, ...], int]:
    """Return what models say alone on either executor, the requests, and bytes that hold one or two."""
    book, asks = Book(), [ask for model in models for ask in first_asks(model.id)]
    with housed(models) as house:
        said = zip(asks, ask_all(house, asks, stream=False), strict=True)
        further = [go_on(ask, trace) for ask, trace in said if ask.path == "/v1/completions"]
        ask_all(house, further, stream=False)
        book.learn(house.traces)
        least, next_least, most = sorted(house.stage.tier.status().reservations.values())
    asks += further
    with housed(models, mode="off") as house:
        ask_all(house, asks, stream=False)
        book.learn(house.traces)
    room = least + most + (next_least - least) // 2
    assert least + most < room < next_least + most
    return book, tuple(asks), room


def calm(house: House, book: Book, asks: Iterable[Ask]) -> int:
    """Let all be up again; see that it serves, and that nobody holds anything.

    Models that the device has declined while it failed are loaded once more; return how many.
    """
    for device in house.stage.devices[-1:]:
        for function in ("vkQueueSubmit", "vkWaitSemaphores"):
            device.vk.inject(function, None)
    reloaded = 0
    while not house.is_up():
        for model in house.declined():
            house.do("/models/unload?wait=true", model=model)
            house.do("/models/load?wait=true", id=model)
            reloaded += 1
        assert reloaded <= len(house.models)
        if not house.has_device:  # that it is lost may have been noticed by nobody so far
            house.post("/models/activate?wait=true", model=house.models[0].id)
        time.sleep(0.01)
    time.sleep(BAR_S)
    for trace in ask_all(house, asks, stream=True):
        assert trace.whole
        assert not trace.crossed
        assert trace.parts[0][0] != "cpu"
        book.check(trace)
    house.rests()
    return reloaded


def check(house: House, book: Book, storm: Storm) -> Counter[str]:
    """Check what was said in a storm; return counts of it."""
    assert list(storm.unexcused()) == []
    counts = Counter(storm.did)
    for heard in storm.heard:
        if heard.status == 200:
            trace = house.traces.of[heard.name]
            assert trace.whole
            told = house.live.post("/detokenize", {"model": heard.ask.model, "tokens": trace.tokens})
            assert told.json()["content"] == heard.text
            counts["whole streams"] += 1
        else:
            counts["excused"] += 1
    for trace in house.traces.of.values():
        book.check(trace)
        counts["crossed over" if trace.crossed else "stayed"] += 1
        counts["tokens"] += len(trace.tokens)
    return counts


def empty(house: House) -> Mapping[str, int]:
    """Unload all; return what is held once nobody is at work any more, and all connections are closed."""
    house.vacate()
    house.stage.forget_devices()
    wait_until(lambda: not house.workers and not house.connections)
    gc.collect()
    return house.holdings


def rage(
    models: list[ModelSettings],
    *,
    large: Sequence[ModelSettings] = (),
    kompute: Faults | None = None,
    switch: SwitchSettings,
    rounds: int,
    seconds: float,
) -> Counter[str]:
    """Let storms rage around a server, one after another; return counts of them.

    large: models besides those of which the device holds two, that it does not hold. kompute: its faults.
    """
    book, asks, room = study(models)
    asks += tuple(ask for model in large for ask in first_asks(model.id))
    models = [*models, *large]
    counts: Counter[str] = Counter()
    with housed(models, room=room, switch=switch) as house:
        book.references = house.reference
        for model in models:
            house.reference(model.id)
        calm(house, book, [ask for ask in asks if ask.path != "/v1/completions"])
        assert {house.live.engine.snapshot.models[model.id].outcome for model in large} <= {"gpu:rails"}
        before = empty(house)
        for seed in range(rounds):
            for model in models:
                house.do("/models/load?wait=true", id=model.id)
            house.traces.of.clear()
            storm = Storm(house, asks, seed, kompute)
            began = time.monotonic()
            storm.rage(seconds)
            counts["seconds of storm"] += round(time.monotonic() - began)
            counts.update(check(house, book, storm))
            counts["switches"] = house.live.engine.snapshot.switches
            counts["declined"] += calm(house, book, asks)
            counts["devices lost"] = house.stage.tier.status().faults
            after = empty(house)
            assert {what: count for what, count in after.items() if count > before[what]} == {}
    return counts


@pytest.mark.parametrize(
    ("switch", "rounds", "seconds"),
    [
        pytest.param(RESTLESS, 1, 6.0, id="slice"),
        pytest.param(RESTLESS, 5, 30.0, id="device", marks=pytest.mark.long),
        pytest.param(TO_THE_CPU, 5, 30.0, id="cpu", marks=pytest.mark.long),
    ],
)
def test_all_at_once(
    switch: SwitchSettings, rounds: int, seconds: float, tmp_path: Path, record_property: Note
) -> None:
    counts = rage(write_models(tmp_path), switch=switch, rounds=rounds, seconds=seconds)
    for what, count in counts.items():
        record_property(what, count)


@needs_kompute
@pytest.mark.long
def test_all_at_once_beside_a_model_on_rails(tmp_path: Path, faults: Faults, record_property: Note) -> None:
    models, large = write_models(tmp_path), write_large(tmp_path)
    counts = rage(models, large=[large], kompute=faults, switch=RESTLESS, rounds=3, seconds=20.0)
    for what, count in counts.items():
        record_property(what, count)
