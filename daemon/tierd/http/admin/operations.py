"""Work that takes long, as HTTP shows it: a list, a view, a stream of views, an answer that waits."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tierd.engine.operation import DONE, RUNNING, Operation, OperationView
from tierd.errors import InvalidRequestError, OperationNotFoundError
from tierd.http.errors import code_of, describe, one_line
from tierd.http.shapes import json_response
from tierd.http.sse import HEADERS, KEEP_ALIVE, KEEP_ALIVE_S, frame

KEPT = 256
# A stream of views has one in so many seconds at most, but for the last one.
EVENT_S = 0.1
LONGEST_WAIT_S = 86400


class OperationStatus(OperationView, frozen=True, kw_only=True):
    """An operation as JSON. code: what clients may go by where it failed, see `code_of`; else ""."""

    code: str = ""

    @classmethod
    def of(cls, operation: Operation) -> OperationStatus:
        """Return how an operation stands now."""
        view, failure = operation.view, operation.failure
        code = None if failure is None else code_of(failure)
        told = msgspec.structs.asdict(view) | {"error": one_line(view.error), "code": code or ""}
        return cls(**told)


class Operations:
    """Those that run, and those that ended last. For any thread."""

    def __init__(self, kept: int = KEPT) -> None:
        """kept: how many that have ended are remembered."""
        self._kept = kept
        self._lock = threading.Lock()
        self._known: dict[str, Operation] = {}

    def add(self, operation: Operation, future: Future[Any]) -> None:
        """Take in an operation, which ends as a future does."""
        with self._lock:
            self._known[operation.id] = operation
        operation.follow(future)
        future.add_done_callback(lambda _: self._forget())

    def find(self, id: str) -> Operation:
        """Return an operation. Raises OperationNotFoundError."""
        with self._lock:
            operation = self._known.get(id)
        if operation is None:
            raise OperationNotFoundError(
                f"there is no operation {id!r}; of those that have ended the last {self._kept} are known"
            )
        return operation

    def all(self) -> list[OperationStatus]:
        """Return all, in the order in which they began."""
        with self._lock:
            return [OperationStatus.of(operation) for operation in self._known.values()]

    def _forget(self) -> None:
        with self._lock:
            ended = [id for id, operation in self._known.items() if operation.ended]
            for id in ended[: -self._kept]:
                del self._known[id]


class Follower:
    """Lets a handler wait for an operation; one that waits learns of it when its client hangs up.

    receive: the ASGI channel, its body read or of no interest.
    """

    def __init__(self, operation: Operation, receive: Receive) -> None:
        self._operation = operation
        self._receive = receive
        self._hung_up = False
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._operation.watch(self._tell)
        self._watch = asyncio.create_task(self._watch_client())
        self._note()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        self._operation.unwatch(self._tell)

    def look(self) -> OperationStatus:
        """Return how the operation stands; `changed` waits for what comes after that."""
        self._changed.clear()
        return OperationStatus.of(self._operation)

    async def changed(self, seconds: float | None) -> bool:
        """Wait for a change, at most so long; None: as it takes. Raises ClientDisconnect."""
        return await self._wait(self._changed, seconds)

    async def ended(self, seconds: float | None) -> bool:
        """Wait for the end, at most so long; None: as it takes. Raises ClientDisconnect."""
        return await self._wait(self._ended, seconds)

    async def _wait(self, event: asyncio.Event, seconds: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        if self._hung_up:
            raise ClientDisconnect
        return event.is_set()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        self._changed.set()
        if self._operation.ended:
            self._ended.set()

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._hung_up = True
        self._changed.set()
        self._ended.set()


class OperationStream(Response):
    """Sends an operation's view as an event, again with each change, and ends with its last one."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end. Raises ClientDisconnect."""
        async with Follower(self.operation, receive) as follower:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            sent: OperationStatus | None = None
            running = True
            while running:
                view = follower.look()
                running = view.state == RUNNING
                timeless = msgspec.structs.replace(view, seconds=0.0)
                body = KEEP_ALIVE if timeless == sent else frame(view)
                sent = timeless
                await send({"type": "http.response.body", "body": body, "more_body": running})
                if running and not await follower.ended(EVENT_S):
                    await follower.changed(KEEP_ALIVE_S)


class OperationList(msgspec.Struct, frozen=True):
    """GET /operations: those that run and those that ended last, in the order in which they began."""

    operations: list[OperationStatus]


class OperationRoutes:
    """Endpoints `/operations…`."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/operations", self.list), Route("/operations/{id}", self.show)]

    async def list(self, request: Request) -> Response:
        """List the operations."""
        return json_response(OperationList(self._operations.all()))

    async def show(self, request: Request) -> Response:
        """Show one of them, or follow it to its end as an event stream."""
        operation = self._operations.find(request.path_params["id"])
        if "text/event-stream" in request.headers.get("accept", ""):
            return OperationStream(operation)
        return json_response(OperationStatus.of(operation))


async def answer(request: Request, operation: Operation, seconds: float | None) -> Response:
    """Answer who has begun an operation: how it ended, or 202 if it has not within so many seconds.

    seconds: see `patience`. Raises ClientDisconnect; the operation goes on.
    """
    if seconds != 0:
        async with Follower(operation, request.receive) as follower:
            await follower.ended(seconds)
    view = OperationStatus.of(operation)
    if operation.failure is not None:
        response = describe(operation.failure).response()
    else:
        response = json_response(view, 200 if view.state == DONE else 202)
    response.headers["location"] = f"/operations/{view.id}"
    return response


def patience(request: Request) -> float | None:
    """Return how many seconds a request waits for the end of what it begins; None: as it takes.

    `?wait=true` or `?wait=false`, or RFC 7240's `Prefer: wait=SECONDS`; 0 where it is silent.
    Raises InvalidRequestError.
    """
    wait = request.query_params.get("wait")
    if wait is not None:
        if wait not in ("true", "false"):
            raise InvalidRequestError("wait must be true or false", param="wait")
        return None if wait == "true" else 0
    preferred = re.search(r"(?:^|,)\s*wait\s*=\s*(\d{1,9})\s*(?:[,;]|$)", request.headers.get("prefer", ""))
    return min(int(preferred[1]), LONGEST_WAIT_S) if preferred else 0
