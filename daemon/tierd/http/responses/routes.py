"""/v1/responses: OpenAI's newer API for conversations."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.errors import InvalidRequestError, ResponseNotFoundError
from tierd.http.auth import Visit
from tierd.http.body import read_body
from tierd.http.generation.logprobs import ChatScribe
from tierd.http.responses.draft import Draft, Names, names, response_id
from tierd.http.responses.input import read_input
from tierd.http.responses.log import EventLog, LogFrames, LogReader
from tierd.http.responses.memory import Memory
from tierd.http.responses.pages import number, page
from tierd.http.responses.requests import ResponsesBody
from tierd.http.responses.run import Line, Run, RunFrames
from tierd.http.responses.shapes import Deleted, InputTokens, Item, Status
from tierd.http.responses.shelf import ResponsesShelf
from tierd.http.responses.store import Kept
from tierd.http.responses.turn import check, head, read_turn
from tierd.http.shapes import json_response
from tierd.http.sse import EventStream
from tierd.http.turns.opening import Turns
from tierd.http.turns.turn import Turn

MOST_EVENTS = 10**9

_ENDED = ("completed", "incomplete", "failed")
_decoder = msgspec.json.Decoder(ResponsesBody)


class _Standing(msgspec.Struct):
    """What of a response says whether it may be cancelled."""

    background: bool
    status: Status


_standing = msgspec.json.Decoder(_Standing)


class ResponsesRoutes:
    """Endpoints of `/v1/responses…`."""

    def __init__(self, turns: Turns, shelf: ResponsesShelf, reader_timeout_s: float) -> None:
        """`reader_timeout_s`: how long a client of a response in the background may take for what is sent."""
        self._turns = turns
        self._reader_timeout_s = reader_timeout_s
        self._shelf = shelf

    def routes(self) -> list[Route]:
        """Return the routes."""
        path = "/v1/responses/{id}"
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/input_tokens", self.count, methods=["POST"]),
            Route(path, self.one, methods=["GET", "DELETE"]),
            Route(path + "/cancel", self.cancel, methods=["POST"]),
            Route(path + "/input_items", self.list_input),
        ]

    async def create(self, request: Request) -> Response:
        """Make a response: whole, as a stream, or in the background."""
        body = await read_body(request, _decoder)
        run = await self._run(body, request)
        if body.background:
            self._shelf.begin(run, request.state.lease)
            if run.log is not None:
                return self._read(run.log, 0, request)
        elif body.stream:
            frames = RunFrames(run)
            request.state.dialect = frames
            return EventStream(run, frames)
        else:
            await run.finish()
        return json_response(run.response())

    async def count(self, request: Request) -> Response:
        """Count the tokens of what a response would be made from."""
        body = await read_body(request, _decoder)
        turn, _ = self._turn(body, request, names(request.state.request_id))
        return json_response(InputTokens(input_tokens=await self._turns.count(turn)))

    async def one(self, request: Request) -> Response:
        """Show a response, or forget it."""
        return self.delete(request) if request.method == "DELETE" else self.retrieve(request)

    def retrieve(self, request: Request) -> Response:
        """Show a response, as far as it has come, or go on with its stream."""
        found, query = self._find(request), request.query_params
        if not _flag(query, "stream"):
            return _shown(found)
        if isinstance(found, Run):
            log = found.log
        else:
            log = EventLog(found.frames, ended=True) if found.frames else None
        if log is None:
            raise InvalidRequestError(
                "stream: only of a response that was made in the background, as a stream", param="stream"
            )
        start = number(query, "starting_after", -1, 0, MOST_EVENTS) + 1
        return self._read(log, start, request)

    async def list_input(self, request: Request) -> Response:
        """List the items that a response was given, those of the responses before it among them."""
        return json_response(page(self._find(request).input, request.query_params))

    async def cancel(self, request: Request) -> Response:
        """End a response in the background; one that was cancelled before is shown again.

        Raises InvalidRequestError, as OpenAI does, where it is in the foreground or has ended otherwise.
        """
        found = self._find(request)
        standing = found.response() if isinstance(found, Run) else _standing.decode(found.response)
        if not standing.background:
            raise InvalidRequestError(
                "id: this response was not made in the background, so it cannot be cancelled; "
                "close its connection or delete it",
                param="id",
            )
        if standing.status in _ENDED:
            raise InvalidRequestError(
                f"id: this response is {standing.status}, so it cannot be cancelled", param="id"
            )
        if isinstance(found, Run):
            found.cancel()
        return _shown(found)

    def delete(self, request: Request) -> Response:
        """Forget a response; one that runs ends."""
        id = request.path_params["id"]
        if not self._shelf.remove(_owner(request), id):
            raise _not_found(id)
        return json_response(Deleted(id=id))

    def _turn(self, body: ResponsesBody, request: Request, name: Names) -> tuple[Turn, list[Item]]:
        """Return what a body asks for, and the items that the model is given; `name` names new ones."""
        check(body)
        memory = Memory(self._shelf, _owner(request))
        before = memory.conversation(body.previous_response_id)
        given = read_input(body.input, name, memory.item)
        return read_turn(body, before, given), [*before, *given]

    async def _run(self, body: ResponsesBody, request: Request) -> Run:
        """Return what makes the response that a body asks for; it is on the shelf if it is to be stored."""
        name = names(request.state.request_id)
        turn, items = self._turn(body, request, name)
        line = Line(None if body.background else request.receive)
        id = response_id(request.state.request_id)
        conversation = await self._turns.open(turn, id, Request(request.scope, line.receive))
        entry = conversation.entry
        draft = Draft(head(body, id, int(time.time()), entry), ChatScribe(entry.tokenizer), name)
        log = EventLog() if body.background and body.stream else None
        run = Run(conversation, draft, line, _owner(request), items, log)
        if body.store is not False:
            self._shelf.add(run)
        return run

    def _read(self, log: EventLog, start: int, request: Request) -> Response:
        return EventStream(LogReader(log, start, request.receive, self._reader_timeout_s), LogFrames())

    def _find(self, request: Request) -> Run | Kept:
        id = request.path_params["id"]
        found = self._shelf.find(_owner(request), id)
        if found is None:
            raise _not_found(id)
        return found


def _owner(request: Request) -> str:
    """Return whose a response is: of the name of a key, whatever else keys share."""
    visit: Visit = request.state.visit
    return visit.name


def _shown(found: Run | Kept) -> Response:
    if isinstance(found, Run):
        return json_response(found.response())
    return Response(found.response, media_type="application/json")


def _flag(query: Mapping[str, str], field: str) -> bool:
    given = query.get(field, "false")
    if given not in ("true", "false"):
        raise InvalidRequestError(f"{field}: {given[:20]!r}; true or false", param=field)
    return given == "true"


def _not_found(id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"there is no response {id!r}, or none is kept any more", param="id")
