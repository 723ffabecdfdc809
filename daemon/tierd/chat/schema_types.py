"""Of which types a tool's arguments are, by its schema, and what values mean that are written as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

Types = frozenset[str]

# Schemas within schemas that are looked at; more say nothing.
_MOST = 16
_KINDS = {bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}
# Templates that write values as Python does teach it to their models.
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: Mapping[str, Any], key: str) -> Types | None:
    """Return the types of JSON that a property may be of; None where its schema leaves that open."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return _types(properties[key], schema, _MOST)
    return _types(schema.get("additionalProperties"), schema, _MOST)


def as_json(text: str, types: Types | None) -> str:
    """Return the JSON of a value that is written as a text: of one of these types, or else a string."""
    written = _PYTHON.get(text.strip(), text.strip())
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    kind = _KINDS.get(type(value), "string")
    if types is None or "string" not in types:
        return written
    may_be = kind in types or (kind == "integer" and "number" in types)
    return written if kind != "string" and may_be else json.dumps(text, ensure_ascii=False)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _types(schema: object, root: Mapping[str, Any], left: int) -> Types | None:
    if not isinstance(schema, Mapping) or not left:
        return None
    if "$ref" in schema:
        return _types(_referred(schema["$ref"], root), root, left - 1)
    if "const" in schema:
        return _kinds_of([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _kinds_of(schema["enum"])
    given = schema.get("type")
    if isinstance(given, str):
        return frozenset([given])
    if isinstance(given, list):
        return frozenset(name for name in given if isinstance(name, str))
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            each = [_types(part, root, left - 1) for part in schema[union]]
            known = [types for types in each if types is not None]
            return frozenset().union(*known) if len(known) == len(each) else None
    if isinstance(schema.get("allOf"), list):
        each = [_types(part, root, left - 1) for part in schema["allOf"]]
        return next((types for types in each if types is not None), None)
    return None


def _kinds_of(values: list[Any]) -> Types:
    return frozenset(_KINDS.get(type(value), "string") for value in values)


def _referred(reference: object, root: Mapping[str, Any]) -> object:
    """Return what a reference within a schema names, None where there is nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: object = root
    for name in reference[1:].split("/")[1:]:
        if not isinstance(place, Mapping):
            return None
        place = place.get(name.replace("~1", "/").replace("~0", "~"))
    return place
