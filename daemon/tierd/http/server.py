"""uvicorn, run from within: one loop for all listeners, and an end in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from tierd.engine import Engine
from tierd.http.listeners import url
from tierd.http.protocol import Protocol, protocol
from tierd.settings import ServerSettings

log = logging.getLogger(__name__)

# An idle connection stays open longer than clients and proxies keep theirs, so that they close it.
KEEP_ALIVE_S = 75
# How long last events may take to reach slow clients, and the engine to finish its last step. uvicorn would
# cancel what is left a little later.
FLUSH_S = 2
CANCEL_S = 3
STOP_S = 10.0
EXIT_AT_ONCE = 1
USUAL_LIMITS = ServerSettings()


def _config(
    app: ASGIApp, *, lifespan: Literal["on", "off"], limits: ServerSettings = USUAL_LIMITS
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol(limits),
        ws="none",
        lifespan=lifespan,
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S + CANCEL_S,
    )


class AdminServer(uvicorn.Server):
    """Serves the admin application on a socket, TCP or Unix, in the loop of the Server that runs it."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        super().__init__(_config(app, lifespan="off"))
        self.listener = listener

    async def serve_until_stopped(self) -> None:
        """Serve until `should_exit` is set."""
        await self.serve([self.listener])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the Server."""
        yield


class Server(uvicorn.Server):
    """Serves an application on a socket; stops its engine when it is told to end.

    A first SIGTERM or SIGINT, or `drain`, ends it in order: what comes or waits is answered with 503, what
    runs may finish within `limits.drain_s`. Then, or at once with `stop`, it takes no more connections, the
    engine stops, so that every stream gets its last event, the admin servers end, and the loop. A second
    signal ends the process where it stands, with exit code 1.

    kept_open: others have its socket as well, and serve whoever connects once it begins to end.
    ending: it was told to end. on_ending is called then, once, in any thread, and must not block.
    """

    def __init__(
        self,
        app: ASGIApp,
        engine: Engine,
        listener: socket.socket,
        on_listening: Callable[[Server, str], None],
        admin: Sequence[AdminServer] = (),
        limits: ServerSettings = USUAL_LIMITS,
        on_ending: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(_config(app, lifespan="on", limits=limits))
        self.engine = engine
        self.listener = listener
        self.on_listening = on_listening
        self.on_ending = on_ending
        self.admin = admin
        self.drain_s = limits.drain_s
        self.kept_open = False
        self.ending = False
        self._admin_tasks: list[asyncio.Task[None]] = []
        self._drain_task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signalled = False

    def serve_until_stopped(self) -> None:
        """Serve; returns when all is over."""
        self.run(sockets=[self.listener])

    def stop(self) -> None:
        """End now, what runs included. May be called from any thread."""
        self._begin_to_end()
        self.should_exit = True

    def drain(self) -> None:
        """End once what runs has finished. May be called from any thread."""
        self._begin_to_end()
        if self._loop is None:  # nothing runs yet
            self.stop()
        else:
            self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_end(self) -> None:
        if not self.ending:
            self.ending = True
            self.on_ending()

    def _begin_to_drain(self) -> None:
        if self._drain_task is None:
            self._drain_task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        if self.kept_open:
            for server in self.servers:
                server.close()
        log.info("ending; what runs may take %g s to finish; a second signal ends at once", self.drain_s)
        try:
            await asyncio.wait_for(asyncio.wrap_future(self.engine.drain(ending=True)), self.drain_s)
        except TimeoutError:
            log.warning("ending what runs still after %g s", self.drain_s)
            self._cut(lambda connection: connection.flow.write_paused)
        self.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, then say where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._admin_tasks = [asyncio.create_task(server.serve_until_stopped()) for server in self.admin]
        self.on_listening(self, url(self.listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting and end the engine; uvicorn waits for the streams, which end with it."""
        loop = asyncio.get_running_loop()
        stopped = loop.run_in_executor(None, self.engine.stop, STOP_S)
        cut = loop.call_later(FLUSH_S, self._cut, lambda connection: True)
        await super().shutdown(sockets)
        cut.cancel()
        await stopped
        for server in self.admin:
            server.should_exit, server.force_exit = True, self.force_exit
        await asyncio.gather(*self._admin_tasks)

    def _cut(self, chosen: Callable[[Protocol], bool]) -> None:
        """Cut off the chosen connections, whatever is still unsent."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol) and chosen(connection):
                connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server, not the process: the caller chooses the exit code."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {name: signal.signal(name, self.handle_exit) for name in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: the first ends in order, a second at once."""
        if self._signalled:
            os._exit(EXIT_AT_ONCE)
        self._signalled = True
        self.drain()
