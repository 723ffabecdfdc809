"""A table of results: in the README between its marks, and on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Result = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of the README. folder: of its results. name: in its marks.

    rows: a heading, and what stands under it. note: what is said below.
    """

    folder: Path
    name: str
    rows: Callable[[Result], list[list[str]]]
    note: Callable[[Result], str]

    @property
    def marks(self) -> tuple[str, str]:
        """Between which lines it stands."""
        return f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"

    def content(self) -> str:
        """Return the table of the newest result, "" where there is none: their names begin with the date."""
        results = sorted(self.folder.glob("*.json"))
        if not results:
            return ""
        return self.markdown(json.loads(results[-1].read_text(encoding="utf-8")))

    def markdown(self, result: Result) -> str:
        """Return the table of a result, and what was measured where."""
        heading, *body = self.rows(result)
        rule = ["---", *["---:"] * (len(heading) - 1)]
        lines = ["| " + " | ".join(row) + " |" for row in [heading, rule, *body]]
        return "\n".join(["", *lines, "", *_wrapped(self.note(result)), ""])

    def plain(self, result: Result) -> str:
        """Return the table for a terminal."""
        table = self.rows(result)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]) for first, *rest in table
        )

    def put(self, page: str) -> str:
        """Return a page with what stands between the marks replaced."""
        begin, end = self.marks
        whole = f"{begin}\n{self.content()}\n{end}"
        page, count = re.subn(
            f"{re.escape(begin)}\n.*?{re.escape(end)}", lambda _: whole, page, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"the page must hold {begin} and {end} once")
        return page


def processor(result: Result) -> str:
    """Say what computed."""
    machine = result["machine"]
    return f"{machine['cores']} cores of {machine['processor']} ({', '.join(machine['flags'])})"


def duration(seconds: float) -> str:
    """Say how long something took."""
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    return f"{1000 * seconds:,.{0 if seconds >= 0.01 else 1}f} ms"


def _wrapped(text: str, width: int = 115) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
