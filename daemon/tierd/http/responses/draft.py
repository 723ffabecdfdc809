"""A response while it is being made: pieces of the answer become its output and its events. Pure."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.http.errors import ErrorDetail
from tierd.http.generation.logprobs import ChatScribe
from tierd.http.responses.events import (
    Completed,
    Created,
    Event,
    Failed,
    Fault,
    Incomplete,
    InProgress,
)
from tierd.http.responses.items import Growing, GrowingCall, GrowingMessage, GrowingReasoning
from tierd.http.responses.requests import ItemStatus
from tierd.http.responses.shapes import (
    IncompleteDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
    Status,
)
from tierd.http.turns.conversation import Ended

_NAMED = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{4,}")

# Makes ids: of what begins so, each another one.
Names = Callable[[str], str]


def response_id(request_id: str) -> str:
    """Return the id of a request's response."""
    return f"resp_{request_id}"


def names(request_id: str) -> Names:
    """Return what names the items of a request and of its response."""
    numbers = itertools.count()
    return lambda kind: f"{kind}_{request_id}{next(numbers):04x}"


def response_of(item_id: str) -> str | None:
    """Return the id of the response that has named an item so, None where none has."""
    named = _NAMED.fullmatch(item_id)
    return None if named is None else response_id(named[1])


class Draft:
    """One response. Its output is a row of items, of which only the last one grows.

    over: it has ended, in whichever way; nothing comes after that.
    """

    def __init__(
        self, head: ResponseObject, scribe: ChatScribe, name: Names, clock: Callable[[], float] = time.time
    ) -> None:
        """`head`: the response before it has any output."""
        self._head = head
        self._scribe = scribe
        self._name = name
        self._clock = clock
        self._numbers = itertools.count()
        self._items: list[Growing] = []
        self._open = False  # the last of them grows
        self.over = False

    def response(self) -> ResponseObject:
        """Return the response, as far as it has come."""
        return msgspec.structs.replace(self._head, output=[growing.item() for growing in self._items])

    def begin(self) -> list[Event]:
        """Return the events of the beginning; called at most once, before any other."""
        self._head = msgspec.structs.replace(self._head, status="in_progress")
        response = self.response()
        return [
            Created(sequence_number=next(self._numbers), response=response),
            InProgress(sequence_number=next(self._numbers), response=response),
        ]

    def push(self, piece: Piece | Ended) -> list[Event]:
        """Return the events of a piece of the answer, or of its end."""
        if isinstance(piece, Ended):
            return self._end(piece)
        if self._items and self._items[-1].takes(piece):
            return self._items[-1].add(piece, self._numbers)
        events = self._close("completed") + self._grow(piece)
        return events + self._items[-1].add(piece, self._numbers)

    def cancel(self) -> list[Event]:
        """End it because nobody wants more of it; return the events of that."""
        events = self._close("incomplete")
        self._finish("cancelled")
        return [*events, Incomplete(sequence_number=next(self._numbers), response=self.response())]

    def fail(self, status: int, error: ErrorDetail) -> list[Event]:
        """End it by an error, of such an HTTP status; return the events of that."""
        events = self._close("incomplete")
        events.append(
            Fault(
                sequence_number=next(self._numbers), code=error.code, message=error.message, param=error.param
            )
        )
        if not self.over:
            self._finish("failed", error=ResponseError(_code(status), error.message))
            events.append(Failed(sequence_number=next(self._numbers), response=self.response()))
        return events

    def _end(self, end: Ended) -> list[Event]:
        cut = end.reason == "length"
        events: list[Event] = []
        if not self._items:  # clients look for a text
            events += self._grow(Said(""))
        events += self._close("incomplete" if cut else "completed")
        usage = ResponseUsage.of(end.usage)
        if cut:
            self._finish("incomplete", usage=usage, incomplete_details=IncompleteDetails("max_output_tokens"))
            return [*events, Incomplete(sequence_number=next(self._numbers), response=self.response())]
        self._finish("completed", usage=usage, completed_at=int(self._clock()))
        return [*events, Completed(sequence_number=next(self._numbers), response=self.response())]

    def _grow(self, piece: Piece) -> list[Event]:
        """Begin the item that a piece is the first of."""
        index = len(self._items)
        match piece:
            case Said():
                self._items.append(GrowingMessage(self._name("msg"), index, self._scribe))
            case Thought():
                self._items.append(GrowingReasoning(self._name("rs"), index))
            case Called():
                self._items.append(GrowingCall(self._name("fc"), index, piece))
            case Arguments():
                raise AssertionError("arguments of a call that is over, or never was")
        self._open = True
        return self._items[-1].begin(self._numbers)

    def _close(self, status: ItemStatus) -> list[Event]:
        """End the item that grows, if one does."""
        if not self._open:
            return []
        self._open = False
        return self._items[-1].end(status, self._numbers)

    def _finish(self, status: Status, **known: object) -> None:
        self.over = True
        self._head = msgspec.structs.replace(self._head, status=status, **known)


def _code(status: int) -> Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]:
    """Return OpenAI's word for what an HTTP status says."""
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if status == 400 else "server_error"
