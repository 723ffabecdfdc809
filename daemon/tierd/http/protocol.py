"""uvicorn's side of a connection."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# ASGI extension: scope["extensions"][ABORT]["abort"]() cuts the connection off, whatever is still unsent.
ABORT = "tierd.abort"


class Protocol(HttpToolsProtocol):
    """Lets the application give up on a client that does not read: closing would wait for it to."""

    def on_message_begin(self) -> None:
        """A request has begun to come."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
