"""What browsers may bring: requests that pages of somebody else's make are turned away.

Whoever uses a browser beside tierd opens pages that can send requests to it. Two headers, which pages cannot
change, tell of that:

    Host    the name that was called. A page whose own name is made to point at this machine (DNS rebinding)
            could read the answers too. Such a name is a public one; so addresses and names that nobody can
            register pass, and others only where they are listed.
    Origin  whose page it is that calls; no program but a browser sends it. It must be this server's own, or
            be listed.

Origins that are listed may read the answers as well, by CORS (https://fetch.spec.whatwg.org/#http-cors-protocol).
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tierd.errors import ForbiddenError
from tierd.http.errors import one_line

ANY = "*"
# Nobody can have these on the Internet: RFC 6761, RFC 6762, RFC 8375, and ICANN's resolution 2024.07.29.06.
RESERVED = (".localhost", ".local", ".home.arpa", ".internal")
# What a page of a listed origin may read beside the usual headers.
_EXPOSED = ("retry-after", "x-request-id")
_PREFLIGHT_S = 600


class Doors:
    """Lets requests pass that call this server by a name of its own, from no page of somebody else's."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        """hosts, origins: those that may come beside what always may; "*": all may."""
        self.app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises ForbiddenError."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = headers.get("host", "").lower()
            self._check_host(host)
            self._check_origin(headers.get("origin"), host)
        await self.app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        name = _without_port(host).rstrip(".")
        if ANY in self._hosts or name in self._hosts or is_private(name):
            return
        raise ForbiddenError(
            f"the Host {one_line(host)!r} is not known to be this server; "
            "whoever runs it can list the name in server.hosts"
        )

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or ANY in self._origins or origin in self._origins:
            return
        if origin.partition("://")[2].lower() == host != "":
            return
        raise ForbiddenError(
            f"pages of {one_line(origin)!r} may not call this server; "
            "whoever runs it can list the origin in server.cors_origins"
        )


def cors(origins: Collection[str]) -> list[Middleware]:
    """Return what lets pages of these origins read answers, errors too; nothing where there are none."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            max_age=_PREFLIGHT_S,
        )
    ]


def is_private(name: str) -> bool:
    """Whether a name is an address, or one that nobody can register: dotless, or below one of RESERVED."""
    return "." not in name or name.endswith(RESERVED) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
