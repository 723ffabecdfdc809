"""The admin API: how things stand, and commands. Never on the public listener.

Whoever may open the Unix socket is an administrator; over TCP a caller shows a token.
"""

from __future__ import annotations

import hmac
import time

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tierd import __version__
from tierd.engine import CatalogueEntry, Engine, ModelSnapshot, RegionState
from tierd.errors import UnauthorizedError
from tierd.http.admin.commands import CommandRoutes
from tierd.http.admin.operations import OperationRoutes, Operations
from tierd.http.doors import Doors
from tierd.http.errors import ErrorBoundary, route_error
from tierd.http.page import PageRoutes, is_page_file
from tierd.http.paths import exact
from tierd.http.roster import Roster
from tierd.http.shapes import json_response
from tierd.http.tier_views import Bank, Pages, PassesView, RegionsView, SessionsView, Switch, TierView
from tierd.metrics import Metrics


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One model of /status. running, waiting: streams.

    outcome: where it runs, cpu, gpu:rails or gpu:resident. device: what computes. decline: why not, or not
    whole, on a GPU, "" if it is or is not meant to. seat: how it stands with a GPU that models take turns on,
    on, leaving, away, arriving or lost; "" where it is not for one. paused: those of the running whose
    clients do not keep up. preempted: those that wait for pages again, which they gave up for others;
    preemptions: how often that has been.
    """

    id: str
    outcome: str
    device: str
    decline: str
    seat: str
    running: int
    paused: int
    preempted: int
    preemptions: int
    waiting: int
    pages: Pages


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """GET /status. draining: no request is admitted. loading: models that do not answer yet. unloaded: those
    that can be loaded by name.

    switch: of models on the GPU, that is under way; null while none is. switches: how many there were.
    restart_needed: settings that have changed in their file, but change with a restart only.
    """

    version: str
    uptime_s: float
    draining: bool
    models: list[ModelStatus]
    loading: list[str]
    unloaded: list[str]
    switch: Switch | None
    switches: int
    bank: Bank
    restart_needed: tuple[str, ...] = ()


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One model of /slots: what it is, what it was given, and how it stands.

    seat: see ModelStatus. context: positions of one stream. streams: most that run at a time. created: Unix
    seconds.
    regions, region_positions: of K/V on a GPU, and what each holds; 0 on the CPU.
    prefill_window: most rows of a step. prefill_continues: whether a prompt may be fed in several.
    placement: of each layer, in order, "device" where its large matmuls run there, else "cpu", for a model on
    rails; null for others.
    cpu_pages: where the model is on a GPU,
    of those of its streams that had to go to the CPU; null when none had.
    """

    id: str
    default: bool
    path: str
    architecture: str
    outcome: str
    device: str
    decline: str
    seat: str
    created: int
    context: int
    streams: int
    kv_dtype: str
    max_prompt_tokens: int
    max_output_tokens: int
    running: int
    paused: int
    preempted: int
    preemptions: int
    waiting: int
    pages: Pages
    regions: int
    region_positions: int
    prefill_window: int
    prefill_continues: bool
    placement: list[str] | None
    cpu_pages: Pages | None


class Slots(msgspec.Struct, frozen=True):
    """GET /slots."""

    slots: list[SlotStatus]


class AdminRoutes:
    """Endpoints that tell how things stand."""

    def __init__(self, engine: Engine, roster: Roster) -> None:
        self._engine = engine
        self._roster = roster
        self._started = time.monotonic()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/status", self.status),
            Route("/slots", self.slots),
            Route("/tier", self.tier),
            Route("/regions", self.regions),
            Route("/sessions", self.sessions),
            Route("/passes", self.passes),
        ]

    async def status(self, request: Request) -> Response:
        """Tell how the server stands."""
        snapshot, catalogue = self._engine.snapshot, self._engine.catalogue
        models = [
            ModelStatus(
                id=id,
                outcome=model.outcome,
                device=model.device,
                decline=model.decline,
                seat=model.seat,
                running=model.running,
                paused=model.paused,
                preempted=model.preempted,
                preemptions=model.preemptions.total(),
                waiting=model.waiting,
                pages=Pages.of(model),
            )
            for id, model in sorted(snapshot.models.items())
        ]
        return json_response(
            Status(
                version=__version__,
                uptime_s=round(time.monotonic() - self._started, 3),
                draining=bool(catalogue.closed),
                models=models,
                loading=list(catalogue.loading),
                unloaded=[id for id in self._roster.unloaded(catalogue) if id not in snapshot.models],
                switch=Switch.of(snapshot, time.monotonic()),
                switches=snapshot.switches,
                bank=Bank.of(snapshot.bank),
                restart_needed=self._roster.restart_needed,
            )
        )

    async def slots(self, request: Request) -> Response:
        """Tell all about the models that answer."""
        snapshot, catalogue = self._engine.snapshot, self._engine.catalogue
        return json_response(
            Slots(
                [
                    _slot(entry, snapshot.models[id])
                    for id, entry in catalogue.entries.items()
                    if id in snapshot.models
                ]
            )
        )

    async def tier(self, request: Request) -> Response:
        """Tell how the device stands."""
        return json_response(TierView.of(self._engine.tier))

    async def regions(self, request: Request) -> Response:
        """Tell what is in the regions of K/V on the device."""
        return json_response(RegionsView.of(self._engine.snapshot, time.monotonic()))

    async def sessions(self, request: Request) -> Response:
        """Tell what streams run, and where their K/V is."""
        return json_response(SessionsView.of(self._engine.snapshot))

    async def passes(self, request: Request) -> Response:
        """Tell what was handed to the CPU, and why."""
        return json_response(PassesView.of(self._engine.snapshot))


def _placement(snapshot: ModelSnapshot) -> list[str] | None:
    rails = snapshot.rails
    if rails is None:
        return None
    return ["device" if layer in rails.on_device else "cpu" for layer in rails.layers]


def _slot(entry: CatalogueEntry, snapshot: ModelSnapshot) -> SlotStatus:
    model = entry.settings
    return SlotStatus(
        id=entry.id,
        default=entry.default,
        path=str(model.path),
        architecture=entry.architecture,
        outcome=snapshot.outcome,
        device=snapshot.device,
        decline=snapshot.decline,
        seat=snapshot.seat,
        created=entry.created,
        context=entry.context,
        streams=model.streams,
        kv_dtype=model.codec,
        max_prompt_tokens=entry.max_prompt_tokens,
        max_output_tokens=entry.max_output_tokens,
        running=snapshot.running,
        paused=snapshot.paused,
        preempted=snapshot.preempted,
        preemptions=snapshot.preemptions.total(),
        waiting=snapshot.waiting,
        pages=Pages.of(snapshot),
        regions=sum(region.state is not RegionState.SCRATCH for region in snapshot.regions),
        region_positions=snapshot.region_positions,
        prefill_window=snapshot.prefill_window,
        prefill_continues=snapshot.prefill_continues,
        placement=_placement(snapshot),
        cpu_pages=None if snapshot.understudy is None else Pages.of_room(snapshot.understudy),
    )


class TokenGate:
    """Lets requests pass that show the token (`Authorization: Bearer TOKEN`), or ask for the page itself."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises UnauthorizedError without the token."""
        if scope["type"] == "http" and not is_page_file(scope["path"]):
            scheme, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._token):
                raise UnauthorizedError(
                    "this needs the admin token, as in `Authorization: Bearer TOKEN`; "
                    "it is in the file that admin.token_file names"
                )
        await self.app(scope, receive, send)


def create_admin_app(
    engine: Engine, roster: Roster, operations: Operations, metrics: Metrics, token: str | None = None
) -> Starlette:
    """Return the admin application; with a token it asks every caller for it.

    roster, metrics: those of the public application. operations: those of all admin applications.
    """
    gates = [] if token is None else [Middleware(TokenGate, token=token)]
    app = Starlette(
        routes=exact(
            [
                *AdminRoutes(engine, roster).routes(),
                *CommandRoutes(engine, roster, operations).routes(),
                *OperationRoutes(operations).routes(),
                *PageRoutes(engine, roster, metrics, admin=True).routes(),
            ]
        ),
        middleware=[Middleware(ErrorBoundary), Middleware(Doors), *gates],
        exception_handlers={HTTPException: route_error},
    )
    app.router.redirect_slashes = False
    return app
