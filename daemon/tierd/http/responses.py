"""/v1/responses: OpenAI's newer API for conversations."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.errors import (
    ConflictError,
    InvalidRequestError,
    PreviousResponseNotFoundError,
    ResponseNotFoundError,
)
from tierd.http.body import read_body
from tierd.http.logprobs import ChatScribe
from tierd.http.responses_draft import Draft, Names, names
from tierd.http.responses_input import read_input, recall
from tierd.http.responses_pages import page
from tierd.http.responses_requests import ResponsesBody
from tierd.http.responses_run import Line, Run, RunFrames
from tierd.http.responses_shapes import Deleted, Item
from tierd.http.responses_shelf import ResponsesShelf
from tierd.http.responses_store import Kept
from tierd.http.responses_turn import check, head, read_turn
from tierd.http.shapes import json_response
from tierd.http.sse import EventStream
from tierd.http.turn import Turns

# Whose responses are, while nobody is told apart.
EVERYBODY = ""

_decoder = msgspec.json.Decoder(ResponsesBody)


class ResponsesRoutes:
    """Endpoints of `/v1/responses…`."""

    def __init__(self, turns: Turns, shelf: ResponsesShelf) -> None:
        self._turns = turns
        self._shelf = shelf

    def routes(self) -> list[Route]:
        """Return the routes."""
        path = "/v1/responses/{id}"
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route(path, self.one, methods=["GET", "DELETE"]),
            Route(path + "/cancel", self.cancel, methods=["POST"]),
            Route(path + "/input_items", self.list_input),
        ]

    async def create(self, request: Request) -> Response:
        """Make a response: whole, as a stream, or in the background."""
        body = await read_body(request, _decoder)
        check(body)
        name = names(request.state.request_id)
        before = self._recall(body.previous_response_id, name)
        given = read_input(body.input, name)
        turn = read_turn(body, before, given)
        line = Line(None if body.background else request.receive)
        id = f"resp_{request.state.request_id}"
        conversation = await self._turns.open(turn, id, Request(request.scope, line.receive))
        entry = conversation.entry
        draft = Draft(head(body, id, int(time.time()), entry), ChatScribe(entry.tokenizer), name)
        run = Run(conversation, draft, line, EVERYBODY, [*before, *given])
        if body.store is not False:
            self._shelf.add(run)
        if body.background:
            self._shelf.begin(run)
        elif body.stream:
            frames = RunFrames(run)
            request.state.dialect = frames
            return EventStream(run, frames)
        else:
            await run.finish()
        return json_response(run.response())

    async def one(self, request: Request) -> Response:
        """Show a response, or forget it."""
        return self.delete(request) if request.method == "DELETE" else self.retrieve(request)

    def retrieve(self, request: Request) -> Response:
        """Show a response, as far as it has come."""
        if request.query_params.get("stream", "false") != "false":
            raise InvalidRequestError(
                "stream: a response is not streamed once more; ask for it without", param="stream"
            )
        return _shown(self._find(request))

    async def list_input(self, request: Request) -> Response:
        """List the items that a response was given, those of the responses before it among them."""
        return json_response(page(self._find(request).input, request.query_params))

    async def cancel(self, request: Request) -> Response:
        """End a response that runs; one that has ended stays as it is."""
        found = self._find(request)
        if isinstance(found, Run):
            found.cancel()
        return _shown(found)

    def delete(self, request: Request) -> Response:
        """Forget a response; one that runs ends."""
        id = request.path_params["id"]
        if not self._shelf.remove(EVERYBODY, id):
            raise _not_found(id)
        return json_response(Deleted(id=id))

    def _find(self, request: Request) -> Run | Kept:
        id = request.path_params["id"]
        found = self._shelf.find(EVERYBODY, id)
        if found is None:
            raise _not_found(id)
        return found

    def _recall(self, id: str | None, name: Names) -> list[Item]:
        """Return what the model was given for a response, and what it gave."""
        if id is None:
            return []
        param = "previous_response_id"
        found = self._shelf.find(EVERYBODY, id)
        if found is None:
            raise PreviousResponseNotFoundError(
                f"{param}: there is no response {id!r}, or none is kept any more; send the whole input",
                param=param,
            )
        if isinstance(found, Run):
            raise ConflictError(
                f"{param}: {id!r} is on its way; go on from it once it has ended", param=param
            )
        return recall(found, name)


def _shown(found: Run | Kept) -> Response:
    if isinstance(found, Run):
        return json_response(found.response())
    return Response(found.response, media_type="application/json")


def _not_found(id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"there is no response {id!r}, or none is kept any more", param="id")
