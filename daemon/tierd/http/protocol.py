"""uvicorn's side of a connection: bounds on what a client may take, and OpenAI's shape for every refusal.

What uvicorn leaves open, and this closes:

    a request that never ends     it must have come whole within `server.request_timeout_s`, else 408
    a head that never ends        at most MOST_HEAD_BYTES, else 431
    connections without number    at most `server.connections`, else 503
    requests without number       at most MOST_AHEAD behind the one that is being answered, else no answer
    clients that take nothing     cut off after UNREAD times `server.reader_timeout_s`
    bytes that are no HTTP        400
    a Host that is none, or many  400
    a wish for another protocol   the request is answered as it stands, the connection then closed
    a client of HTTP/1.0          no chunks: a body whose length nobody knows ends with the connection

A request that came whole is answered, whatever follows it; what follows is then not. None is answered twice:
one that was answered before its body came whole, and goes wrong there, ends the connection.
"""

from __future__ import annotations

import asyncio
import http
from collections import deque
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tierd.errors import RequestError, UnavailableError
from tierd.http.authority import settle_host
from tierd.http.errors import HeadTooLargeError, LateRequestError, MalformedRequestError, describe
from tierd.http.unread import Unread
from tierd.settings import ServerSettings

MOST_HEAD_BYTES = 64 << 10
MOST_AHEAD = 100
# How long a client that was refused may go on sending before it is cut off; if it were cut off at once, the
# answer could be lost on its way.
LINGER_S = 1.0
# Streams whose clients do not keep up are ended first, by the engine, which can say so.
UNREAD = 2
# ASGI extension: scope["extensions"][ABORT]["abort"]() cuts the connection off, whatever is still unsent.
ABORT = "tierd.abort"


def protocol(settings: ServerSettings) -> type[Protocol]:
    """Return the class of a listener's connections."""
    return type("LimitedProtocol", (Protocol,), {"settings": settings})


class Protocol(HttpToolsProtocol):
    """One connection. Overrides uvicorn's and httptools' callbacks; see there for what calls them when."""

    settings: ClassVar[ServerSettings]
    unread: Unread
    unanswered: deque[RequestResponseCycle]  # of which the first is being answered

    _deadline: asyncio.TimerHandle | None = None
    _arriving = False  # some of a request has come, and not all
    _in_head = False
    _head_bytes = 0
    _deaf = False  # what still comes is dropped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.unanswered = deque()
        self.unread = Unread(self.loop, transport, UNREAD * self.settings.reader_timeout_s)
        if len(self.connections) > self.settings.connections:
            self._refuse(UnavailableError("there are too many connections; try again later"))
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._tell_gone()
        super().connection_lost(exc)
        self._stop_waiting()
        self.unread.forget()

    def pause_writing(self) -> None:
        """The client has a lot to take yet."""
        super().pause_writing()
        self.unread.watch()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self.unread.forget()

    def on_response_complete(self) -> None:
        """An answer was written whole."""
        self.unanswered.popleft()
        super().on_response_complete()
        if self.pipeline:  # these first
            self.flow.pause_reading()
        if not self.unanswered:
            self.unread.watch()

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._await_request()
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
            if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(_head_too_large())
        except httptools.HttpParserUpgrade:
            self._deaf = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            what = error.__context__
            known = what if isinstance(what, RequestError) else MalformedRequestError("this is no HTTP/1.1")
            self._refuse(known)

    def on_message_begin(self) -> None:
        """A request has begun to come."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
        self._arriving = self._in_head = True
        self._head_bytes = 0
        self._await_request()
        if not self.flow.write_paused:
            self.unread.forget()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers has come, with the white space behind it."""
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Its head has come whole."""
        head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if head_bytes > MOST_HEAD_BYTES:
            raise _head_too_large()
        if len(self.unanswered) > MOST_AHEAD:
            raise MalformedRequestError("there are too many requests ahead of their answers")
        settle_host(self.headers, self.url, self.parser.get_http_version())
        super().on_headers_complete()
        self.unanswered.append(self.cycle)
        self._in_head = False
        if self.cycle.scope["http_version"] != "1.1":
            _answer_unframed(self.cycle)

    def on_message_complete(self) -> None:
        """It has come whole."""
        super().on_message_complete()
        self._arriving = False
        self._stop_waiting()

    def _await_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.settings.request_timeout_s, self._late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.flow.read_paused:  # the client waits for us
            self._await_request()
        elif self._arriving:
            limit = self.settings.request_timeout_s
            self._refuse(LateRequestError(f"the request has not come whole within {limit:g} s"))
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _refuse(self, error: RequestError) -> None:
        """Answer what cannot be served and close; stay silent where an earlier request is being answered."""
        self._stop_waiting()
        self._deaf = True
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self.cycle.more_body:
            self.cycle.keep_alive = False
            return
        answered = self._arriving and not self._in_head and not answering
        if self.pipeline or answered or (answering and self.cycle.response_started):
            self._hang_up()
            return
        answer = describe(error)
        head = [f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        head += ["content-type: application/json", f"content-length: {len(answer.body)}", "connection: close"]
        self.transport.write("\r\n".join(head).encode() + b"\r\n\r\n" + answer.body)
        self.transport.write_eof()
        self.unread.watch()
        if answering:
            self._tell_gone()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _hang_up(self) -> None:
        """Close the connection; whatever is being answered goes nowhere."""
        self._tell_gone()
        self.transport.close()
        self.unread.watch()

    def _tell_gone(self) -> None:
        """Let all that is to be answered know that nobody listens."""
        for cycle in self.unanswered:
            cycle.disconnected = True
            cycle.message_event.set()


def _answer_unframed(cycle: RequestResponseCycle) -> None:
    """Let the connection end with the answer: before HTTP/1.1 there are neither chunks nor interim answers.

    https://www.rfc-editor.org/rfc/rfc9112#section-6.1
    """
    framed = cycle.send
    unframed = False

    async def send(message: Any) -> None:
        nonlocal unframed
        if message["type"] == "http.response.start":
            unframed = not any(name == b"content-length" for name, _ in message["headers"])
            if unframed:
                cycle.chunked_encoding = False
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        elif unframed:
            cycle.expected_content_length = len(message["body"])
        await framed(message)

    cycle.send = send  # type: ignore[method-assign]
    cycle.keep_alive = cycle.waiting_for_100_continue = False


def _head_too_large() -> HeadTooLargeError:
    return HeadTooLargeError(f"the request's head is larger than {MOST_HEAD_BYTES} bytes")
