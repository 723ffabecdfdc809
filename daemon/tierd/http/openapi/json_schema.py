"""JSON Schemas, draft 2020-12, of the Structs that bodies are decoded into and encoded from.

msgspec's own writer stops at fields of JSON with a default, and at unions of Structs that no tag tells apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

Schema = dict[str, Any]

_PLAIN: Mapping[object, str] = {
    None: "null",
    NoneType: "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
}
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}


class Schemas:
    """Schemas of types. Those of Structs are kept by name in `components`, and referred to.

    JSON that is kept as it is may be marked with what it `holds`, in the extra of its Meta.
    Fields that `unsupported.off` marks take null and the values that mean off. Of a frozen Struct, which is
    one that is written, all fields are there but those that may be unset or whose defaults are left out.
    """

    def __init__(self, home: str = "#/components/schemas/") -> None:
        self.components: dict[str, Schema] = {}
        self._home = home
        self._names: dict[type[msgspec.Struct], str] = {}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type: what JSON has, Literal, Annotated, unions and Structs.

        Raises TypeError for another one.
        """
        origin, arguments = get_origin(kind), get_args(kind)
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if kind in (Any, msgspec.Raw):
            return {}
        if origin is Annotated:
            return self._marked(arguments[0], arguments[1:])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, UnionType):
            choices = [self.of(one) for one in arguments if one is not msgspec.UnsetType]
            return choices[0] if len(choices) == 1 else {"anyOf": choices}
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            key, value = (self.of(one) for one in arguments)
            names = {"propertyNames": key} if key != {"type": "string"} else {}
            return {"type": "object", "additionalProperties": value, **names}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {"$ref": self._home + self._name(kind)}
        raise TypeError(f"{kind}: no schema is known of it")

    def _marked(self, kind: Any, marks: tuple[Any, ...]) -> Schema:
        schema = self.of(kind)
        for mark in marks:
            if not isinstance(mark, msgspec.Meta):
                continue
            extra = mark.extra or {}
            if "holds" in extra:
                schema |= self.of(extra["holds"])
            if "off" in extra:
                values = [msgspec.json.decode(value) for value in extra["off"]]
                advice = extra["instead"]
                schema["description"] = f"Not supported; {advice}." if advice else "Not supported."
                schema["enum"] = [None, *values]
            for bound, word in _BOUNDS.items():
                if (value := getattr(mark, bound)) is not None:
                    schema[word] = value
            for bound in ("min", "max"):
                if (length := getattr(mark, f"{bound}_length")) is not None:
                    schema[bound + _LENGTHS[schema["type"]]] = length
        return schema

    def _name(self, kind: type[msgspec.Struct]) -> str:
        """Return the name of a Struct; where two have the same, that of its module tells the later apart."""
        if kind not in self._names:
            name = kind.__name__
            if name in self.components:
                name = f"{kind.__module__.rpartition('.')[2]}.{name}"
            self._names[kind] = name
            self.components[name] = {}  # it may refer to itself
            self.components[name] = self._struct(kind)
        return self._names[kind]

    def _struct(self, kind: type[msgspec.Struct]) -> Schema:
        config = kind.__struct_config__
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if config.tag_field is not None:
            properties[config.tag_field] = {"enum": [config.tag]}
            required.append(config.tag_field)
        for field in msgspec.structs.fields(kind):
            schema = self.of(field.type)
            written = config.frozen and not config.omit_defaults and field.default is not msgspec.UNSET
            if field.required or written:
                required.append(field.encode_name)
            elif isinstance(field.default, str | int | float):
                schema["default"] = field.default
            properties[field.encode_name] = schema
        described = inspect.getdoc(kind)
        return {
            "type": "object",
            **({"description": described} if described else {}),
            "properties": properties,
            **({"required": required} if required else {}),
        }
