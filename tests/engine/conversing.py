"""Conversations that are held with a running engine, each as one client does: turn by turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from engine.null_slot import request
from tierd.core import Event, FailedEvent, FinishedEvent, Request, TextEvent
from tierd.engine import Engine
from tierd.metrics import Metrics
from tierd.settings import ModelSettings, Settings
from tierd.slot import Slot

MODEL = "m"
LONG_WAIT_S = 900.0

Question = TypeVar("Question")


@dataclass(frozen=True, kw_only=True)
class Talk(Generic[Question]):
    """What somebody asks, turn by turn; of each answer at most so many tokens."""

    questions: tuple[Question, ...]
    tokens: int
    temperature: float = 0.0
    seed: int = 0
    priority: int = 0
    ignore_eos: bool = False


# Makes the ids of a prompt, of the questions so far, and of the ids of the answers between them.
Prompts = Callable[[Ordered[Question], Ordered[Ordered[int]]], list[int]]


@dataclass(frozen=True)
class Answer:
    """The ids of an answer, the one that ended it among them, and how much of its prompt was known."""

    ids: tuple[int, ...]
    cached: int = field(compare=False)


class Answers:
    """Takes what an engine delivers."""

    def __init__(self) -> None:
        self._ids: defaultdict[str, list[int]] = defaultdict(list)
        self._wanted: dict[str, Future[Answer]] = {}

    def want(self, id: str) -> Future[Answer]:
        """Return what a request will be answered that is about to be submitted."""
        wanted = self._wanted[id] = Future()
        return wanted

    def deliver(self, events: Ordered[tuple[str, Event]]) -> None:
        for id, event in events:
            if isinstance(event, TextEvent | FinishedEvent):
                self._ids[id] += [told.token for told in event.logprobs]
            if isinstance(event, FinishedEvent):
                self._wanted.pop(id).set_result(Answer(tuple(self._ids.pop(id)), event.usage.cached_tokens))
            elif isinstance(event, FailedEvent):
                self._wanted.pop(id).set_exception(event.error)


@dataclass(frozen=True)
class House:
    """A running engine with one model. slot: to be looked at only while the engine rests."""

    engine: Engine
    slot: Slot
    answers: Answers

    def ask(self, asked: Request) -> Answer:
        answer = self.answers.want(asked.id)
        self.engine.submit(asked)
        return answer.result(LONG_WAIT_S)

    def hold(
        self,
        talks: Ordered[Talk[Question]],
        prompts: Prompts[Question],
        *,
        at_once: int,
        forgets: bool = False,
    ) -> list[list[Answer]]:
        """Hold conversations, so many side by side; return the answers of each.

        forgets: no rows are kept of any turn.
        """

        def one(n: int, talk: Talk[Question]) -> list[Answer]:
            answers: list[Answer] = []
            for turn in range(len(talk.questions)):
                ids = prompts(talk.questions[: turn + 1], [answer.ids for answer in answers])
                asked = request(
                    f"{n}.{turn}",
                    ids,
                    talk.tokens,
                    model=MODEL,
                    temperature=talk.temperature,
                    seed=talk.seed + turn,
                    ignore_eos=talk.ignore_eos,
                )
                answers.append(self.ask(replace(asked, priority=talk.priority, top_logprobs=0)))
                if forgets:
                    self.engine.flush().result(LONG_WAIT_S)
            return answers

        clients = ThreadPoolExecutor(at_once)
        try:
            return list(clients.map(one, range(len(talks)), talks))
        finally:
            clients.shutdown(cancel_futures=True)


@contextmanager
def conversing(
    model: ModelSettings, open_slot: Callable[[ModelSettings], Slot], settings: Settings, **parts: Any
) -> Iterator[House]:
    """Run an engine with a model. parts: what else it is given. Nobody holds a page at the end."""
    answers, slots = Answers(), []

    def opened(model: ModelSettings) -> Slot:
        slots.append(open_slot(model))
        return slots[0]

    engine = Engine(answers.deliver, open_slot=opened, metrics=Metrics("0.0"), settings=settings, **parts)
    engine.start()
    try:
        engine.load(model).result(LONG_WAIT_S)
        yield House(engine, slots[0], answers)
        engine.drain().result(LONG_WAIT_S)
    finally:
        assert engine.stop(LONG_WAIT_S)
