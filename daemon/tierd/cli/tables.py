"""Lines and tables on standard output, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_ANY_LENGTH = 1 << 16


def standard_output() -> Console:
    """Return standard output, whose lines may have any length where it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _ANY_LENGTH
    return console


def say(console: Console, text: str) -> None:
    """Print one line as it is, however long."""
    console.print(text, markup=False, soft_wrap=True)


def columns(*left: str, right: tuple[str, ...]) -> Table:
    """Return an empty table with these headings: texts first, then numbers."""
    table = Table(box=None, pad_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def print_table(table: Table, when_empty: str) -> Console:
    """Print a table, or that it is empty; return where."""
    console = standard_output()
    console.print(table if table.row_count else when_empty)
    return console
