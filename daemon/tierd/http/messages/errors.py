"""How `/v1/messages` words errors: Anthropic's way.

    {"type": "error", "error": {"type": …, "message": …}, "request_id": …}

In a stream that has begun the same object is an event `error`, the last one. Source: the types and the errors
of Anthropic's Python client.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tierd.http import errors
from tierd.http.messages.events import event
from tierd.http.messages.shapes import ErrorDetail, ErrorDetails, ErrorEvent

# Anthropic's own servers answer 529 where they are overloaded. Here it is 503 as on all routes, which proxies
# and balancers know too, with the word by which Anthropic's clients go; they try again after either.
_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

# By the field at fault: without a thread, which the server would keep, clients send the whole conversation.
_DETAILS: Mapping[str | None, ErrorDetails] = {"thread": ErrorDetails("thread_unsupported_request")}


class MessagesDialect:
    """See errors.Dialect; of one request."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def body(self, status: int, error: errors.ErrorDetail) -> bytes:
        """See Dialect."""
        return msgspec.json.encode(self._event(status, error))

    def frames(self, status: int, error: errors.ErrorDetail) -> bytes:
        """See Dialect."""
        return event(self._event(status, error))

    def _event(self, status: int, error: errors.ErrorDetail) -> ErrorEvent:
        kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        details = _DETAILS.get(error.param, msgspec.UNSET)
        return ErrorEvent(error=ErrorDetail(kind, error.message, details), request_id=self._request_id)
