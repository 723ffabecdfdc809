"""The routes for models, whose answers OpenAI's clients and Anthropic's can read."""

from __future__ import annotations

from datetime import UTC, datetime

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
        models = [_model(entry) for entry in self._engine.catalogue.entries.values()]
        ends = (models[0].id, models[-1].id) if models else (None, None)
        return json_response(ModelList(data=models, first_id=ends[0], last_id=ends[1]))

    async def show_model(self, request: Request) -> Response:
        """Show one of them."""
        entry = self._roster.resolve(self._engine.catalogue, request.path_params["id"])
        return json_response(_model(entry))


def _model(entry: CatalogueEntry) -> Model:
    return Model(
        id=entry.id,
        created=entry.created,
        display_name=entry.id,
        created_at=datetime.fromtimestamp(entry.created, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=min(entry.context, entry.max_prompt_tokens),
        max_tokens=min(entry.context, entry.max_output_tokens),
    )
