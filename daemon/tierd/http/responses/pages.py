"""Pages of a list of items, as OpenAI's API turns them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tierd.errors import InvalidRequestError
from tierd.http.responses.shapes import ItemList

MOST = 100
USUAL = 20


class _Named(msgspec.Struct):
    id: str


_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_name = msgspec.json.Decoder(_Named)


def page(items: bytes, query: Mapping[str, str]) -> ItemList:
    """Return a page of a JSON list of items, the latest first, as `limit`, `order` and `after` say otherwise.

    Raises InvalidRequestError.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError(f"order: no such order, {order!r}; use asc or desc", param="order")
    named = [(_name.decode(item).id, item) for item in _decoder.decode(items)]
    if order == "desc":
        named.reverse()
    ids = [id for id, _ in named]
    start = 0
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise InvalidRequestError(f"after: there is no item {after!r}", param="after")
        start = ids.index(after) + 1
    end = start + number(query, "limit", USUAL, 1, MOST)
    shown = ids[start:end]
    return ItemList(
        data=[item for _, item in named[start:end]],
        first_id=shown[0] if shown else None,
        last_id=shown[-1] if shown else None,
        has_more=end < len(ids),
    )


def number(query: Mapping[str, str], field: str, usual: int, least: int, most: int) -> int:
    """Return the number of a query's field, `usual` where it is silent. Raises InvalidRequestError."""
    text = query.get(field)
    if text is None:
        return usual
    if not (
        text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most
    ):
        raise InvalidRequestError(f"{field}: {text[:20]!r}; a number from {least} to {most}", param=field)
    return int(text)
