"""By which name a request calls this server: one Host header, in the form that HTTP demands.

https://www.rfc-editor.org/rfc/rfc9112#section-3.2, and for the form
https://www.rfc-editor.org/rfc/rfc3986#section-3.2.2.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from tierd.http.errors import MalformedRequestError

_NAME = rb"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_HOST = re.compile(rb"(?:\[(?P<address>[0-9A-Za-z:.%_~-]+)\]|" + _NAME + rb")(?::[0-9]*)?")
# A target in absolute form has the name itself, and what Host says does not count then.
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(?P<authority>[^/?#]*)")

Header = tuple[bytes, bytes]


def settle_host(headers: list[Header], target: bytes, version: str) -> None:
    """Check by which name a request of HTTP/`version` calls, and leave that as its only Host.

    Names of headers are in small letters. Raises MalformedRequestError.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise MalformedRequestError(f"the request has {len(hosts)} Host headers; it may have one")
    if not hosts and version == "1.1":
        raise MalformedRequestError("the request has no Host header, which HTTP/1.1 demands")
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        headers[:] = [header for header in headers if header[0] != b"host"]
        headers.append((b"host", absolute["authority"]))
        hosts.append(absolute["authority"])
    if not all(map(_is_host, hosts)):
        raise MalformedRequestError(
            "the request's Host is neither a name nor an address, with or without a port; check the URL"
        )


def _is_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value)
    if match is None or match["address"] is None:
        return match is not None
    try:
        IPv6Address(match["address"].decode())
    except ValueError:
        return False
    return True
