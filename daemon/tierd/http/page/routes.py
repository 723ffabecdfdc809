"""The status page's routes, for either listener."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.engine import Engine
from tierd.http.page.files import INDEX, file_routes, page_files
from tierd.http.page.state import page_state
from tierd.http.roster import Roster
from tierd.http.shapes import json_response
from tierd.metrics import Metrics

STATE = "/page/state.json"


def is_page_file(path: str) -> bool:
    """Whether a path is that of the page itself, which tells nothing of what is served."""
    return path == "/" or path.removeprefix("/page/") in page_files().keys() - {INDEX}


class PageRoutes:
    """Endpoints `/` and `/page/…`: the page, and how things stand, once a second while somebody looks."""

    def __init__(
        self,
        engine: Engine,
        roster: Roster,
        metrics: Metrics,
        *,
        admin: bool = False,
        guarded: bool = False,
    ) -> None:
        """admin: it is the admin listener's. guarded: API keys are asked for, on the public one."""
        self._engine = engine
        self._roster = roster
        self._metrics = metrics
        self._admin = admin
        self._guarded = guarded
        self._started = time.monotonic()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(STATE, self.state), *file_routes()]

    async def state(self, request: Request) -> Response:
        """Tell how things stand; of streams only where no key could be asked for, or to an administrator."""
        state = page_state(
            self._engine,
            self._roster,
            self._metrics,
            started=self._started,
            admin=self._admin,
            guarded=self._guarded,
            sessions=self._admin or not self._guarded,
        )
        response = json_response(state)
        response.headers["cache-control"] = "no-store"
        return response
