"""The one place where exceptions become answers, in OpenAI's shape or in that of the API that was called.

    {"error": {"message": …, "type": …, "param": …, "code": …}}

What the client gets depends on how far the response has come:

    not begun                 a response with the error's status
    an event stream has begun a frame `data: {"error": …}`, then `data: [DONE]`
    anything else has begun   the connection is closed; the length cannot be honoured

The openai clients raise APIError on a frame that carries "error", and never read on; the [DONE] is
for clients that wait for one. An API that words its errors otherwise has a `Dialect`, by its path.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierd.errors import (
    BusyError,
    ConflictError,
    DeviceError,
    DeviceMemoryError,
    ForbiddenError,
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    NoDeviceError,
    OperationNotFoundError,
    RequestError,
    RequiredTierError,
    ResponseNotFoundError,
    SettingsError,
    SlowReaderError,
    TierdError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedModelError,
)
from tierd.service.logs import line, told
from tierd.service.trace_context import trace_id

logger = logging.getLogger("tierd.http")

RETRY_AFTER_S = 5
CLIENT_CLOSED_REQUEST = 499
MOST_CHARACTERS = 1000


class TransportError(RequestError):
    """HTTP itself goes wrong, before it matters what is asked for. status: of the answer."""

    status = 400


class MalformedRequestError(TransportError):
    """The bytes are no HTTP request."""

    code = "malformed_request"


class BodyTooLargeError(TransportError):
    """The request's body is larger than tierd reads."""

    status, code = 413, "request_too_large"


class HeadTooLargeError(TransportError):
    """The request's line and headers are larger than tierd reads."""

    status, code = 431, "request_head_too_large"


class LateRequestError(TransportError):
    """The request took too long to arrive."""

    status, code = 408, "request_timeout"


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """What an error response carries, and the last frame but one of a stream that failed."""

    error: ErrorDetail


class Dialect(Protocol):
    """How an API words an error."""

    def body(self, status: int, error: ErrorDetail) -> bytes:
        """Return the JSON of an answer of this status."""

    def frames(self, status: int, error: ErrorDetail) -> bytes:
        """Return what ends an event stream that has begun."""


class OpenAIDialect:
    """See the module."""

    def body(self, status: int, error: ErrorDetail) -> bytes:
        """See Dialect."""
        return msgspec.json.encode(ErrorBody(error))

    def frames(self, status: int, error: ErrorDetail) -> bytes:
        """See Dialect."""
        return b"data: " + self.body(status, error) + b"\n\ndata: [DONE]\n\n"


OPENAI = OpenAIDialect()


@dataclass(frozen=True, slots=True)
class Answer:
    """An error as HTTP sees it."""

    status: int
    error: ErrorDetail
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """Its JSON in OpenAI's shape."""
        return OPENAI.body(self.status, self.error)

    def response(self, dialect: Dialect = OPENAI) -> Response:
        """Return the answer for a response that has not begun."""
        body = dialect.body(self.status, self.error)
        return Response(body, self.status, self.headers, media_type="application/json")

    def frames(self, dialect: Dialect = OPENAI) -> bytes:
        """Return the answer for an event stream that has begun."""
        return dialect.frames(self.status, self.error)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a class of errors is answered. code: of those that have none of their own.

    retry: another try may do better, in RETRY_AFTER_S.
    """

    status: int
    kind: str
    code: str | None = None
    retry: bool = False


_INVALID, _SERVER = "invalid_request_error", "server_error"

# An error is answered by the rule of its class, or of the nearest one above it in the tree.
RULES: Mapping[type[TierdError], Rule] = {
    TierdError: Rule(500, _SERVER),
    RequestError: Rule(400, _INVALID),
    ModelNotFoundError: Rule(404, _INVALID),
    OperationNotFoundError: Rule(404, _INVALID),
    ResponseNotFoundError: Rule(404, _INVALID),
    ConflictError: Rule(409, _INVALID),
    UnauthorizedError: Rule(401, _INVALID),
    ForbiddenError: Rule(403, _INVALID),
    SlowReaderError: Rule(408, _INVALID),
    BusyError: Rule(429, "rate_limit_error"),
    UnavailableError: Rule(503, _SERVER, retry=True),
    # What loading a model, or bringing it to the device, may end with.
    SettingsError: Rule(400, _INVALID, "invalid_setting"),
    ModelError: Rule(422, _INVALID, "model_not_loadable"),
    ModelFileError: Rule(422, _INVALID, "model_file_damaged"),
    UnsupportedModelError: Rule(422, _INVALID, "model_not_supported"),
    RequiredTierError: Rule(409, _INVALID, "tier_not_reached"),
    NoDeviceError: Rule(409, _INVALID, "no_device"),
    DeviceMemoryError: Rule(409, _INVALID, "no_room"),
    DeviceError: Rule(503, _SERVER, "device_unavailable", retry=True),
}


def code_of(error: BaseException) -> str | None:
    """Return the one word for an error that clients may go by, None where it has none."""
    if isinstance(error, RequestError):
        return error.code
    return _rule(type(error)).code if isinstance(error, TierdError) else None


def status_of(kind: type[TierdError]) -> int:
    """Return the status of the answers to a class of errors."""
    return kind.status if issubclass(kind, TransportError) else _rule(kind).status


def _rule(kind: type[TierdError]) -> Rule:
    return next(RULES[above] for above in kind.__mro__ if above in RULES)


def describe(error: BaseException) -> Answer:
    """Turn an exception into an answer. What is not an error of ours says nothing about itself."""
    if not isinstance(error, TierdError):
        return _answer(500, "tierd failed at this request; its log says why", _SERVER)
    rule = _rule(type(error))
    code, param, headers = code_of(error), None, {}
    if isinstance(error, RequestError):
        param = error.param
    elif isinstance(error, SettingsError):
        param = error.key
    if isinstance(error, BusyError):
        headers["retry-after"] = str(error.retry_after)
    elif rule.retry:
        headers["retry-after"] = str(RETRY_AFTER_S)
    elif isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    return _answer(status_of(type(error)), str(error), rule.kind, param, code, headers)


def _answer(
    status: int,
    message: str,
    kind: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    return Answer(status, ErrorDetail(one_line(message), kind, param, code), headers or {})


def one_line(text: str) -> str:
    """Return a text that may repeat what a client sent, fit for one line of a log or an answer."""
    short = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
    return "".join(letter if letter.isprintable() else " " for letter in short)


async def route_error(request: Request, error: Exception) -> Response:
    """Answer the router's own errors: no such path, or no such method on it."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"{path} does not take {request.method}; it takes {allowed}", "method_not_allowed"
    else:
        message, code = f"{request.method} {path}: there is nothing here", "not_found"
    headers = error.headers or {}
    answer = _answer(error.status_code, message, "invalid_request_error", None, code, headers)
    return answer.response(request.state.dialect)


class ErrorBoundary:
    """Names every request, and answers what is raised while it is served.

    The name is in `scope["state"]["request_id"]` (32 hexadecimal digits) and in the response's `x-request-id`
    and `request-id`, of which OpenAI's and Anthropic's clients know one each; the log uses it too. A POST
    that is refused before the engine was asked, as `scope["state"]["asked"]` would say, gets a line in the
    log: the engine writes one for all others.
    """

    def __init__(
        self,
        app: ASGIApp,
        refused: Callable[[str], None] = lambda outcome: None,
        dialects: Mapping[str, Callable[[str], Dialect]] | None = None,
    ) -> None:
        """`refused` is called with the outcome of every POST that is refused here; see metrics.

        dialects: by what the paths begin with where they hold, each made for a request of that id; elsewhere
        it is OpenAI's. Whoever serves a request may put another into `scope["state"]["dialect"]`.
        """
        self.app = app
        self._refused = refused
        self._dialects = dialects or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Only a response that can no longer be saved raises."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        spoken = (make for path, make in self._dialects.items() if scope["path"].startswith(path))
        dialect = next(spoken, lambda id: OPENAI)(request_id)
        scope.setdefault("state", {}).update(request_id=request_id, dialect=dialect)
        begun: Message | None = None

        async def named_send(message: Message) -> None:
            nonlocal begun
            if begun is None:
                begun = message
                logger.debug(
                    *line(
                        request=request_id,
                        method=scope["method"],
                        path=one_line(scope["path"]),
                        status=message["status"],
                    )
                )
                names = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]
                message["headers"] = [*message.get("headers", ()), *names]
            await send(message)

        try:
            await self.app(scope, receive, named_send)
        except ClientDisconnect:
            if begun is None:
                await Response(status_code=CLIENT_CLOSED_REQUEST)(scope, receive, named_send)
        except Exception as error:
            if not isinstance(error, RequestError):
                where = one_line(f"{scope['method']} {scope['path']} ({request_id})")
                logger.error("%s: %s", where, told(error), exc_info=not isinstance(error, TierdError))
            answer = describe(error)
            if (
                isinstance(error, RequestError)
                and scope["method"] == "POST"
                and "asked" not in scope["state"]
            ):
                self._note(scope, error, answer.status)
            if begun is None:
                await answer.response(dialect)(scope, receive, named_send)
            elif _is_event_stream(begun):
                frames = answer.frames(scope["state"]["dialect"])
                await send({"type": "http.response.body", "body": frames})
            else:
                raise

    def _note(self, scope: Scope, error: RequestError, status: int) -> None:
        """Count and log a refusal. Its message may repeat what the client sent, so it is left out."""
        outcome = "unavailable" if isinstance(error, UnavailableError) else "refused"
        self._refused(outcome)
        state = scope["state"]
        name = state["visit"].name if "visit" in state else ""
        logger.info(
            *line(
                request=state["request_id"],
                model="-",
                key=name or None,
                trace=trace_id(state.get("traceparent", "")),
                outcome=outcome,
                status=status,
                code=error.code or "-",
                param=one_line(error.param or "-"),
            )
        )


def _is_event_stream(start: Message) -> bool:
    return any(name == b"content-type" and b"event-stream" in value for name, value in start["headers"])
