"""The public application: routes, and what stands around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from tierd.engine import Engine
from tierd.http.auth import KeyGate
from tierd.http.chat.routes import ChatRoutes
from tierd.http.completions.routes import CompletionRoutes
from tierd.http.doors import Doors, cors
from tierd.http.embeddings.routes import EmbeddingRoutes
from tierd.http.encoder import Encoder
from tierd.http.errors import ErrorBoundary, route_error
from tierd.http.health import HealthRoutes
from tierd.http.keys import Keys
from tierd.http.mailboxes import Mailboxes
from tierd.http.messages.errors import MessagesDialect
from tierd.http.messages.routes import MessageRoutes
from tierd.http.metrics import MetricsRoutes
from tierd.http.models import ModelRoutes
from tierd.http.openapi.document import openapi_route
from tierd.http.page import PageRoutes
from tierd.http.paths import exact
from tierd.http.quotas import QuotaGate, Quotas
from tierd.http.responses.routes import ResponsesRoutes
from tierd.http.responses.shelf import ResponsesShelf
from tierd.http.responses.store import ResponsesStore
from tierd.http.roster import Roster
from tierd.http.text import TextRoutes
from tierd.http.tracing import TraceGate
from tierd.http.turns.opening import Turns
from tierd.metrics import NO_MODEL, Metrics
from tierd.service.traces import Traces
from tierd.settings import Settings


def create_app(
    engine: Engine,
    mailboxes: Mailboxes,
    metrics: Metrics,
    roster: Roster,
    settings: Settings,
    traces: Traces | None = None,
) -> Starlette:
    """Return the application. mailboxes: those that the engine delivers to. traces: take spans of requests.

    What keys may take is in `state.quotas`.
    The engine must be stopped before the loop that serves the application closes. Raises SettingsError.
    """
    keys = None if settings.server.api_keys_file is None else Keys(settings.server.api_keys_file)
    quotas = Quotas(settings.keys)
    encoder = Encoder()
    turns = Turns(engine, mailboxes, encoder, roster)
    shelf = ResponsesShelf(ResponsesStore(settings.responses.capacity, settings.responses.memory_mb << 20))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        mailboxes.bind(asyncio.get_running_loop())
        yield
        await shelf.close()
        mailboxes.bind(None)
        encoder.close()

    def refused(outcome: str) -> None:
        metrics.requests.labels(NO_MODEL, outcome).inc()

    app = Starlette(
        routes=exact(
            [
                *ModelRoutes(engine, roster).routes(),
                *CompletionRoutes(engine, mailboxes, encoder, roster).routes(),
                *ChatRoutes(turns, encoder).routes(),
                *ResponsesRoutes(turns, shelf, settings.server.reader_timeout_s).routes(),
                *MessageRoutes(turns, engine, encoder, roster).routes(),
                *EmbeddingRoutes(engine, mailboxes, encoder, roster).routes(),
                *TextRoutes(engine, encoder, roster).routes(),
                *HealthRoutes(engine).routes(),
                *MetricsRoutes(metrics).routes(),
                openapi_route(guarded=keys is not None),
                *PageRoutes(engine, roster, metrics, guarded=keys is not None).routes(),
            ]
        ),
        middleware=[
            *cors(settings.server.cors_origins),
            Middleware(TraceGate, traces=traces or Traces()),
            Middleware(ErrorBoundary, refused=refused, dialects={"/v1/messages": MessagesDialect}),
            Middleware(Doors, hosts=settings.server.hosts, origins=settings.server.cors_origins),
            Middleware(KeyGate, keys=keys, share_prefix=settings.kv.share_prefix),
            Middleware(QuotaGate, quotas=quotas),
        ],
        exception_handlers={HTTPException: route_error},
        lifespan=lifespan,
    )
    app.state.quotas = quotas
    app.router.redirect_slashes = False
    return app
