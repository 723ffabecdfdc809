"""The streams of one HTTP request: as many as it asks for choices, begun and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from tierd.core import FinishedEvent, TextEvent, Usage
from tierd.http.exchange import Exchange

News = list[tuple[int, TextEvent | FinishedEvent]]


class Choices:
    """Enters all exchanges and leaves them together; what one of them raises ends them all."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        """`exchanges`: at least one; choice i is the i-th."""
        self._exchanges = exchanges
        self._stack = AsyncExitStack()
        self._waiting: dict[asyncio.Task[list[TextEvent | FinishedEvent]], int] = {}
        self._open = set(range(len(exchanges)))

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for exchange in self._exchanges:
                await stack.enter_async_context(exchange)
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
        return not self._open

    @property
    def under_way(self) -> bool:
        """Whether all choices have left the queue, or wait for their model to come to its device."""
        return all(exchange.started or exchange.away for exchange in self._exchanges)

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """Call `cut` to close the connection when its client does not read; see Mailbox.cut_slow."""
        for exchange in self._exchanges:
            exchange.cut_slow(cut)

    def remind(self, seconds: float) -> None:
        """Let `take` return an empty list now and then while nothing comes; see Mailbox.remind."""
        for exchange in self._exchanges:
            exchange.remind(seconds)

    def finish(self, index: int) -> None:
        """Have a choice end now, as if its model had ended it; see Exchange.finish."""
        self._exchanges[index].finish()

    async def take(self) -> News:
        """Wait for events and return (choice, event), in order for each choice; see Exchange.take.

        May be called until `ended`.
        """
        if len(self._exchanges) == 1:
            return self._note(0, await self._exchanges[0].take())
        # No choice's next events are taken before the last ones are handed over.
        for index in self._open.difference(self._waiting.values()):
            self._waiting[asyncio.create_task(self._exchanges[index].take())] = index
        done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        news: News = []
        for task in sorted(done, key=self._waiting.__getitem__):
            news += self._note(self._waiting.pop(task), task.result())
        return news

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
