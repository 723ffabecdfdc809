from __future__ import annotations

from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest

from tierd.http.openapi.json_schema import Schemas
from tierd.http.unsupported import SILENT, off

Level = Annotated[int, msgspec.Meta(ge=1, le=9)]
Short = Annotated[str, msgspec.Meta(max_length=3)]


class Inner(msgspec.Struct):
    """What is within."""

    name: Short
    level: Level | None = None


class Given(msgspec.Struct):
    inner: Inner
    others: list[Inner] = []
    pairs: Annotated[dict[Short, float], msgspec.Meta(max_length=1)] | None = None
    word: Literal["yes", "no"] = "no"

    tuned: Annotated[msgspec.Raw, off(0, [])] = SILENT
    moved: Annotated[msgspec.Raw, off(instead="send word")] = SILENT


class Left(msgspec.Struct, frozen=True):
    kind: Literal["left"] = "left"
    note: str | msgspec.UnsetType = msgspec.UNSET


class Right(msgspec.Struct, frozen=True, tag_field="kind", tag="right"):
    nothing: None = None


class Written(msgspec.Struct, frozen=True):
    side: Left | Right
    kept: list[Annotated[msgspec.Raw, msgspec.Meta(extra={"holds": Left})]]


class Sparse(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int = 0


def valid(kind: Any, value: object) -> bool:
    schemas = Schemas("#/$defs/")
    schema = schemas.of(kind) | {"$defs": schemas.components}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"inner": {"name": "abcd"}},
        {"inner": {"name": "a", "level": 0}},
        {"inner": {"name": "a", "level": 10}},
        {"inner": {"name": "a"}, "others": [{}]},
        {"inner": {"name": "a"}, "pairs": {"abcd": 1}},
        {"inner": {"name": "a"}, "pairs": {"a": "b"}},
        {"inner": {"name": "a"}, "pairs": {"a": 1, "b": 2}},
        {"inner": {"name": "a"}, "word": "perhaps"},
        {"inner": {"name": "a"}, "word": None},
    ],
)
def test_what_is_not_decoded_is_not_valid(fields: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Given)
    assert not valid(Given, fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"inner": {"name": "abc"}},
        {"inner": {"name": "", "level": None}, "unknown": 1},
        {"inner": {"name": "a", "level": 9}, "others": [{"name": "b"}], "pairs": {"abc": 1.5}, "word": "yes"},
    ],
)
def test_what_is_decoded_is_valid(fields: object) -> None:
    assert msgspec.convert(fields, Given)
    assert valid(Given, fields)


@pytest.mark.parametrize(
    ("field", "value", "taken"),
    [
        ("tuned", 0, True),
        ("tuned", [], True),
        ("tuned", None, True),
        ("tuned", 1, False),
        ("moved", None, True),
        ("moved", {}, False),
    ],
)
def test_unsupported_fields_take_what_means_off(field: str, value: object, taken: bool) -> None:
    assert valid(Given, {"inner": {"name": "a"}, field: value}) == taken


def test_what_stands_instead_is_told() -> None:
    schemas = Schemas()
    assert schemas.of(Given) == {"$ref": "#/components/schemas/Given"}
    properties = schemas.components["Given"]["properties"]
    assert properties["tuned"]["description"] == "Not supported."
    assert properties["moved"]["description"] == "Not supported; send word."
    assert properties["word"]["default"] == "no"
    assert schemas.components["Inner"]["description"] == "What is within."


@pytest.mark.parametrize(
    "body",
    [
        Written(Left(), []),
        Written(Left(note="a"), [msgspec.Raw(b'{"kind": "left"}')]),
        Written(Right(), []),
        Sparse(),
        Sparse(1),
    ],
)
def test_what_is_written_is_valid(body: msgspec.Struct) -> None:
    assert valid(type(body), msgspec.json.decode(msgspec.json.encode(body)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Left, {}),
        (Left, {"kind": "right"}),
        (Right, {"kind": "right"}),
        (Right, {"kind": "left", "nothing": None}),
        (Written, {"side": {"kind": "left"}}),
        (Written, {"side": {"kind": "left"}, "kept": [{"kind": "right"}]}),
        (Written, {"side": {"kind": "middle"}, "kept": []}),
    ],
)
def test_all_that_is_written_is_required(kind: type[msgspec.Struct], value: object) -> None:
    assert not valid(kind, value)


def test_structs_of_one_name_are_told_apart() -> None:
    schemas = Schemas()
    namesake = msgspec.defstruct("Inner", [("other", int)], module="far.away")
    assert schemas.of(Inner) == schemas.of(Inner) == {"$ref": "#/components/schemas/Inner"}
    assert schemas.of(namesake) == {"$ref": "#/components/schemas/away.Inner"}
    assert schemas.components["away.Inner"]["required"] == ["other"]


def test_a_type_that_json_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="no schema"):
        Schemas().of(complex)
