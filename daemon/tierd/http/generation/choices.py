"""The streams of one HTTP request: as many as it asks for choices, which end together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from tierd.core import FinishedEvent, TextEvent, Usage
from tierd.http.generation.exchange import Exchange

News = list[tuple[int, TextEvent | FinishedEvent]]


class Choices:
    """Enters exchanges, and leaves them together; what one of them raises ends them all."""

    def __init__(self, exchanges: Sequence[Exchange], at_once: int | None = None) -> None:
        """`exchanges`: at least one; choice i is the i-th. at_once: most that run beside one another."""
        self._exchanges = exchanges
        self._at_once = at_once or len(exchanges)
        self._stack = AsyncExitStack()
        self._waiting: dict[asyncio.Task[list[TextEvent | FinishedEvent]], int] = {}
        self._begun = 0
        self._open: set[int] = set()
        self._prepare: list[Callable[[Exchange], None]] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        await self._stack.aclose()

    @property
    def ended(self) -> bool:
        """Whether the last event of every choice was returned."""
        return not self._open and self._begun == len(self._exchanges)

    @property
    def under_way(self) -> bool:
        """Whether all that were begun have left the queue, or wait for their model to come to its device."""
        return all(exchange.started or exchange.away for exchange in self._exchanges[: self._begun])

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompt did not have to be fed, as far as is known; see core.Usage."""
        return self._exchanges[0].cached_tokens

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """Call `cut` to close the connection when its client does not read; see Mailbox.cut_slow."""
        self._each(lambda exchange: exchange.cut_slow(cut))

    def remind(self, seconds: float) -> None:
        """Let `take` return an empty list now and then while nothing comes; see Mailbox.remind."""
        self._each(lambda exchange: exchange.remind(seconds))

    def finish(self, index: int) -> None:
        """Have a choice end now, as if its model had ended it; see Exchange.finish."""
        self._exchanges[index].finish()

    async def take(self) -> News:
        """Wait for events and return (choice, event), in order for each choice; see Exchange.take.

        May be called until `ended`.
        """
        if len(self._exchanges) == 1:
            return self._note(0, await self._exchanges[0].take())
        await self._begin(self._stack)
        # No choice's next events are taken before the last ones are handed over.
        for index in self._open.difference(self._waiting.values()):
            self._waiting[asyncio.create_task(self._exchanges[index].take())] = index
        done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        news: News = []
        for task in sorted(done, key=self._waiting.__getitem__):
            news += self._note(self._waiting.pop(task), task.result())
        return news

    async def _begin(self, stack: AsyncExitStack) -> None:
        """Enter as many exchanges as may run."""
        while self._begun < len(self._exchanges) and len(self._open) < self._at_once:
            exchange = self._exchanges[self._begun]
            await stack.enter_async_context(exchange)
            for prepare in self._prepare:
                prepare(exchange)
            self._open.add(self._begun)
            self._begun += 1

    def _each(self, prepare: Callable[[Exchange], None]) -> None:
        """Prepare every exchange, now or when it is entered."""
        self._prepare.append(prepare)
        for exchange in self._exchanges[: self._begun]:
            prepare(exchange)

    def _note(self, index: int, events: list[TextEvent | FinishedEvent]) -> News:
        if events and isinstance(events[-1], FinishedEvent):
            self._open.discard(index)
        return [(index, event) for event in events]


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Return the counts of a whole request, by choice given: they share the prompt, which counts once.

    They generate beside one another, so that they take as long as the longest does.
    """
    first = usages[0]
    return Usage(
        first.prompt_tokens,
        sum(usage.completion_tokens for usage in usages),
        first.cached_tokens,
        sum(usage.reasoning_tokens for usage in usages),
        first.prompt_s,
        max(usage.generation_s for usage in usages),
    )


def list_usage(usages: Sequence[Usage], choices: int) -> Usage:
    """Return the counts of a list of prompts, each with so many choices, in order; times are added up."""
    prompts = [total_usage(usages[first : first + choices]) for first in range(0, len(usages), choices)]
    return Usage(
        sum(usage.prompt_tokens for usage in prompts),
        sum(usage.completion_tokens for usage in prompts),
        sum(usage.cached_tokens for usage in prompts),
        sum(usage.reasoning_tokens for usage in prompts),
        sum(usage.prompt_s for usage in prompts),
        sum(usage.generation_s for usage in prompts),
    )
