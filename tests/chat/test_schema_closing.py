from __future__ import annotations

import json
from typing import Any

import pytest

from tierd.chat.grammar_worker import notation
from tierd.chat.schema_closing import closed

ONE: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
SHUT = ONE | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (ONE, SHUT),
        ({"type": "array", "items": ONE}, {"type": "array", "items": SHUT}),
        ({"anyOf": [ONE, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$ref": "#/$defs/one", "$defs": {"one": ONE}}, {"$ref": "#/$defs/one", "$defs": {"one": SHUT}}),
        ({"prefixItems": [ONE, True]}, {"prefixItems": [SHUT, True]}),
        (
            {"properties": {"properties": ONE, "allOf": True}},
            {"properties": {"properties": SHUT, "allOf": True}, "additionalProperties": False},
        ),
        ({"additionalProperties": ONE}, {"additionalProperties": SHUT}),
    ],
    ids=str,
)
def test_objects_whose_members_are_named_have_no_others(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected
    assert list(closed(schema)) == list(expected)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        SHUT,
        ONE | {"additionalProperties": True},
        ONE | {"additionalProperties": {"type": "integer"}},
        ONE | {"patternProperties": {"^x": True}},
        ONE | {"required": ["a", "b"]},
        ONE | {"minProperties": 2},
        {"allOf": [ONE, {"properties": {"b": True}}]},
        {"oneOf": [ONE, {"properties": {"b": True}}]},
        ONE | {"if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}},
        ONE | {"anyOf": [{"properties": {"b": True}}, {"required": ["a"]}]},
        ONE | {"$ref": "#/$defs/other", "$defs": {"other": {"properties": {"b": True}}}},
        {"properties": {"a": {"allOf": [ONE]}}},
        {"const": ONE, "enum": [ONE], "default": ONE},
    ],
    ids=str,
)
def test_what_says_of_others_or_combines_schemas_stays(schema: Any) -> None:
    assert closed(schema) == schema


@pytest.mark.parametrize("format", ["email", "date"])
def test_schemas_are_closed_before_they_become_grammars(format: str) -> None:
    """Also those that are combined with others later, for dates to exist."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": format}}}
    found = notation("json_schema", json.dumps(schema))
    assert '"additionalProperties":false' in found.replace(" ", "").replace("\\", "")
