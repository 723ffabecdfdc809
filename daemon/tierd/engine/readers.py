"""Whether the clients keep up with their streams.

A stream may be `reader_backlog` pieces of text ahead of its client. Then it is paused: it gets no rows,
keeps its pages, and goes on once the client has taken some. So a step never waits for a reader, and what
waits to be written is bounded.
"""

from __future__ import annotations

from tierd.core import Sequence
from tierd.settings import ServerSettings


class Readers:
    """What the clients of the live streams have not taken yet, and whose patience with them ends when."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._unread: dict[str, int] = {}
        self._stalled: dict[str, float] = {}  # paused streams and when they end; earliest first

    @property
    def deadline(self) -> float | None:
        """When the first paused stream has waited for its client for too long, monotonic seconds."""
        return next(iter(self._stalled.values()), None)

    def send(self, sequence: Sequence, now: float) -> bool:
        """Note a text on its way to the client. Returns whether the stream is paused for it."""
        request_id = sequence.request.id
        self._unread[request_id] = self._unread.get(request_id, 0) + 1
        if self._unread[request_id] < self._settings.reader_backlog:
            return False
        sequence.paused = True
        self._stalled[request_id] = now + self._settings.reader_timeout_s
        return True

    def take(self, sequence: Sequence, count: int) -> None:
        """Note that the client has taken so many texts; a paused stream goes on."""
        request_id = sequence.request.id
        self._unread[request_id] = self._unread.get(request_id, 0) - count
        if self._unread[request_id] < self._settings.reader_backlog:
            sequence.paused = False
            self._stalled.pop(request_id, None)

    def forget(self, sequence: Sequence) -> None:
        """Note that the stream has ended."""
        self._unread.pop(sequence.request.id, None)
        self._stalled.pop(sequence.request.id, None)

    def overdue(self, now: float) -> list[str]:
        """Return the requests whose clients have let them wait for too long. Pure."""
        return [request_id for request_id, end in self._stalled.items() if end <= now]
