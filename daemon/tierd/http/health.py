"""The route for load balancers: answered from what the engine has published, waking nobody."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.engine import Engine
from tierd.errors import UnavailableError
from tierd.http.shapes import Health, json_response


class HealthRoutes:
    """Endpoint `/health`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/health", self.health)]

    async def health(self, request: Request) -> Response:
        """Tell whether a model can answer. Raises UnavailableError when none can."""
        catalogue = self._engine.catalogue
        models = list(catalogue.entries)
        if catalogue.closed or not models:
            raise UnavailableError(catalogue.closed or "no model is ready; try again later")
        return json_response(Health("ok", models))
