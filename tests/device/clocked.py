"""A device that notes how long its steps and its uploads take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tierd.backends.vkapi import Commands, Device, Part, Recorder


@dataclass(frozen=True)
class Upload:
    """Bytes that were copied to the device, and the seconds that took, filling included."""

    bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds


class ClockedDevice(Device):
    """A device whose recordings begin and end with a timestamp.

    spans: seconds that the device spent on each submission that was waited for, in order. uploads: in order.
    """

    spans: list[float]
    uploads: list[Upload]

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.spans, self.uploads = [], []
        self._running: deque[tuple[int, Commands]] = deque()

    def recorder(self, *, timestamps: int = 0) -> Recorder:
        """See Device. A recording that asks for timestamps has its own only."""
        recorder = super().recorder(timestamps=timestamps or 2)
        if timestamps:
            return recorder
        recorder.timestamp(0)
        finish = recorder.finish

        def clocked_finish() -> Commands:
            recorder.timestamp(1)
            return finish()

        recorder.finish = clocked_finish  # type: ignore[method-assign]
        return recorder

    def submit(self, commands: Commands) -> int:
        """See Device."""
        value = super().submit(commands)
        self._running.append((value, commands))
        return value

    def wait(self, value: int, timeout_s: float) -> None:
        """See Device. Reads the timestamps of what is done by then, before it is submitted again."""
        super().wait(value, timeout_s)
        while self._running and self._running[0][0] <= value:
            _, commands = self._running.popleft()
            if commands.timestamps == 2:
                self.spans.append(self.timestamps(commands)[1])

    def upload(self, parts: Sequence[Part], *arguments: Any, **options: Any) -> None:
        """See Device."""
        started = time.perf_counter()
        super().upload(parts, *arguments, **options)
        seconds = time.perf_counter() - started
        self.uploads.append(Upload(sum(part.size for part in parts), seconds))
