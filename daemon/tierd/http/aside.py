"""Work that may wait for a disk, done where nobody waits for it but the handler that asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Result = TypeVar("_Result")


async def aside(work: Callable[[], _Result]) -> _Result:
    """Return what `work` returns, or raise what it raises; it runs in a thread of its own.

    A daemon: what a hung disk keeps must not keep the process from ending.
    """
    result: Future[_Result] = Future()
    result.set_running_or_notify_cancel()  # from now on nobody can cancel it

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="tierd-aside", daemon=True).start()
    return await asyncio.wrap_future(result)
