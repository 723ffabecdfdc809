"""Models that take turns on a software device which holds one at a time, and what each says undisturbed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine import harness
from engine.device_live import Served, serving
from tierd.core import (
    FinishedEvent,
    FinishReason,
    Request,
    SamplingParams,
    Sequence,
    TextEvent,
    TokenLogprobs,
)
from tierd.engine import Snapshot, dance, scheduler
from tierd.settings import ModelSettings, SwitchSettings

GREEDY = SamplingParams(temperature=0.0)
# Models leave when they are told to, or have no work.
PATIENT = SwitchSettings(min_hold_s=600.0, max_wait_s=600.0)
# They leave as soon as somebody waits for another.
RESTLESS = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0)
# Bytes that all rows of a test have room in.
BANK = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request. after: the name of the one before, whose conversation goes on with the question."""

    name: str
    model: str
    question: tuple[int, ...]
    answer: int
    after: str = ""
    sampling: SamplingParams = GREEDY
    top_logprobs: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Said:
    """What came of a request: tokens with what is told of them, text, how it ended, and what was not fed."""

    told: tuple[TokenLogprobs, ...]
    text: str
    reason: FinishReason
    cached: int

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(each.token for each in self.told)


@dataclass
class Talks:
    """Requests to an engine. said: what came of them, by name."""

    served: Served
    said: dict[str, Said] = field(default_factory=dict)
    _asks: dict[str, Ask] = field(default_factory=dict)

    def ask(self, asks: Iterable[Ask]) -> None:
        """Submit requests, which go on with what was said."""
        for each in asks:
            self._asks[each.name] = each
            self.served.harness.engine.submit(
                Request(
                    id=each.name,
                    model=each.model,
                    prompt=self.prompt(each.name),
                    max_tokens=each.answer,
                    sampling=each.sampling,
                    stop=each.stop,
                    ignore_eos=True,
                    top_logprobs=each.top_logprobs,
                )
            )

    def hear(self, asks: Iterable[Ask]) -> None:
        """Wait until requests have ended, as they were to."""
        mail = self.served.harness.mail
        for each in asks:
            end = mail.terminal(each.name)
            assert isinstance(end, FinishedEvent), end
            events = [event for event in mail.events(each.name) if isinstance(event, TextEvent)]
            told = tuple(one for event in events for one in event.logprobs)
            if not each.stop:
                assert (end.reason, len(told)) == (FinishReason.LENGTH, each.answer)
            text = mail.text(each.name)
            self.said[each.name] = Said(told, text, end.reason, end.usage.cached_tokens)

    def play(self, asks: Iterable[Ask]) -> None:
        """Submit requests, and wait until they have ended."""
        asks = tuple(asks)
        self.ask(asks)
        self.hear(asks)

    def prompt(self, name: str) -> tuple[int, ...]:
        """Return the tokens of a request."""
        ask = self._asks[name]
        before = (*self.prompt(ask.after), *self.said[ask.after].tokens) if ask.after else ()
        return (*before, *ask.question)


@dataclass(frozen=True)
class Undisturbed:
    """What models say that stay on the device while nobody else has work, and the bytes that each takes."""

    said: Mapping[str, Said]
    bytes: Mapping[str, int]

    @property
    def room_for_one(self) -> int:
        """Bytes of a device that holds each, and no two."""
        least, next_least, *_ = sorted(self.bytes.values())
        room = max(self.bytes.values()) + least // 4
        assert room < least + next_least, self.bytes
        return room


def undisturbed(
    models: Iterable[ModelSettings], stages: Iterable[Iterable[Ask]], **options: Any
) -> Undisturbed:
    """Let models talk, one after another. options: see `serving`."""
    models = tuple(models)
    with serving(*models, **{"bank": BANK, **options}) as served:
        talks = Talks(served)
        for model in models:
            for stage in stages:
                talks.play(of(model.id, stage))
            assert served.passes(model.id) == {}
        assert served.harness.engine.snapshot.switches == 0
        return Undisturbed(talks.said, served.tier.status().reservations)


def of(model: str, asks: Iterable[Ask]) -> list[Ask]:
    """Return a model's requests."""
    return [ask for ask in asks if ask.model == model]


class Pace:
    """Lets the engine begin as many steps as it is told, or all. Streams are admitted and moved meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left: int | None = None  # steps that may begin; None: all

    @contextmanager
    def kept(self, served: Served) -> Iterator[Pace]:
        """Keep it, in an engine that runs."""
        choose = scheduler.choose_rows

        def chosen(*arguments: Any, **options: Any) -> list[tuple[Sequence, int]]:
            with self._changed:
                rows = choose(*arguments, **options) if self._left != 0 else []
                if rows and self._left is not None:
                    self._left -= 1
                    self._changed.notify_all()
                return rows

        self._wake = served.harness.engine.cancel
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "choose_rows", chosen)
            try:
                yield self
            finally:
                self.free()

    def hold(self) -> None:
        """Let no step begin from now on."""
        self._let(0)

    def free(self) -> None:
        """Let all steps begin from now on."""
        self._let(None)

    def steps(self, count: int) -> None:
        """Let so many steps begin; wait until they have."""
        self._let(count)
        with self._changed:
            assert self._changed.wait_for(lambda: self._left == 0, harness.PATIENCE), (
                "there are no more steps"
            )

    def _let(self, left: int | None) -> None:
        with self._changed:
            self._left = left
        self._wake("nobody")  # a turn for the engine


@dataclass
class Dance:
    """An engine whose models take turns. seconds: of the phases of each switch that was forced."""

    served: Served
    talks: Talks
    pace: Pace
    seconds: list[Mapping[str, float]] = field(default_factory=list)

    def force(self, model: str) -> None:
        """Bring a model to the device, whatever runs."""
        self.seconds.append(self.served.harness.engine.activate(model).result(harness.PATIENCE))
        self.served.harness.snapshot_when(lambda snapshot: snapshot.switch is None)
        assert self.on == model

    @property
    def snapshot(self) -> Snapshot:
        return self.served.harness.engine.snapshot

    @property
    def on(self) -> str:
        """Which model is on the device; the others are away."""
        seats = {model: state.seat for model, state in self.snapshot.models.items()}
        (there,) = (model for model, seat in seats.items() if seat == "on")
        assert set(seats.values()) <= {"on", "away"}, seats
        return there

    @property
    def other(self) -> str:
        """The one of two models that is away."""
        (other,) = self.snapshot.models.keys() - {self.on}
        return other

    def play_both(self, asks: Iterable[Ask]) -> None:
        """Play requests, those of each model while it is there; the other one is there then."""
        asks = tuple(asks)
        self.talks.play(of(self.on, asks))
        self.force(self.other)
        self.talks.play(of(self.on, asks))

    def live(self, model: str) -> int:
        """Return how many streams of a model have said something and are not through."""
        return sum(session.generated > 0 for session in self.snapshot.models[model].sessions)

    def until_live(self, streams: int) -> None:
        """Let the model that is there go on until so many of its streams have said something."""
        model = self.on
        while self.live(model) < streams:
            self.pace.steps(1)
            self.served.harness.snapshot_when(
                lambda snapshot: not any(session.moving for session in snapshot.models[model].sessions)
            )

    def check_lossless(self) -> None:
        """Check that nothing was computed by the CPU, and nothing twice."""
        for model in self.snapshot.models:
            assert self.served.passes(model) == {}
            assert self.served.refed(model) == 0
        assert self.snapshot.bank.dropped == 0


@contextmanager
def dancing(*models: ModelSettings, room: int, switch: SwitchSettings, **options: Any) -> Iterator[Dance]:
    """Run an engine whose device has `room` bytes. What a switch took or met bars no other for long.

    options: see `serving`.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(*models, vram_limit=room, switch=switch, **{"bank": BANK, **options}) as served,
        Pace().kept(served) as pace,
    ):
        patch.setattr(dance, "_HOLD", 0.0)
        patch.setattr(dance, "_BAR_S", 0.02)
        patch.setattr(dance, "_LONGEST_BAR_S", 0.02)
        yield Dance(served, Talks(served), pace)
