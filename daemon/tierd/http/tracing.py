"""Each request as a span of a trace: that of its `traceparent` header, or one of its own.

The answer has such a header as well, with the request's span, which `scope["state"]["traceparent"]` has too,
"" where there is no trace.
"""

from __future__ import annotations

import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierd.http.auth import is_open
from tierd.http.errors import one_line
from tierd.service.trace_context import TRACE_DIGITS, TraceContext, received
from tierd.service.traces import Span, Traces, new_span


class TraceGate:
    """Around all that answers requests."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self.app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context = self._context(scope) if scope["type"] == "http" else None
        if context is None:
            scope.setdefault("state", {})["traceparent"] = ""
            await self.app(scope, receive, send)
            return
        span, status, start = new_span(), 0, time.monotonic()
        header = context.header(span)
        scope.setdefault("state", {})["traceparent"] = header

        async def telling_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"traceparent", header.encode())]
            await send(message)

        try:
            await self.app(scope, receive, telling_send)
        finally:
            if context.sampled:
                self._traces.record(_described(scope, context, span, status, start))

    def _context(self, scope: Scope) -> TraceContext | None:
        context = received(scope["headers"])
        if context is None and self._traces.begins and not is_open(scope["path"]):
            return TraceContext(secrets.token_hex(TRACE_DIGITS // 2), "", True)
        return context


def _described(scope: Scope, context: TraceContext, span: str, status: int, start: float) -> Span:
    """Return a request's span. Its name has the path where that is one of few."""
    method, path = scope["method"], one_line(scope["path"])
    fixed = "endpoint" in scope and not scope.get("path_params")
    return Span(
        name=f"{method} {path}" if fixed else method,
        trace=context.trace,
        parent=context.parent,
        span=span,
        start=start,
        end=time.monotonic(),
        serves=True,
        error=str(status) if status >= 500 or not status else "",
        attributes={
            "http.request.method": method,
            "url.path": path,
            "url.scheme": scope["scheme"],
            "http.response.status_code": status,
        },
    )
