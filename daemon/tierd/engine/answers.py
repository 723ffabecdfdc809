"""What administrators are told, once what it is about can be seen by all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Answers:
    """Results of futures that are due with the end of a turn, when its snapshot is published."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def give(self, future: Future[T], result: T) -> None:
        """Let a future have a result."""
        self._due.append(partial(future.set_result, result))

    def refuse(self, future: Future[T], error: BaseException) -> None:
        """Let a future fail."""
        self._due.append(partial(future.set_exception, error))

    def send(self) -> bool:
        """Do so now; return whether there were any. What they call may give others, for the next time."""
        due, self._due = self._due, deque()
        for tell in due:
            tell()
        return bool(due)
