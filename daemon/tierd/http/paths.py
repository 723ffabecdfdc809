"""Routes that match whole paths.

Starlette ends its expressions with `$`, which lets a line feed pass behind a path: `/metrics%0A` would be
`/metrics` to it, and another path to all that decide by the path who may have it, proxies among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.routing import Route


def exact(routes: Iterable[Route]) -> list[Route]:
    """Have routes match their path alone, and return them."""
    there = list(routes)
    for route in there:
        route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z")
    return there
