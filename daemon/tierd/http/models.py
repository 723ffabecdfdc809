"""The OpenAI routes for models."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.engine import CatalogueEntry, Engine
from tierd.http.roster import Roster
from tierd.http.shapes import Model, ModelList, json_response


class ModelRoutes:
    """Endpoints of `/v1/models`."""

    def __init__(self, engine: Engine, roster: Roster) -> None:
        self._engine = engine
        self._roster = roster

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{id:path}", self.show_model),
        ]

    async def list_models(self, request: Request) -> Response:
        """List the models that answer."""
        return json_response(ModelList(data=[_model(e) for e in self._engine.catalogue.entries.values()]))

    async def show_model(self, request: Request) -> Response:
        """Show one of them."""
        entry = self._roster.resolve(self._engine.catalogue, request.path_params["id"])
        return json_response(_model(entry))


def _model(entry: CatalogueEntry) -> Model:
    return Model(id=entry.id, created=entry.created)
