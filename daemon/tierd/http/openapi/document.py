"""GET /openapi.json: what the public listener answers, as OpenAPI 3.1 has it.

https://spec.openapis.org/oas/v3.1.1.html. It has no words for the events of a stream; `x-event` has the
schema of the JSON that each holds, as `itemSchema` will in 3.2.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import tierd
from tierd.errors import RateLimitError, TierdError, UnauthorizedError
from tierd.http.auth import is_open
from tierd.http.errors import ErrorBody, status_of
from tierd.http.openapi.endpoints import (
    ANYWHERE,
    ENDPOINTS,
    EVENT_STREAM,
    JSON,
    UNROUTED,
    Endpoint,
    Parameter,
)
from tierd.http.openapi.json_schema import Schema, Schemas
from tierd.http.quotas import counts

# How a key may be shown.
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def openapi_route(*, guarded: bool) -> Route:
    """Return the route. guarded: keys are asked for."""

    async def show(request: Request) -> Response:
        return Response(document(guarded=guarded), media_type=JSON)

    return Route("/openapi.json", show)


@functools.cache
def document(*, guarded: bool = False) -> bytes:
    """Return the document, made from the table of endpoints once. guarded: keys are asked for."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(
            endpoint, schemas, guarded=guarded and not is_open(endpoint.path)
        )
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "tierd",
                "version": tierd.__version__,
                "description": "Fields that no schema names are passed over.",
            },
            "servers": [{"url": "/"}],
            "paths": paths,
            "components": {"schemas": schemas.components} | ({"securitySchemes": KEYS} if guarded else {}),
        }
    )


def _operation(endpoint: Endpoint, schemas: Schemas, *, guarded: bool) -> dict[str, Any]:
    words = re.findall(r"\w+", endpoint.path)
    operation: dict[str, Any] = {
        "operationId": "_".join([endpoint.method, *words]),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
    }
    if endpoint.parameters:
        operation["parameters"] = [_parameter(parameter, schemas) for parameter in endpoint.parameters]
    if endpoint.body is not None:
        body = {JSON: {"schema": schemas.of(endpoint.body)}}
        operation["requestBody"] = {"required": True, "content": body}
    content: dict[str, Any] = {endpoint.media_type: {"schema": schemas.of(endpoint.answer)}}
    if endpoint.stream is not None:
        content[EVENT_STREAM] = {"schema": {"type": "string"}, "x-event": schemas.of(endpoint.stream)}
    operation["responses"] = {
        "200": {"description": "The answer.", "content": content},
        **_refusals(endpoint, schemas, guarded=guarded),
    }
    if guarded:
        operation["security"] = [{name: []} for name in KEYS]
    return operation


def _parameter(parameter: Parameter, schemas: Schemas) -> dict[str, Any]:
    schema: Schema = schemas.of(parameter.kind)
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": schema,
    }


def _refusals(endpoint: Endpoint, schemas: Schemas, *, guarded: bool) -> dict[str, Any]:
    """Return what errors are answered with, by status, told in the words of their classes."""
    gates: list[type[TierdError]] = [UnauthorizedError] if guarded else []
    if counts(endpoint.method.upper(), endpoint.path):
        gates.append(RateLimitError)
    shapes = dict.fromkeys(UNROUTED, ErrorBody) | dict.fromkeys(
        [*ANYWHERE, *gates, *endpoint.errors], endpoint.refusal
    )
    kinds = sorted(shapes, key=status_of)
    return {
        str(status): _refusal([(kind, shapes[kind]) for kind in same], schemas)
        for status, same in itertools.groupby(kinds, status_of)
    }


def _refusal(kinds: Sequence[tuple[type[TierdError], type[msgspec.Struct]]], schemas: Schemas) -> Schema:
    about = " ".join((kind.__doc__ or "").partition("\n")[0] for kind, _ in kinds)
    shapes = list(dict.fromkeys(shape for _, shape in kinds))
    return {
        "description": about,
        "content": {JSON: {"schema": schemas.of(functools.reduce(operator.or_, shapes))}},
    }
