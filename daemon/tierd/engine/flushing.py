"""K/V that goes for good: flushes, and whoever else is answered once no file of what was closed is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TypeVar

from tierd.engine.answers import Answers
from tierd.engine.messages import Flush
from tierd.errors import StateError, TierdError
from tierd.kv.bank import Bank
from tierd.slot import Slot

log = logging.getLogger(__name__)

T = TypeVar("T")


class Flushes:
    """Those whose files go. The engine thread's own. bank: whose the files are; None without one."""

    def __init__(self, bank: Bank | None, answers: Answers) -> None:
        self._bank = bank
        self._answers = answers
        self._waiting: set[Future[int]] = set()

    @property
    def busy(self) -> bool:
        """Whether files are being removed for one."""
        return bool(self._waiting)

    def flush(self, flush: Flush, slots: Collection[Slot]) -> None:
        """Empty the prefix caches of these slots and, unless it is for one model, what no slot has."""
        freed = {slot.id: slot.flush() for slot in slots}
        if flush.model is None and self._bank is not None:
            self._bank.flush()  # what is there of models that are not loaded
        for model, pages in freed.items():
            log.info("model=%s flushed the prefix cache, %d pages", model, pages)
        self._waiting.add(flush.freed)
        self.answer_once_clear(flush.freed, sum(freed.values()), lambda: self._waiting.remove(flush.freed))

    def forget(self, model: str) -> None:
        """Give up what the bank has of a model that is served no more."""
        if self._bank is not None:
            self._bank.flush(model)

    def answer_once_clear(self, future: Future[T], result: T, then: Callable[[], None]) -> None:
        """Call `then` once no file is left of what the bank has closed, and let a future have its result.

        StateError instead where files are left that should not be.
        """

        def cleared(problem: str) -> None:
            then()
            if problem:
                what = f"state.dir: {problem}; remove what lies there by hand"
                self._answers.refuse(future, StateError(what))
            else:
                self._answers.give(future, result)

        if self._bank is None:
            cleared("")
        else:
            self._bank.filing.when_cleared(cleared)

    def break_down(self, error: TierdError) -> None:
        """The engine has failed: say so to those who wait."""
        for freed in self._waiting:
            freed.set_exception(error)
