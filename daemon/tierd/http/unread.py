"""Who takes nothing of what it was sent loses its connection, which it could hold for ever else."""

from __future__ import annotations

import asyncio


class Unread:
    """What a connection has been sent and its client has not taken: it must become less in time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, patience_s: float
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._patience_s = patience_s
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin to wait for the client where anything is unsent. Nothing may be sent meanwhile."""
        self.forget()
        unsent = self._transport.get_write_buffer_size()
        if unsent:
            self._timer = self._loop.call_later(self._patience_s, self._look, unsent)

    def forget(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, before: int) -> None:
        if self._transport.get_write_buffer_size() < before:
            self.watch()
        else:
            self._transport.abort()
