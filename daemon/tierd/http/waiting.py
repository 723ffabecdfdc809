"""Requests that wait while the server starts, in place of being told so.

For a server whose socket outlives it: who connected while there was none has waited already, and is served.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from tierd.http.auth import is_open


class WaitingRoom:
    """Lets requests wait until it is opened, but for those of who watches."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._opened: Future[None] = Future()
        self._opened.set_running_or_notify_cancel()

    def open(self) -> None:
        """Let them pass from now on. May be called from any thread, and again."""
        with suppress(InvalidStateError):  # it has been opened before
            self._opened.set_result(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and not is_open(scope["path"]) and not self._opened.done():
            await asyncio.shield(asyncio.wrap_future(self._opened))
        await self.app(scope, receive, send)
