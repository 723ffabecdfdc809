"""The settings, read again at SIGHUP while tierd serves: live ones are taken over, the others named.

The same signal says that the terminal is gone where tierd was started at one; then it ends as at SIGTERM.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

from tierd.cli.supervision import Supervision
from tierd.errors import TierdError
from tierd.http import Roster
from tierd.settings import Settings, adopt

log = logging.getLogger(__name__)


class Reloader:
    """A thread that reads the settings when it is asked to. settings: those that hold."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        take: Callable[[Settings], None],
        supervision: Supervision,
        roster: Roster,
    ) -> None:
        """`read`: reads them. take: has all go by those that it is given. Both may raise TierdError."""
        self.settings = settings
        self._read = read
        self._take = take
        self._supervision = supervision
        self._roster = roster
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._had_terminal = _has_terminal()

    @contextmanager
    def on_hangup(self) -> Iterator[None]:
        """Do so at each SIGHUP. Nothing happens in other threads than the main one, which get no signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        threading.Thread(target=self._run, name="tierd-reload", daemon=True).start()
        before = signal.signal(signal.SIGHUP, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)

    def reload(self) -> None:
        """Read the settings, and take over what may change. What is wrong with them is logged."""
        self._supervision.reloading()
        try:
            change = adopt(self.settings, self._read())
            self._take(change.settings)
        except TierdError as error:
            log.error("the settings from before hold: %s", error)
            self._supervision.reloaded(problem=str(error))
            return
        except Exception as error:  # a fault of tierd's own: it must be told of, and the next time may do
            log.exception("the settings from before hold")
            self._supervision.reloaded(problem=type(error).__name__)
            return
        self.settings = change.settings
        log.info("read the settings again; changed: %s", ", ".join(change.taken) or "nothing")
        self._roster.restart_needed = change.waiting
        waiting = ", ".join(change.waiting)
        if waiting:
            log.warning("changed too, but a restart is needed for it: %s", waiting)
        self._supervision.reloaded(waiting)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._had_terminal and not _has_terminal():
            signal.raise_signal(signal.SIGTERM)
        else:
            self._asked.put(None)

    def _run(self) -> None:
        while True:
            self._asked.get()
            self.reload()


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal; it loses it when that is closed (tty(4))."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
