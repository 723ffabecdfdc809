"""The stream of a response in the background: written down once, read by whoever asks, from any place on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.types import Receive


class EventLog:
    """The frames of a stream; the place of each is its sequence number. ended: no more will come."""

    def __init__(self, frames: Iterable[bytes] = (), *, ended: bool = False) -> None:
        self.frames = list(frames)
        self.ended = ended
        self._readers: set[asyncio.Event] = set()

    def write(self, frames: Iterable[bytes]) -> None:
        """Add frames."""
        self.frames += frames
        self._wake()

    def end(self) -> None:
        """Let nothing more come."""
        self.ended = True
        self._wake()

    def listen(self, wake: asyncio.Event) -> None:
        """Have an event set whenever there is news."""
        self._readers.add(wake)

    def ignore(self, wake: asyncio.Event) -> None:
        """Set it no more."""
        self._readers.remove(wake)

    def _wake(self) -> None:
        for wake in self._readers:
            wake.set()


class LogReader:
    """Reads a log for one client; see sse.Stream. A client that goes, or does not read on, is of no account
    to the response.
    """

    def __init__(self, log: EventLog, start: int, receive: Receive, timeout_s: float) -> None:
        """`start`: the first frame's place. timeout_s: how long the client may take for what it is sent."""
        self._log = log
        self._place = start
        self._receive = receive
        self._timeout_s = timeout_s
        self._wake = asyncio.Event()
        self._hung_up = False
        self._quiet_s: float | None = None
        self._cut: Callable[[], None] = lambda: None
        self._cutting: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._log.listen(self._wake)
        self._watch = asyncio.create_task(self._watch_client())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.ignore(self._wake)
        self._watch.cancel()
        self._stop_cutting()

    @property
    def ended(self) -> bool:
        """Whether all was returned."""
        return self._log.ended and self._place >= len(self._log.frames)

    @property
    def under_way(self) -> bool:
        """Whether it may begin: there is nothing to wait for."""
        return True

    def remind(self, seconds: float) -> None:
        """Let `take` return an empty list when nothing came for so long."""
        self._quiet_s = seconds

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """Call `cut` when the client does not read."""
        self._cut = cut

    async def take(self) -> Sequence[bytes]:
        """Wait for frames; none is a reminder, or all that is left. Raises ClientDisconnect."""
        self._stop_cutting()
        try:
            async with asyncio.timeout(self._quiet_s):
                while not (self._hung_up or self.ended or self._place < len(self._log.frames)):
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            pass
        if self._hung_up:
            raise ClientDisconnect
        frames = self._log.frames[self._place :]
        self._place += len(frames)
        self._cutting = asyncio.get_running_loop().call_later(self._timeout_s, self._cut)
        return frames

    def _stop_cutting(self) -> None:
        if self._cutting is not None:
            self._cutting.cancel()

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._hung_up = True
        self._wake.set()


class LogFrames:
    """Frames that are frames already; see sse.Frames."""

    first = b""

    def encode(self, news: Iterable[bytes]) -> bytes:
        """Return them as they are."""
        return b"".join(news)
