"""W3C Trace Context: which trace a request is part of.

https://www.w3.org/TR/trace-context/. tierd asks nobody else, so there is nobody to pass `tracestate` on to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

TRACE_DIGITS, SPAN_DIGITS = 32, 16

# Versions to come may add to it, with another hyphen.
_HEADER = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A trace, and the span that asks, in hexadecimal digits. sampled: whether they are recorded."""

    trace: str
    parent: str
    sampled: bool

    def header(self, span: str) -> str:
        """Return the traceparent that names a span, of 16 digits, as the one that asks or answers."""
        return f"00-{self.trace}-{span}-{_SAMPLED if self.sampled else 0:02x}"


def received(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return what a request's headers say; None where they say nothing, or nothing that is valid."""
    values = [value for name, value in headers if name == b"traceparent"]
    match = _HEADER.fullmatch(values[0].strip(b" \t")) if len(values) == 1 else None
    if (
        match is None
        or match["version"] == b"ff"
        or (match["version"] == b"00" and match["more"] is not None)
        or not int(match["trace"], 16)
        or not int(match["parent"], 16)
    ):
        return None
    sampled = bool(int(match["flags"], 16) & _SAMPLED)
    return TraceContext(match["trace"].decode(), match["parent"].decode(), sampled)


def trace_id(traceparent: str) -> str | None:
    """Return the digits of a trace that `TraceContext.header` has put down; None for "": of none."""
    return traceparent.split("-")[1] if traceparent else None


def sampled_parent(traceparent: str) -> tuple[str, str] | None:
    """Return the digits of the trace and of the span that it names; None where that is not recorded."""
    if not traceparent.endswith(f"-{_SAMPLED:02x}"):
        return None
    _, trace, span, _ = traceparent.split("-")
    return trace, span
