"""Tools that a model may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a client offers. parameters: JSON Schema of its arguments, an object's."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)

    def told(self) -> dict[str, object]:
        """Return it as templates expect tools, in OpenAI's shape."""
        function: dict[str, object] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = dict(self.parameters) or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}
