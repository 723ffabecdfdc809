"""Closes schemas: whoever names an object's members means these, and small models go on making up others."""

from __future__ import annotations

from collections.abc import Mapping

# What combines schemas, so that an object has to obey several: none of these may be closed by itself.
_COMBINING = frozenset(
    {
        "allOf", "oneOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems",
        "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
# Where schemas stand in a schema: by name, in a list, alone.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames")


class _CombinedError(Exception):
    """Schemas are combined."""


def closed(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return a schema of whose objects all members are named, unless it says itself of what form others are.

    What obeys it obeys the given one. Where schemas are combined it is the given one.
    """
    try:
        closed = _closed(schema)
    except (_CombinedError, RecursionError):
        return schema
    assert isinstance(closed, Mapping)
    return closed


def _closed(schema: object) -> object:
    if not isinstance(schema, Mapping):
        return schema
    named = schema.get("properties")
    if schema.keys() & _COMBINING or (named and ("$ref" in schema or "anyOf" in schema)):
        raise _CombinedError
    inner = {key: _inner(key, value) for key, value in schema.items()}
    says = "additionalProperties" in schema or "patternProperties" in schema
    if isinstance(named, Mapping) and named and not says and _suffices(schema, named):
        return {**inner, "additionalProperties": False}
    return inner


def _inner(key: str, value: object) -> object:
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _closed(each) for name, each in value.items()}
    if key in _LISTED and isinstance(value, list):
        return [_closed(each) for each in value]
    return _closed(value) if key in _SINGLE else value


def _suffices(schema: Mapping[str, object], named: Mapping[str, object]) -> bool:
    """Whether there are objects of these members alone that obey a schema."""
    required, least = schema.get("required", ()), schema.get("minProperties", 0)
    return (
        isinstance(required, list | tuple)
        and all(name in named for name in required)
        and isinstance(least, int)
        and least <= len(named)
    )
