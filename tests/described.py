"""What a server says of itself at /openapi.json, and whether what it sends is like that."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

EVENT_STREAM = "text/event-stream"


class Described:
    """The document. A path is as it has it: `/v1/models/{id}`."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.paths: dict[str, dict[str, Any]] = document["paths"]

    @property
    def schemas(self) -> dict[str, Any]:
        return self.document["components"]["schemas"]

    def body(self, path: str) -> dict[str, Any]:
        """Return the schema of what is posted there."""
        content = self.paths[path]["post"]["requestBody"]["content"]
        return content["application/json"]["schema"]

    def check_answer(self, path: str, value: object, *, method: str = "post", status: int = 200) -> None:
        content = self.paths[path][method]["responses"][str(status)]["content"]
        self.check(content["application/json"]["schema"], value)

    def check_stream(self, path: str, text: str, *, method: str = "post") -> None:
        """Look at the JSON of every event of a stream that came to its end."""
        schema = self.paths[path][method]["responses"]["200"]["content"][EVENT_STREAM]["x-event"]
        validator = self._validator(schema)
        assert text.endswith("\n\n")
        for event in text.split("\n\n")[:-1]:
            data = [line[6:] for line in event.split("\n") if line.startswith("data: ")]
            assert len(data) == (0 if event.startswith(":") else 1)
            for one in data:
                if one != "[DONE]":
                    validator.validate(json.loads(one))

    def check(self, schema: dict[str, Any], value: object) -> None:
        self._validator(schema).validate(value)

    def is_valid(self, schema: dict[str, Any], value: object) -> bool:
        return self._validator(schema).is_valid(value)

    def _validator(self, schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
        return jsonschema.Draft202012Validator(schema | {"components": self.document["components"]})
