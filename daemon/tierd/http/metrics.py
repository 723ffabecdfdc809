"""The route for Prometheus: answered from what the engine has published, waking nobody."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.http.exposition import Exposition, accepted
from tierd.metrics import Metrics


class MetricsRoutes:
    """Endpoint `/metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._exposition = Exposition(metrics.registry)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/metrics", self.metrics)]

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the text format that is asked for; streams go on meanwhile."""
        form = accepted(request.headers.get("accept", ""))
        parts = []
        for part in self._exposition.parts(form):
            parts.append(part)
            await asyncio.sleep(0)
        return Response("".join(parts), media_type=form.media_type)
