"""What a server says of itself at /openapi.json, and whether what it sends is like that."""

from __future__ import annotations

from typing import Any

import jsonschema

from live import Live

EVENT_STREAM = "text/event-stream"


class Described:
    """The document. A path is as it has it: `/v1/models/{id}`."""

    def __init__(self, live: Live) -> None:
        response = live.get("/openapi.json")
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        self.document: dict[str, Any] = response.json()
        self.paths: dict[str, dict[str, Any]] = self.document["paths"]

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

    def check_event(self, path: str, value: object, *, method: str = "post") -> None:
        """Look at the JSON of one event of a stream."""
        content = self.paths[path][method]["responses"]["200"]["content"]
        self.check(content[EVENT_STREAM]["x-event"], value)

    def check(self, schema: dict[str, Any], value: object) -> None:
        self._validator(schema).validate(value)

    def is_valid(self, schema: dict[str, Any], value: object) -> bool:
        return self._validator(schema).is_valid(value)

    def _validator(self, schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
        return jsonschema.Draft202012Validator(schema | {"components": self.document["components"]})
