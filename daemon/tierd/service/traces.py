"""Spans of requests, and where they go: to OpenTelemetry's collector where one is named, else nowhere.

https://opentelemetry.io/docs/specs/semconv/ has the names of attributes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tierd.errors import SettingsError
from tierd.service.trace_context import SPAN_DIGITS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

Attributes = Mapping[str, str | int | float | Sequence[str]]

# What is not sent yet may take so long at the end.
_FLUSH_MS = 3000


def new_span() -> str:
    """Return the name of a span, in hexadecimal digits."""
    return secrets.token_hex(SPAN_DIGITS // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What took from start to end, monotonic seconds, in a trace and below a parent, "" for none.

    serves: it answers somebody outside. error: the class of what went wrong, "" where nothing did.
    """

    name: str
    trace: str
    parent: str
    start: float
    end: float
    span: str = field(default_factory=new_span)
    serves: bool = False
    error: str = ""
    attributes: Attributes = field(default_factory=dict)


class Traces:
    """Takes spans of traces that are recorded, from any thread, without waiting; these go nowhere.

    begins: whether requests that are in no trace get one.
    """

    begins = False

    def record(self, span: Span) -> None:
        """Take a span that has ended."""

    def close(self) -> None:
        """Send what is left."""


class OpenTelemetryTraces(Traces):
    """Sends them to a collector by OTLP over HTTP, in batches; those that it does not take are lost."""

    begins = True

    def __init__(self, endpoint: str, version: str) -> None:
        """`endpoint`: the collector's URL. Raises SettingsError where OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise SettingsError(
                "traces.endpoint needs OpenTelemetry; run: pip install 'tierd[traces]', or leave it empty"
            ) from error
        self._resource = Resource.create({"service.name": "tierd", "service.version": version})
        self._scope = InstrumentationScope("tierd", version)
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))
        self._end: Callable[[], None] = self._processor.shutdown
        self._epoch = time.time() - time.monotonic()

    def record(self, span: Span) -> None:
        """See Traces."""
        self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """See Traces."""
        self._processor.force_flush(_FLUSH_MS)
        self._end()

    def _readable(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(name: str, *, remote: bool) -> SpanContext:
            return SpanContext(int(span.trace, 16), int(name, 16), remote, TraceFlags(TraceFlags.SAMPLED))

        error = {"error.type": span.error} if span.error else {}
        return ReadableSpan(
            span.name,
            context=context(span.span, remote=False),
            parent=context(span.parent, remote=span.serves) if span.parent else None,
            resource=self._resource,
            instrumentation_scope=self._scope,
            attributes={**span.attributes, **error},
            kind=SpanKind.SERVER if span.serves else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR) if span.error else Status(),
            start_time=self._nanoseconds(span.start),
            end_time=self._nanoseconds(span.end),
        )

    def _nanoseconds(self, monotonic: float) -> int:
        return round((self._epoch + monotonic) * 1e9)
