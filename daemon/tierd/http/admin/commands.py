"""What an administrator can have done: models loaded, unloaded and switched to, requests admitted or not.

Each is an operation: it is answered with 202 and how it stands, and can be followed; see `operations`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.engine import CatalogueEntry, Engine
from tierd.engine.operation import DONE, Operation, OperationView
from tierd.errors import ConflictError, InvalidRequestError, ModelNotFoundError
from tierd.http.admin.operations import Operations, answer, patience
from tierd.http.aside import aside
from tierd.http.body import read_body
from tierd.http.errors import one_line
from tierd.http.roster import Roster
from tierd.http.shapes import json_response
from tierd.settings import DAY_S, ModelSettings

log = logging.getLogger(__name__)


class UnloadBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /models/unload. limit_s: how long its streams may take to end; None: as they do."""

    model: str
    limit_s: Annotated[float, msgspec.Meta(ge=0, le=DAY_S)] | None = None


class ActivateBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /models/activate."""

    model: str


class NoBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /drain and /resume, where a body is given."""


class FlushBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /flush, where a body is given. None: every model."""

    model: str | None = None


class Flushed(msgspec.Struct, frozen=True):
    """What a flush freed."""

    pages_freed: int


# The keys are those of a [[models]] table, which the settings check, and `activate`.
_load_decoder = msgspec.json.Decoder(dict[str, Any])
_unload_decoder = msgspec.json.Decoder(UnloadBody)
_activate_decoder = msgspec.json.Decoder(ActivateBody)
_no_decoder = msgspec.json.Decoder(NoBody)
_flush_decoder = msgspec.json.Decoder(FlushBody)


class CommandRoutes:
    """Endpoints that change how things stand."""

    def __init__(self, engine: Engine, roster: Roster, operations: Operations) -> None:
        self._engine = engine
        self._roster = roster
        self._operations = operations

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/models/load", self.load, methods=["POST"]),
            Route("/models/unload", self.unload, methods=["POST"]),
            Route("/models/activate", self.activate, methods=["POST"]),
            Route("/drain", self.drain, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/flush", self.flush, methods=["POST"]),
        ]

    async def load(self, request: Request) -> Response:
        """Serve a model of the roster, or of a file; by default it comes to the device at once."""
        seconds = patience(request)
        table = await read_body(request, _load_decoder)
        activate = table.pop("activate", True)
        if not isinstance(activate, bool):
            raise InvalidRequestError("activate must be true or false", param="activate")
        model = await aside(lambda: self._roster.wanted(table))
        self._check_free(model)
        operation = Operation("load", model.id)
        loaded = self._engine.load(model, operation, activate=activate)

        def known(loaded: Future[CatalogueEntry]) -> None:
            if loaded.exception() is None:
                self._roster.add(model)

        loaded.add_done_callback(known)
        return await self._begun(request, operation, loaded, seconds)

    async def unload(self, request: Request) -> Response:
        """End a model's streams, or wait for their ends, and free all that it has."""
        seconds = patience(request)
        body = await read_body(request, _unload_decoder)
        self._check_loaded(body.model)
        operation = Operation("unload", body.model)
        unloaded = self._engine.unload(body.model, operation, limit_s=body.limit_s)
        return await self._begun(request, operation, unloaded, seconds)

    async def activate(self, request: Request) -> Response:
        """Bring a model to the device now, whoever must leave."""
        seconds = patience(request)
        body = await read_body(request, _activate_decoder)
        self._check_loaded(body.model)
        operation = Operation("activate", body.model)
        return await self._begun(request, operation, self._engine.activate(body.model, operation), seconds)

    async def drain(self, request: Request) -> Response:
        """Admit no more requests; it is done once no stream runs, and what is kept is in files."""
        operation = Operation("drain")
        return await self._all(request, operation, lambda: self._engine.drain(operation))

    async def resume(self, request: Request) -> Response:
        """Admit requests again."""
        return await self._all(request, Operation("resume"), self._engine.resume)

    async def flush(self, request: Request) -> Response:
        """Forget what the prefix cache keeps, of one model or of all."""
        body = await read_body(request, _flush_decoder, when_empty=b"{}")
        return json_response(Flushed(await asyncio.wrap_future(self._engine.flush(body.model))))

    async def _all(
        self, request: Request, operation: Operation, begin: Callable[[], Future[None]]
    ) -> Response:
        seconds = patience(request)
        await read_body(request, _no_decoder, when_empty=b"{}")
        return await self._begun(request, operation, begin(), seconds)

    async def _begun(
        self, request: Request, operation: Operation, future: Future[Any], seconds: float | None
    ) -> Response:
        self._operations.add(operation, future)
        future.add_done_callback(lambda _: _note(operation.view))
        return await answer(request, operation, seconds)

    def _check_free(self, model: ModelSettings) -> None:
        """Raise ConflictError where a model of that name is there, or on its way."""
        catalogue = self._engine.catalogue
        if model.id in catalogue.loading:
            raise ConflictError(f"the model {model.id!r} is loading already", param="id")
        if model.id in catalogue.entries or model.id in self._engine.snapshot.models:
            raise ConflictError(
                f"a model called {model.id!r} is loaded already; unload it first, or give another `id`",
                param="id",
            )

    def _check_loaded(self, model: str) -> None:
        """Raise ModelNotFoundError or UnavailableError where a model is not there."""
        if model in self._engine.snapshot.models:
            return
        catalogue = self._engine.catalogue
        if model in self._roster.unloaded(catalogue):
            raise ModelNotFoundError(f"the model {model!r} is not loaded; load it first", param="model")
        self._roster.resolve(catalogue, model)


def _note(view: OperationView) -> None:
    """Log how an operation has ended."""
    about = f"operation={view.id} model={view.model or '-'}"
    if view.state == DONE:
        phases = " ".join(f"{phase.name}={phase.seconds:.3f}" for phase in view.phases)
        log.info("%s done in %.3f s %s", about, view.seconds, phases)
    else:
        log.warning("%s failed after %.3f s: %s", about, view.seconds, one_line(view.error))
