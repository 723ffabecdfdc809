"""uvicorn, run from within: one socket, one loop, and an end in good order."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from tierd.engine import Engine
from tierd.errors import SettingsError
from tierd.http.app import create_app
from tierd.http.mailboxes import Mailboxes
from tierd.metrics import Metrics
from tierd.settings import Settings, split_address

# An idle connection stays open longer than clients and proxies keep theirs, so that they close it.
KEEP_ALIVE_S = 75
# How long answers may take to reach slow clients, and the engine to finish its last step.
DRAIN_S = 5
STOP_S = 10.0


class Server(uvicorn.Server):
    """Serves an application on a socket; stops its engine when it is told to end.

    A first SIGTERM or SIGINT, or `stop`, ends it in order: no more connections, the engine stops, so
    every stream gets its last event, then the loop ends. A second signal does not wait for clients.
    """

    def __init__(
        self, app: ASGIApp, engine: Engine, listener: socket.socket, on_listening: Callable[[str], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="on",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )
        self.engine = engine
        self.listener = listener
        self.on_listening = on_listening

    def serve_until_stopped(self) -> None:
        """Serve; returns when all is over."""
        self.run(sockets=[self.listener])

    def stop(self) -> None:
        """End soon. May be called from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, then say where."""
        await super().startup(sockets)
        self.on_listening(url(self.listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting and end the engine; uvicorn waits for the streams, which end with it."""
        stopped = asyncio.get_running_loop().run_in_executor(None, self.engine.stop, STOP_S)
        await super().shutdown(sockets)
        await stopped

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
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(
    engine: Engine,
    mailboxes: Mailboxes,
    metrics: Metrics,
    settings: Settings,
    on_listening: Callable[[str], None],
) -> None:
    """Serve HTTP on `server.listen` until a signal ends it; the engine is stopped by then.

    mailboxes: those that the engine delivers to. on_listening: called with the server's URL once
    connections are accepted. Raises SettingsError when the address cannot be listened on.
    """
    with listen(settings.server.listen) as listener:
        app = create_app(engine, mailboxes, metrics, settings)
        Server(app, engine, listener, on_listening).serve_until_stopped()


def listen(address: str) -> socket.socket:
    """Return a socket bound to `HOST:PORT`; port 0 takes a free one. Raises SettingsError."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SettingsError(f"server.listen: cannot listen on {address}: {_reason(error)}") from error
    return listener


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop what uses it or choose another port"
    if isinstance(error, socket.gaierror) or error.errno is None:
        return f"{error.strerror}; check the host name"
    return os.strerror(error.errno)


def url(listener: socket.socket) -> str:
    """Return the address of a bound socket as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
