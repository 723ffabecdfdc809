"""Fields that would change an answer and that tierd does not have.

The shapes in `requests` list them, each with the values that mean "off" and pass. Any other value is
refused by name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import get_type_hints

import msgspec

from tierd.errors import InvalidRequestError

# What a field has that the request does not name.
SILENT = msgspec.Raw(b"null")
# No value that means off takes more bytes, even with some space in it.
_LONGEST_OFF = 100


def off(*values: object, instead: str = "") -> msgspec.Meta:
    """Mark a field of a Struct, Raw, as unsupported, but for null and the values that mean off.

    instead: what to do for what others do with it.
    """
    # Kept as JSON: `typing` shares annotations that are equal, and True equals 1.
    kept = tuple(msgspec.json.encode(value).decode() for value in values)
    return msgspec.Meta(extra={"off": kept, "instead": instead})


def refuse_unsupported(body: msgspec.Struct, where: str = "") -> None:
    """Raise InvalidRequestError for the first marked field that is set. where: prefix of its path."""
    for name, (values, instead) in _off_values(type(body)).items():
        given: msgspec.Raw = getattr(body, name)
        if given is not SILENT and not _is_off(bytes(given), values.values()):
            hint = f"leave it out or send {' or '.join(values)}" if values else "leave it out"
            hint = instead or hint
            raise InvalidRequestError(f"{where}{name}: not supported; {hint}", param=where + name)


def _is_off(given: bytes, values: Iterable[object]) -> bool:
    if len(given) > _LONGEST_OFF:
        return False
    try:
        value = msgspec.json.decode(given)
    except msgspec.DecodeError:  # Raw has passed over what is wrong inside a string
        return False
    return value is None or any(_same(value, other) for other in values)


def _same(value: object, other: object) -> bool:
    """Compare as JSON does: 0 equals 0.0, and neither is false."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


@functools.cache
def _off_values(kind: type[msgspec.Struct]) -> Mapping[str, tuple[Mapping[str, object], str]]:
    """Return the marked fields of a Struct: the off values by their JSON, and what to do instead."""
    return {
        name: ({text: msgspec.json.decode(text) for text in mark.extra["off"]}, mark.extra["instead"])
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, msgspec.Meta) and mark.extra is not None and "off" in mark.extra
    }
