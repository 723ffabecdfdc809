"""`tierd ctl`: how far an operation is, shown while it runs, and what its phases took in the end.

At a terminal a bar for each phase, on standard error, where it leaves no trace; else lines on standard
output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from tierd.cli.tables import columns, say, standard_output
from tierd.engine.operation import RUNNING, OperationView

Show = Callable[[OperationView], None]

# Between two lines on the same phase.
EVERY_S = 3.0
_BAR = 40


@contextmanager
def progress(*, lines: bool) -> Iterator[Show]:
    """Return what is called with each view of an operation. lines: whether standard output may have some."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        bars = _Bars()
        with Live(get_renderable=bars.draw, console=console, transient=True, refresh_per_second=10):
            yield bars.show
    else:
        yield _Lines().show if lines else lambda view: None


class _Bars:
    """A row for each phase: its name, a bar, and the time it took or how far it is."""

    def __init__(self) -> None:
        self._view: OperationView | None = None
        self._since = 0.0

    def show(self, view: OperationView) -> None:
        """Draw another view from now on."""
        self._view, self._since = view, time.monotonic()

    def draw(self) -> Table:
        """Return the picture; a bar whose end is not known swings."""
        table = Table.grid(padding=(0, 1))
        view = self._view
        if view is None:
            return table
        for phase in view.phases:
            bar = ProgressBar(total=1, completed=1, width=_BAR)
            table.add_row(escape(phase.name), bar, f"{phase.seconds * 1000:,.1f} ms")
        if view.state == RUNNING:
            bar = ProgressBar(total=view.total or None, completed=view.done, width=_BAR)
            seconds = view.seconds - sum(phase.seconds for phase in view.phases)
            seconds += time.monotonic() - self._since
            table.add_row(escape(view.phase or view.kind), bar, share(view) or f"{seconds:,.1f} s")
        return table


class _Lines:
    """A line when a phase begins, and on its way one every few seconds."""

    def __init__(self) -> None:
        self._phase = ""
        self._said = 0.0

    def show(self, view: OperationView) -> None:
        """Print a line, or nothing."""
        now = time.monotonic()
        if view.phase and (view.phase != self._phase or (view.total and now - self._said >= EVERY_S)):
            self._phase, self._said = view.phase, now
            say(standard_output(), " ".join((view.phase, share(view))).rstrip())


def print_phases(view: OperationView) -> None:
    """Print what the phases of an operation took that are over, and the whole; nothing if there are none."""
    if not view.phases:
        return
    table = columns("phase", right=("ms",))
    for phase in view.phases:
        table.add_row(escape(phase.name), f"{phase.seconds * 1000:,.1f}")
    table.add_row("so far" if view.state == RUNNING else "in all", f"{view.seconds * 1000:,.1f}")
    standard_output().print(table)


def share(view: OperationView) -> str:
    """Say how much of its phase is done; "" where that is not known."""
    return f"{100 * view.done // view.total} %" if view.total else ""
