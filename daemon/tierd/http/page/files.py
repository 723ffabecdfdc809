"""The page's files, which lie in the package: read once, and sent with the headers that keep it to itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

INDEX = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing comes from elsewhere, nothing goes elsewhere, and nobody frames the page.
_POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
))  # fmt: skip
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Asked for anew each time, so that an upgrade is seen at once; 304 where it is the same.
    "cache-control": "no-cache",
}


class PageFile:
    """One file. Answers 304 to whoever has it already (RFC 9110, section 13.1.2)."""

    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        self._type = _TYPES[name.rpartition(".")[2]]
        self._tag = f'"{sha256(content).hexdigest()[:32]}"'

    async def answer(self, request: Request) -> Response:
        """Send it."""
        headers = {**_HEADERS, "etag": self._tag}
        known = [
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        ]
        if self._tag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(self._content, media_type=self._type, headers=headers)


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files by name."""
    folder = files("tierd.http.page") / "static"
    return {
        file.name: PageFile(file.name, file.read_bytes())
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
    }


def file_routes() -> list[Route]:
    """Return the routes: the page at /, its parts below /page/."""
    pages = page_files()
    parts = [
        Route(f"/page/{name}", file.answer, include_in_schema=False)
        for name, file in pages.items()
        if name != INDEX
    ]
    return [Route("/", pages[INDEX].answer), *parts]
