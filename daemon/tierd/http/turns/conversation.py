"""The answers to a turn, as they come: (choice, piece) pairs until every choice has had its `Ended`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self

import msgspec

from tierd import core
from tierd.chat.reply import Arguments, Called, Piece, ReplyParser
from tierd.core import FinishedEvent, FinishReason, TextEvent
from tierd.engine import CatalogueEntry
from tierd.http.generation.choices import Choices
from tierd.http.turns.scoring import Scoring

EndReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Ended:
    """The last news of a choice.

    usage: its counts; the prompt's are the same for all of them. stop: the stop string that ended it, if any.
    """

    reason: EndReason
    usage: core.Usage
    stop: str | None = None


News = list[tuple[int, Piece | Ended]]


class Conversation:
    """The choices of a turn, as pieces. A context manager, which begins them and ends what is left of them.

    entry: the model. prompt_tokens: ids of the prompt. count: choices.
    """

    def __init__(
        self, entry: CatalogueEntry, choices: Choices, replies: Sequence[Reply], prompt_tokens: int
    ) -> None:
        self.entry = entry
        self.prompt_tokens = prompt_tokens
        self.count = len(replies)
        self._choices = choices
        self._replies = replies

    async def __aenter__(self) -> Self:
        await self._choices.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._choices.__aexit__(kind, error, trace)

    @property
    def ended(self) -> bool:
        """Whether every choice has had its Ended."""
        return self._choices.ended

    @property
    def under_way(self) -> bool:
        """See Choices."""
        return self._choices.under_way

    @property
    def cached_tokens(self) -> int:
        """See Choices."""
        return self._choices.cached_tokens

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """See Choices."""
        self._choices.cut_slow(cut)

    def remind(self, seconds: float) -> None:
        """See Choices."""
        self._choices.remind(seconds)

    async def take(self) -> News:
        """Wait for news and return (choice, piece or end), in order for each choice.

        May be called until `ended`; an empty list is a reminder. Raises as Exchange.take does.
        """
        while True:
            events = await self._choices.take()
            news: News = []
            for index, event in events:
                reply = self._replies[index]
                news += [(index, piece) for piece in reply.read(event)]
                if reply.cut:
                    self._choices.finish(index)
            if news or not events:
                return news


class Reply:
    """One choice on its way: the engine's events become pieces and an end."""

    def __init__(self, parser: ReplyParser, scoring: Scoring) -> None:
        self._parser = parser
        self._scoring = scoring
        self._calls = 0
        self._arguments: list[str] = []  # of the last call
        self._generated = 0
        self._reasoning = 0
        self._told = False

    @property
    def cut(self) -> bool:
        """Whether the stream is to be ended now; true once."""
        if self._parser.ended and not self._told:
            self._told = True
            return True
        return False

    def read(self, event: TextEvent | FinishedEvent) -> list[Piece | Ended]:
        """Return what becomes of an event."""
        if isinstance(event, TextEvent):
            return [] if self._parser.ended else self._noted(self._push(event))
        self._told = True
        usage = replace(event.usage, reasoning_tokens=self._reasoning)
        if self._parser.ended:
            # What the engine had sampled more until it heard of it depends on the moment.
            return [Ended(self._reason(event), replace(usage, completion_tokens=self._generated))]
        pieces = self._noted(self._scoring.rest(self._parser.finish()))
        return [*pieces, Ended(self._reason(event), usage, event.stop)]

    def _push(self, event: TextEvent) -> list[Piece]:
        before = self._parser.thinking
        pieces = self._parser.push(event.text)
        thinks = before or self._parser.thinking
        if thinks:
            self._reasoning += event.generated - self._generated
        if thinks or pieces or self._parser.ended:  # else it is open yet what the latest tokens are
            self._generated = event.generated
        return self._scoring.score(pieces, event.logprobs)

    def _noted(self, pieces: list[Piece]) -> list[Piece | Ended]:
        for piece in pieces:
            if isinstance(piece, Called):
                self._calls += 1
                self._arguments.clear()
            elif isinstance(piece, Arguments):
                self._arguments.append(piece.text)
        return list(pieces)

    def _reason(self, event: FinishedEvent) -> EndReason:
        if event.reason is FinishReason.LENGTH and not self._parser.ended:
            return "length"
        cut_off = event.stop is not None and not _is_json("".join(self._arguments))
        return "tool_calls" if self._calls and not cut_off else "stop"


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
