"""Routes for those who watch: answered from what the engine has published, waking nobody."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.engine import Engine
from tierd.errors import UnavailableError
from tierd.http.shapes import Health, json_response
from tierd.metrics import Metrics


class HealthRoutes:
    """Endpoints `/health` and `/metrics`."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/health", self.health), Route("/metrics", self.metrics)]

    async def health(self, request: Request) -> Response:
        """Tell whether a model can answer. Raises UnavailableError when none can."""
        catalogue = self._engine.catalogue
        models = list(catalogue.entries)
        if catalogue.closed or not models:
            raise UnavailableError(catalogue.closed or "no model is ready; try again later")
        return json_response(Health("ok", models))

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)
