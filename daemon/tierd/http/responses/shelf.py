"""All responses that may be asked for: those on their way, and behind them the store of those that ended."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from tierd.errors import RequestError, TierdError
from tierd.http.quotas import Lease
from tierd.http.responses.run import Run
from tierd.http.responses.store import Kept, ResponsesStore
from tierd.service.logs import told

logger = logging.getLogger("tierd.http")


class ResponsesShelf:
    """Runs by owner and id until they have ended, then what the store keeps of them."""

    def __init__(self, store: ResponsesStore) -> None:
        self._store = store
        self._runs: dict[tuple[str, str], Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, run: Run) -> None:
        """Take in a run that has not begun."""
        self._runs[run.owner, run.id] = run
        run.when_over = self._over

    def begin(self, run: Run, lease: Lease) -> None:
        """Let a run make its response in the background. It holds the lease from now until it is over."""
        lease.hold()
        task = asyncio.create_task(self._finish(run))
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            lease.release()

        task.add_done_callback(end)

    def find(self, owner: str, id: str) -> Run | Kept | None:
        """Return a response, None where there is none."""
        return self._runs.get((owner, id)) or self._store.find(owner, id)

    def remove(self, owner: str, id: str) -> bool:
        """Forget a response, which ends if it has not; return whether there was one."""
        run = self._runs.pop((owner, id), None)
        if run is None:
            return self._store.remove(owner, id)
        run.cancel()
        return True

    async def close(self) -> None:
        """End what runs in the background."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _over(self, run: Run) -> None:
        forgotten = self._runs.pop((run.owner, run.id), None) is None
        if not (forgotten or run.lost):
            response = msgspec.json.encode(run.response())
            frames = () if run.log is None else tuple(run.log.frames)
            self._store.put(run.owner, Kept(run.id, response, run.input, frames))

    async def _finish(self, run: Run) -> None:
        try:
            await run.finish()
        except RequestError:
            pass  # the response says it
        except Exception as error:
            unforeseen = not isinstance(error, TierdError)
            logger.error("in the background (%s): %s", run.id, told(error), exc_info=unforeseen)
