"""From the engine thread to the asyncio loop: one wake-up per step, one mailbox per request.

The engine calls `Mailboxes.deliver` once per step, from its own thread. The loop sorts what came into
mailboxes and wakes the tasks that read them. Everything but `deliver` belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.requests import ClientDisconnect

from tierd.core import Event, FailedEvent
from tierd.errors import SlowReaderError


class Mailbox:
    """Events of one request, in order, for one reading task."""

    __slots__ = ("_cut", "_events", "_hung_up", "_loop", "_quiet", "_timer", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._quiet = False
        self._hung_up = False
        self._cut: Callable[[], None] | None = None

    def put(self, event: Event) -> None:
        """Add an event and wake the reader."""
        self._events.append(event)
        if self._cut and isinstance(event, FailedEvent) and isinstance(event.error, SlowReaderError):
            self._cut()
        self._wake()

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """Call `cut` when the stream was given up because its client does not read.

        The reader sits in a write to that client then, and would not learn of it from `take`.
        """
        self._cut = cut

    def hang_up(self) -> None:
        """Tell the reader that its client has gone."""
        self._hung_up = True
        self._wake()

    def remind(self, seconds: float) -> None:
        """From now on let `take` return an empty list when nothing came for a while.

        The while is between `seconds` and twice that: one timer runs per period, not per event.
        """
        self._quiet = True
        self._timer = self._loop.call_later(seconds, self._tick, seconds)

    async def take(self) -> list[Event]:
        """Wait for events and return all that came; empty only as `remind` says.

        Raises ClientDisconnect once the client has gone.
        """
        if not self._events and not self._hung_up:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._hung_up:
            raise ClientDisconnect
        events, self._events = self._events, []
        if events:
            self._quiet = False
        return events

    def close(self) -> None:
        """Stop the timer. Nothing may be called after it."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, seconds: float) -> None:
        if self._quiet:
            self._wake()
        self._quiet = True
        self._timer = self._loop.call_later(seconds, self._tick, seconds)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Mailboxes:
    """All open mailboxes. Made before the engine, which is given `deliver`; bound to a loop later."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, Mailbox] = {}

    def bind(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Choose the loop that reads. None: whatever is delivered from now on is dropped."""
        self._loop = loop

    def deliver(self, events: Sequence[tuple[str, Event]]) -> None:
        """Take one step's (request id, event) pairs. Called from any thread; never blocks."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._sort, events)

    def open(self, request_id: str) -> Mailbox:
        """Return a new mailbox; called before the request is submitted, so that nothing is missed."""
        mailbox = Mailbox(asyncio.get_running_loop())
        self._open[request_id] = mailbox
        return mailbox

    def close(self, request_id: str) -> None:
        """Throw the mailbox away; events that still come for it are dropped."""
        self._open.pop(request_id).close()

    def _sort(self, events: Sequence[tuple[str, Event]]) -> None:
        mailboxes = self._open
        for request_id, event in events:
            mailbox = mailboxes.get(request_id)
            if mailbox is not None:
                mailbox.put(event)
