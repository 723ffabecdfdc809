"""Work on texts that would keep the loop waiting runs in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")

# What the loop may spend on a text by itself: about a millisecond.
SHORT_CHARACTERS = 2000
THREADS = 4


class Encoder:
    """A small pool of threads for tokenizers and templates."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tierd-encode")

    async def run(self, characters: int, work: Callable[[], _Result]) -> _Result:
        """Do work on a text of so many characters: at once when they are few, else in a thread.

        Returns what `work` returns and raises what it raises.
        """
        return work() if characters <= SHORT_CHARACTERS else await self.run_in_thread(work)

    async def run_in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Do work that may block. Returns what `work` returns and raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Let running work finish, drop what waits."""
        self._pool.shutdown(wait=False, cancel_futures=True)
