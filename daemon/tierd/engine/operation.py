"""Work that takes long and is followed from outside: what it does now, how far it is, how it ended."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from tierd.errors import TierdError

RUNNING, DONE, FAILED = "running", "done", "failed"

_numbers = itertools.count(1)


class PhaseView(msgspec.Struct, frozen=True):
    """A phase that is over. seconds: how long it took."""

    name: str
    seconds: float


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """How an operation stands. kind: what it does. model: to which; "" for all.

    state: RUNNING, DONE or FAILED. phase: what it does now, "" once it has ended. phases: those that are
    over, in order. done, total: how far the phase is, in units of its own; total 0 where that is not known.
    error: why it failed, in one line. created: Unix seconds. seconds: since then, or in all.
    """

    id: str
    kind: str
    model: str
    state: str
    phase: str
    phases: tuple[PhaseView, ...]
    done: int
    total: int
    error: str
    created: float
    seconds: float


class Operation:
    """One of them. Any thread may tell of it or ask. failure: why it failed, without its traceback."""

    def __init__(self, kind: str, model: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: tells monotonic seconds."""
        self.id = f"{kind}-{next(_numbers)}-{secrets.token_hex(4)}"
        self.kind = kind
        self.model = model
        self.failure: BaseException | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._created = time.time()
        self._began = clock()
        self._state = RUNNING
        self._phase = ""
        self._phase_began = self._began
        self._phases: list[PhaseView] = []
        self._done = self._total = 0
        self._seconds = 0.0
        self._watchers: tuple[Callable[[], None], ...] = ()

    @property
    def ended(self) -> bool:
        """Whether it is over, well or not."""
        return self._state != RUNNING

    @property
    def view(self) -> OperationView:
        """How it stands now."""
        with self._lock:
            seconds = self._seconds if self.ended else self._clock() - self._began
            return OperationView(
                id=self.id,
                kind=self.kind,
                model=self.model,
                state=self._state,
                phase=self._phase,
                phases=tuple(self._phases),
                done=self._done,
                total=self._total,
                error="" if self.failure is None else _line(self.failure),
                created=round(self._created, 3),
                seconds=round(seconds, 6),
            )

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, in the thread that makes it; it must neither block nor raise."""
        with self._lock:
            self._watchers += (changed,)

    def unwatch(self, changed: Callable[[], None]) -> None:
        """Call it no more. A call that another thread has begun may still come."""
        with self._lock:
            self._watchers = tuple(watcher for watcher in self._watchers if watcher != changed)

    def enter(self, phase: str) -> None:
        """Begin a phase; the one before is over. Nothing happens where the operation has ended."""
        with self._lock:
            if self.ended:
                return
            self._end_phase()
            self._phase, self._done, self._total = phase, 0, 0
        self._tell()

    def progress(self, done: int, total: int) -> None:
        """Tell how far the phase is. Nothing happens where the operation has ended."""
        with self._lock:
            if self.ended or (self._done, self._total) == (done, total):
                return
            self._done, self._total = done, total
        self._tell()

    def finish(self) -> None:
        """Note that it is done. Nothing happens where it has ended."""
        self._end(DONE, None)

    def fail(self, error: BaseException) -> None:
        """Note that it failed. Nothing happens where it has ended."""
        self._end(FAILED, error)

    def follow(self, future: Future[Any]) -> None:
        """Let it end as a future does."""
        future.add_done_callback(self._followed)

    def _followed(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            self.finish()
        else:
            self.fail(error)

    def _end(self, state: str, error: BaseException | None) -> None:
        with self._lock:
            if self.ended:
                return
            self._end_phase()
            if error is not None:
                _forget_frames(error)
            else:
                self._done = self._total
            self.failure = error
            self._seconds = self._clock() - self._began
            self._phase, self._state = "", state
        self._tell()

    def _tell(self) -> None:
        for changed in self._watchers:
            changed()

    def _end_phase(self) -> None:
        now = self._clock()
        if self._phase:
            self._phases.append(PhaseView(self._phase, round(now - self._phase_began, 6)))
        self._phase_began = now


def _forget_frames(error: BaseException) -> None:
    """Let go of what was at work when an error was raised: an operation outlives it."""
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and link.__traceback__ is not None:
            link.__traceback__ = None
            chain += link.__cause__, link.__context__


def _line(error: BaseException) -> str:
    return str(error) if isinstance(error, TierdError) else f"{type(error).__name__}: {error}"
