"""Drains, from the word to the answer: no stream runs, and what is to outlive the process is in files."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tierd.engine.keeping import Keeper, too_late
from tierd.engine.messages import Drain
from tierd.errors import StateError, TierdError
from tierd.settings import StateSettings
from tierd.slot import Slot


class Drains:
    """Those that have not been answered. The engine thread's own."""

    def __init__(
        self, keeper: Keeper, settings: StateSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keeper = keeper
        self._save_s = settings.save_s
        self._clock = clock
        self._waiting: list[Drain] = []
        self._until: float | None = None  # when those who wait are told that not all is written
        self._writing = False
        self._most = 0  # conversations to be written when it began

    @property
    def deadline(self) -> float | None:
        """When something is to be done though no message comes, monotonic seconds; None: never."""
        return self._until

    def add(self, drain: Drain) -> None:
        """Take in one that has come."""
        self._waiting.append(drain)
        if drain.operation is not None:
            drain.operation.enter("write" if self._writing else "wait")

    def step(self, slots: Collection[Slot], *, quiet: bool) -> None:
        """Answer, once it may be, now that no stream runs. quiet: nor are rows of any on their way."""
        for drain in self._waiting:
            if drain.ending:
                drain.drained.set_result(None)
        self._waiting = [drain for drain in self._waiting if not drain.ending]
        if not self._waiting:
            return
        if self._until is None:
            self._until = self._clock() + self._save_s
        if not self._writing and (quiet or self._keeper.finished):
            self._begin(slots)
        self._go_on(slots)

    def call_off(self, error: TierdError) -> None:
        """Let all fail."""
        for drain in self._waiting:
            drain.drained.set_exception(error)
        self._end()

    def break_down(self, error: TierdError) -> None:
        """The engine has failed: let all end, those of a server that ends as if nothing had been."""
        for drain in self._waiting:
            if drain.ending:
                drain.drained.set_result(None)
            else:
                drain.drained.set_exception(error)
        self._end()

    def _begin(self, slots: Collection[Slot]) -> None:
        """Have conversations written, where they are to be."""
        self._writing = True
        self._keeper.ask()
        self._most = self._keeper.left(slots)
        for drain in self._waiting:
            if drain.operation is not None and not self._keeper.finished:
                drain.operation.enter("write")

    def _go_on(self, slots: Collection[Slot]) -> None:
        """Tell how far it is, or how it went."""
        over = self._writing and self._keeper.settled
        if over and self._keeper.problem:
            self.call_off(StateError(f"state.dir: {self._keeper.problem}"))
        elif over:
            for drain in self._waiting:
                drain.drained.set_result(None)
            self._end()
        elif self._until is not None and self._clock() >= self._until:
            self.call_off(StateError(f"state.dir: {too_late(self._save_s)}; drain again, or raise it"))
        elif self._writing:
            left = self._keeper.left(slots)
            self._most = max(self._most, left)
            for drain in self._waiting:
                if drain.operation is not None:
                    drain.operation.progress(self._most - left, self._most)

    def _end(self) -> None:
        self._waiting.clear()
        self._until, self._writing = None, False
