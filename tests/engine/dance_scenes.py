"""What models that take turns are put through, and what their streams are held to: see `device_dance`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from engine.device_dance import GREEDY, PATIENT, RESTLESS, Ask, Dance, dancing, of, undisturbed
from tierd.core import SamplingParams
from tierd.engine import Snapshot
from tierd.settings import ModelSettings

Tokens = tuple[int, ...]


def seeded(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.5, top_k=50, top_p=0.95, min_p=0.01, seed=seed)


def questions(_: str) -> Iterator[Tokens]:
    """Yield short texts that a tiny model can read, no two of which begin alike."""
    return ((first, *Random(first).choices(range(3, 300), k=4 + 5 * first % 17)) for first in count())


@dataclass(frozen=True)
class Script:
    """Requests to models. parked: conversations. live: streams, half of which go on with those; last: with
    the rest of them, and with the streams. Every other request is greedy, the rest is drawn.
    """

    parked: list[Ask]
    live: list[Ask]
    last: list[Ask]

    @classmethod
    def of(
        cls,
        models: Iterable[ModelSettings],
        *,
        answer: int,
        streams: int = 4,
        questions: Callable[[str], Iterator[Tokens]] = questions,
    ) -> Script:
        """answer: tokens of a stream, and a few more. streams: of each model. questions: for a model."""
        script = cls([], [], [])
        for model in models:
            script._add(model.id, answer, streams, questions(model.id))
        return script

    def _add(self, model: str, answer: int, streams: int, texts: Iterator[Tokens]) -> None:
        def ask(name: str, n: int, answer: int, after: str) -> Ask:
            return Ask(
                name=f"{model} {name} {n}",
                model=model,
                question=next(texts),
                answer=answer,
                after=after and f"{model} {after} {n}",
                sampling=seeded(n) if n % 2 else GREEDY,
            )

        half = streams // 2
        self.parked.extend(ask("parked", n, 3, "") for n in range(streams))
        self.live.extend(ask("live", n, answer + n, "parked" if n < half else "") for n in range(streams))
        self.last.extend(ask("last", n, 3, "live" if n < half else "parked") for n in range(streams))

    @property
    def stages(self) -> list[list[Ask]]:
        return [self.parked, self.live, self.last]


def take_turns(models: list[ModelSettings], script: Script, **options: Any) -> None:
    """Let all talk at once: whoever is waited for comes, whatever runs."""
    expected = undisturbed(models, script.stages, **options)
    with dancing(*models, room=expected.room_for_one, switch=RESTLESS, **options) as dance:
        for stage in script.stages:
            dance.talks.play(stage)
        assert dance.snapshot.switches > len(script.stages) * len(models)
        assert dance.talks.said == expected.said
        dance.check_lossless()
        dance.served.rests()


def switch_often(models: list[ModelSettings], script: Script, turns: int, **options: Any) -> Dance:
    """Have two models switched in the middle of their streams, each time two steps after the last."""
    expected = undisturbed(models, script.stages, **options)
    with dancing(*models, room=expected.room_for_one, switch=PATIENT, **options) as dance:
        dance.talks.play(script.parked)
        dance.pace.hold()
        dance.talks.ask(script.live)
        _begin(dance, script)
        before = dance.snapshot.switches
        for turn in range(turns):
            dance.force(dance.other)
            if turn == 0:
                _begin(dance, script)
            assert all(dance.live(model.id) == len(of(model.id, script.live)) for model in models)
            dance.pace.steps(2)
        assert dance.snapshot.switches == before + turns
        dance.pace.free()
        dance.talks.hear(of(dance.on, script.live))
        dance.force(dance.other)
        dance.talks.hear(of(dance.on, script.live))
        dance.play_both(script.last)
        assert dance.talks.said == expected.said
        dance.check_lossless()
        dance.served.rests()
    return dance


def go_on_at_the_cpu(models: list[ModelSettings], script: Script, **options: Any) -> Dance:
    """Let streams go to the CPU: to their ends, and once more until their model is back.

    Each token of those that are greedy is the best, or nearly. Those that did not cross over are not fed
    again.
    """
    room = undisturbed(models, [], **options).room_for_one
    with dancing(*models, room=room, switch=replace(PATIENT, resume="cpu"), **options) as dance:
        dance.play_both(script.parked)
        crossed: list[Ask] = []
        for turn in range(2 * len(models)):
            crossed += _cross(
                dance, [replace(ask, name=f"{ask.name}, {turn}") for ask in script.live], turn % 2
            )
        passes = {model.id: dance.served.passes(model.id) for model in models}
        assert all(counts.keys() == {"away"} for counts in passes.values())
        whole = [ask for ask in script.last if ask.after in dance.talks.said]
        further = [
            Ask(name=f"{ask.name} on", model=ask.model, after=ask.name, question=(5,), answer=3)
            for ask in crossed
        ]
        dance.play_both(whole)
        dance.play_both(further)
        assert {model.id: dance.served.passes(model.id) for model in models} == passes
        for ask in whole:
            known = len(dance.talks.prompt(ask.after)) + len(dance.talks.said[ask.after].tokens) - 1
            assert dance.talks.said[ask.name].cached == known
        for ask in (*crossed, *whole, *further):
            if ask.sampling is GREEDY:
                tokens = dance.talks.said[ask.name].tokens
                dance.served.check_near(ask.model, dance.talks.prompt(ask.name), tokens)
        assert not any(dance.served.refed(model.id) for model in models)
        dance.served.rests()
    return dance


def _begin(dance: Dance, script: Script) -> None:
    dance.until_live(len(of(dance.on, script.live)))


def _cross(dance: Dance, asks: list[Ask], returns: bool) -> list[Ask]:
    """Let streams of the model that is there begin, and go on at the CPU; return which those were.

    returns: the model comes back, and they with it.
    """
    model = dance.on
    asks = of(model, asks)
    dance.pace.hold()
    dance.talks.ask(asks)
    dance.until_live(len(asks))
    dance.pace.steps(2)
    dance.force(dance.other)
    dance.pace.steps(4)

    def are_home(snapshot: Snapshot) -> bool:
        sessions = snapshot.models[model].sessions
        return all(session.region is not None and not session.moving for session in sessions)

    if returns:
        dance.force(model)
        dance.served.harness.snapshot_when(are_home)
        dance.pace.steps(2)
    dance.pace.free()
    dance.talks.hear(asks)
    return asks
