"""JSON schemas for tests: some by hand, for what goes wrong easily, and any number at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def record(**properties: Schema) -> Schema:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def listing(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


TEXT: Schema = {"type": "string", "maxLength": 12}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

BY_HAND: dict[str, Schema] = {
    "an object of a text and a number": record(name=TEXT, age=COUNT),
    "nested five deep": record(a=record(b=record(c=record(d=record(e=COUNT))))),
    "a choice of emoji": {"enum": ["😀", "👩‍👩‍👧", "🏳️‍🌈", "e\u0301"]},
    "a choice of all kinds": {"enum": ["a", 1, 2.5, None, True, [1, "x"], {"k": []}]},
    "one value": {"const": {"kind": "ö", "list": [1, None]}},
    "keys in many scripts": record(
        **{"ключ": COUNT, "鍵": TEXT, "🔑": {"type": "boolean"}, 'a"b\\c\n': COUNT}
    ),
    "a pattern of Chinese": {"type": "string", "pattern": "^[\u4e00-\u9fa5]{2,4}$"},
    "a pattern of bytes that are tokens": {"type": "string", "pattern": "^[\U0001f600-\U0001f64f]{1,3}$"},
    "a pattern in the middle": {"type": "string", "pattern": "[0-9]{3}", "maxLength": 8},
    "a pattern of a plate": {"type": "string", "pattern": "^[A-Z]{1,3}-[A-Z]{1,2} [0-9]{1,4}$"},
    "a list by position": {"type": "array", "prefixItems": [TEXT, COUNT], "items": False, "minItems": 2},
    "a list of lists": listing(listing(COUNT, 1, 2), 1, 3),
    "an empty list": listing(COUNT, 0, 0),
    "a definition": {
        "$defs": {"point": record(x=COUNT, y=COUNT)},
        **listing({"$ref": "#/$defs/point"}, 1, 2),
    },
    "a definition of old": {"definitions": {"t": TEXT}, **record(a={"$ref": "#/definitions/t"})},
    "a tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": COUNT, "kids": listing({"$ref": "#/$defs/node"}, 0, 2)},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "either": {"anyOf": [record(text=TEXT), record(count=COUNT)]},
    "one of those told apart by a kind": {
        "oneOf": [record(kind={"const": "cat"}, lives=COUNT), record(kind={"const": "dog"}, name=TEXT)]
    },
    "one of two types": {"oneOf": [TEXT, COUNT]},
    "all of": {"allOf": [record(a=COUNT, b=TEXT) | {"additionalProperties": True}, {"required": ["a"]}]},
    "perhaps null": record(a={"type": ["string", "null"], "maxLength": 8}),
    "optional properties": {
        "type": "object",
        "properties": {"a": COUNT, "b": TEXT},
        "additionalProperties": False,
    },
    "other properties of a type": {
        "type": "object",
        "properties": {"id": COUNT},
        "required": ["id"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    "properties by pattern": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,4}$": COUNT},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "a required property that none describes": {"type": "object", "required": ["x"], "maxProperties": 1},
    "an integer within bounds": {"type": "integer", "minimum": -7, "exclusiveMaximum": 1000},
    "a number within bounds": {"type": "number", "exclusiveMinimum": -0.5, "maximum": 12.25},
    "a multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
    "a text of a length": {"type": "string", "minLength": 3, "maxLength": 5},
    "any value": {},
    "any object": {"type": "object", "maxProperties": 2},
    "what only describes": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Answer",
        "description": "What it is.",
        **record(a=COUNT | {"description": "how many", "default": 3, "examples": [4]}),
    },
    **{f"the format {name}": {"type": "string", "format": name} for name in FORMATS},
}


def at_random(count: int, seed: int = 1) -> list[Schema]:
    """Return so many schemas, the same for a seed."""
    rng = random.Random(seed)
    return [_defined(rng) if rng.random() < 0.15 else _any(rng, 3) for _ in range(count)]


def _any(rng: random.Random, depth: int) -> Schema:
    leaves: list[Callable[[random.Random], Schema]] = [_text, _number, _choice, _pattern, _format, _flag]
    if depth == 0:
        return rng.choice(leaves)(rng)
    nested: list[Callable[[random.Random, int], Schema]] = [_object, _object, _list, _either]
    return rng.choice(nested)(rng, depth - 1) if rng.random() < 0.8 else rng.choice(leaves)(rng)


def _text(rng: random.Random) -> Schema:
    least = rng.randrange(4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(1, 16)}


def _number(rng: random.Random) -> Schema:
    low = rng.randrange(-1000, 1000)
    high = low + rng.randrange(1, 500)
    lower, upper = rng.choice(("minimum", "exclusiveMinimum")), rng.choice(("maximum", "exclusiveMaximum"))
    if rng.random() < 0.3:
        return {"type": "number", lower: low / 8, upper: high / 8}
    return {"type": "integer", lower: low, upper: high + 1}


def _choice(rng: random.Random) -> Schema:
    values = ["red", "grün", "蓝色", "🟡", "", 'a "quoted" one', "tab\there", 7, -2.5, None, True, False]
    return {"enum": rng.sample(values, rng.randrange(1, 6))}


def _pattern(rng: random.Random) -> Schema:
    patterns = (
        "^[a-z]+(-[a-z]+){0,2}$",
        "^v[0-9]+\\.[0-9]+$",
        "^[あ-ん]{1,5}$",
        "^(yes|no|人)$",
        "^#[0-9a-f]{6}$",
    )
    return {"type": "string", "pattern": rng.choice(patterns), "maxLength": 14}


def _format(rng: random.Random) -> Schema:
    return {"type": "string", "format": rng.choice(("date", "time", "ipv4", "uuid", "email"))}


def _flag(rng: random.Random) -> Schema:
    return {"type": ["boolean", "null"]}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(["id", "name", "größe", "値", "an-other key", "🔑", "x"], rng.randrange(1, 5))
    schema: Schema = {"type": "object", "properties": {name: _any(rng, depth) for name in names}}
    if rng.random() < 0.3:
        return schema | {
            "required": names,
            "additionalProperties": {"type": "boolean"},
            "maxProperties": len(names) + 1,
        }
    return schema | {
        "required": [name for name in names if rng.random() < 0.8],
        "additionalProperties": False,
    }


def _list(rng: random.Random, depth: int) -> Schema:
    least = rng.randrange(3)
    return listing(_any(rng, depth), least, least + rng.randrange(3))


def _either(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randrange(2, 4))]}


def _defined(rng: random.Random) -> Schema:
    place = rng.choice(("$defs", "definitions"))
    shared = {"$ref": f"#/{place}/shared"}
    return record(first=shared, others=listing(shared, 0, 2)) | {place: {"shared": _any(rng, 1)}}
