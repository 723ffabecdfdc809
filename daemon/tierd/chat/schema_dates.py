"""Dates that exist, in JSON schemas: llguidance has months of 31 days where the format of a text is a date.

So texts of these formats get a pattern as well. RFC 3339, section 5.6, `full-date`, but for the year 0.
"""

from __future__ import annotations

from typing import Any

_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # of numbers above 0 of two digits, those that 4 divides
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
PATTERNS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[Tt]"}

# Keywords whose values are no schemas, nor made of such.
_VALUES = ("const", "enum", "default", "examples")
# Keywords whose values are schemas by name.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def with_real_dates(schema: Any) -> Any:
    """Return a schema in which dates have to exist. Anything else passes as it is."""
    if isinstance(schema, list):
        return [with_real_dates(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {keyword: _within(keyword, value) for keyword, value in schema.items()}
    kind = found.get("format")
    pattern = PATTERNS.get(kind) if isinstance(kind, str) else None
    if pattern is None:
        return found
    others = found.get("allOf", [])
    return found | {"allOf": [*(others if isinstance(others, list) else [others]), {"pattern": pattern}]}


def _within(keyword: str, value: Any) -> Any:
    if keyword in _VALUES:
        return value
    if keyword in _NAMED and isinstance(value, dict):
        return {name: with_real_dates(each) for name, each in value.items()}
    return with_real_dates(value)
