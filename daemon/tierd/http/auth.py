"""Who calls: the key that a request shows, and what goes by it.

Paths for those who watch and those who read are open to all; whatever else there is, or is not, asks for a
key. Names of keys may be told, in the log above all; keys never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tierd.errors import UnauthorizedError
from tierd.http.keys import Keys

OPEN_PATHS = frozenset({"/", "/health", "/metrics", "/openapi.json"})
PAGE = "/page/"


def is_open(path: str) -> bool:
    """Whether a path of the public listener asks for no key."""
    return path in OPEN_PATHS or path.startswith(PAGE)


@dataclass(frozen=True, slots=True)
class Visit:
    """Of an HTTP request, in `scope["state"]["visit"]`.

    name: of the key it showed; "": it needed none. owner: of what is computed for it; see `core.Request`.
    """

    name: str = ""
    owner: str = ""


class KeyGate:
    """Lets requests pass that show a key as `Authorization: Bearer KEY` or as `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Keys | None, *, share_prefix: bool) -> None:
        """`keys`: None lets everybody pass. share_prefix: names share what is computed for them."""
        self.app = app
        self._keys = keys
        self._share_prefix = share_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises UnauthorizedError without a key, or with a wrong one."""
        if scope["type"] == "http":
            scope["state"]["visit"] = self._admit(scope)
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope) -> Visit:
        if self._keys is None or is_open(scope["path"]):
            return Visit()
        shown = [*_shown(Headers(scope=scope))]
        if not shown:
            raise UnauthorizedError(
                "this needs an API key, as in `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        name = self._keys.name_of(shown)
        if name is None:
            raise UnauthorizedError("the API key is not one of those that may call here; check it")
        return Visit(name, "" if self._share_prefix else name)


def _shown(headers: Headers) -> Iterator[bytes]:
    """Go through the keys that a request shows, as they were sent."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    for key in (bearer if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")):
        if key.strip():
            yield key.strip().encode("latin-1")
