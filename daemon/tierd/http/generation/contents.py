"""Texts, or token ids in their place, as completions and embeddings take them: one, or a list of them."""

from __future__ import annotations

from collections.abc import Sequence

from tierd.engine import CatalogueEntry
from tierd.errors import InvalidRequestError
from tierd.http.generation.translate import MAX_CONTENT, check_ids, check_length

Content = str | list[int]


def read_contents(
    given: str | Sequence[int | str | list[int]], field: str, most: int
) -> list[tuple[Content, str]]:
    """Return each content with its path. `field` brought them; at most so many.

    Raises InvalidRequestError, for lists of more than may be encoded in one request too: how long a content
    may be by itself, the context says.
    """
    contents = _each(given, field, most)
    size = sum(len(content) for content, _ in contents)
    if size > MAX_CONTENT and len(contents) > 1:
        raise InvalidRequestError(
            f"{field}: {size} characters or ids; at most {MAX_CONTENT}, send them in parts", param=field
        )
    return contents


def content_ids(entry: CatalogueEntry, content: Content, field: str) -> list[int]:
    """Return the ids of a prompt that came in `field`. A text gets the tokens its model begins with.

    Raises InvalidRequestError: it is empty, or holds an id that is no token; ContextLengthExceededError.
    """
    if not content:
        raise InvalidRequestError(f"{field}: empty; a model needs something to go on from", param=field)
    if isinstance(content, str):
        check_length(entry, content, field)
        return entry.tokenizer.encode(content, add_special=True, parse_special=True)
    check_ids(content, entry.tokenizer.vocabulary, field)
    return content


def _each(given: str | Sequence[int | str | list[int]], field: str, most: int) -> list[tuple[Content, str]]:
    if isinstance(given, str):
        return [(given, field)]
    if not given:
        raise InvalidRequestError(f"{field}: empty; send at least one text", param=field)
    ids = [item for item in given if isinstance(item, int)]
    if len(ids) == len(given):
        return [(ids, field)]
    if len(given) > most:
        raise InvalidRequestError(f"{field}: {len(given)} texts; at most {most} in one request", param=field)
    found: list[tuple[Content, str]] = []
    for index, item in enumerate(given):
        if isinstance(item, int):
            raise InvalidRequestError(
                f"{field}[{index}]: a token id among texts; send a list of ids for each text",
                param=f"{field}[{index}]",
            )
        found.append((item, f"{field}[{index}]"))
    return found
