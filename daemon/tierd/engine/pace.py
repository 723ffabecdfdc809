"""How many rows of prompts go into a step beside streams that generate, so that these do not stutter.

What a step takes is learned from the steps that were measured: the time of those that hold no prompts, which
is no longer than that of any beside streams, and, of the others, what is beyond that for each row of a
prompt. A row attends to all before it, so its cost is c + a * position with neither below 0: from where it
was measured it grows at most as the position does, and before that it is no higher. Of the last few the
median counts, no single slow step.

Chunks change when rows are computed, never what comes of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from tierd.backends.rails.executor import RailsExecutor
from tierd.slot import Slot, Step
from tierd.tier.device_home import DeviceHome

# Steps of each kind that are remembered.
_LAST = 3
# Positions up to which a row of a prompt costs about the same.
_NEAR = 256
# Rows of prompts that a step has room for at least: fewer would hardly pay for reading the weights.
_LEAST = 8
# Seconds that any step takes.
_TICK = 1e-6


@dataclass(slots=True)
class Allowance:
    """Rows of prompts that a step may hold: `rows` in all, `least` of them at any cost.

    The others as far as `seconds` last. pace: says what they cost; None: nothing.
    """

    rows: int
    least: int = 0
    seconds: float = math.inf
    pace: Pace | None = None

    def take(self, start: int, wanted: int) -> int:
        """Return how many of a prompt's next rows, from position `start` on, go into the step."""
        count = min(wanted, self.rows)
        if self.pace is not None and count:
            count = min(count, max(self.least, self.pace.affordable(start, count, self.seconds)))
            self.seconds -= self.pace.row_seconds(start + count // 2) * max(count, 1)
        self.rows -= count
        self.least = max(0, self.least - count)
        return count


@dataclass(slots=True)
class Pace:
    """What the last steps of a model have taken on one executor.

    single: seconds of those without prompts. rows: of the others, (position, seconds of a row there).
    """

    single: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST))
    rows: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_LAST))

    def note(self, chunks: Iterable[tuple[int, int]], seconds: float) -> None:
        """Take in a measured step. chunks: (start, rows) of each; one row alone is of who generates."""
        chunks = list(chunks)
        prompts = [(start, count) for start, count in chunks if count > 1]
        fed = sum(count for _, count in prompts)
        singles = len(chunks) - len(prompts)
        if not fed or (singles and seconds < self.single_seconds):
            self.single.append(seconds)
        if fed >= _LEAST:
            # However long those who generate take alone: half of its share is a prompt's own.
            least = max(seconds, _TICK) * fed / (fed + singles) / 2
            own = max(seconds - bool(singles) * self.single_seconds, least)
            middle = sum((start + count // 2) * count for start, count in prompts) // fed
            self.rows.append((middle, own / fed))

    def affordable(self, start: int, most: int, seconds: float) -> int:
        """Return how many rows from a position on, at most so many, take no longer than so many seconds."""
        if seconds <= 0:
            return 0
        count = min(most, math.floor(seconds / self.row_seconds(start)))
        return min(count, math.floor(seconds / self.row_seconds(start + count // 2)))

    @property
    def single_seconds(self) -> float:
        """What a step without prompts takes, 0 before any was measured."""
        return median(self.single) if self.single else 0.0

    def row_seconds(self, position: int) -> float:
        """Return at most what a prompt's row costs at a position, endless before any was measured."""
        if not self.rows:
            return math.inf
        return median(
            cost * max(1, max(position, _NEAR) / max(measured, _NEAR)) for measured, cost in self.rows
        )


class Paces:
    """The paces of the models of one device, and how its time is dealt to their steps.

    gap: seconds that may lie between two tokens of a stream; 0: as many as there are.
    """

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self._paces: dict[str, Pace] = {}

    def note(self, slot: Slot, step: Step, seconds: float) -> None:
        """Take in how long a step took that has succeeded."""
        chunks = ((chunk.start, len(chunk.tokens)) for chunk in step.batch.chunks)
        self._paces.setdefault(slot.id, Pace()).note(chunks, seconds)

    def forget(self, slot: Slot) -> None:
        """Forget a model that is there no more."""
        self._paces.pop(slot.id, None)

    def allowance(self, slot: Slot, here: Iterable[Slot]) -> Allowance:
        """Return what prompts may have of a slot's next step. here: all slots of the device.

        The whole step when nobody generates on the device. Else the slot's part of the gap by its weight
        among those that have work, for between two steps of its own they have theirs.
        """
        working = [other for other in here if other.serves and other.has_work]
        least = least_rows(slot)
        if not self.gap or least == slot.chunk_rows or not any(map(generates, working)):
            return Allowance(slot.chunk_rows)
        pace = self._paces.setdefault(slot.id, Pace())
        weights = sum(other.settings.weight for other in working if other is not slot)
        seconds = self.gap * slot.settings.weight / (slot.settings.weight + weights)
        return Allowance(slot.chunk_rows, least, seconds - pace.single_seconds, pace)


def generates(slot: Slot) -> bool:
    """Whether anybody waits for the next token of a stream of a slot. Pure."""
    return any(
        sequence.generated and len(sequence.tokens) - sequence.fed == 1 and not sequence.paused
        for sequence in slot.running
    )


def least_rows(slot: Slot) -> int:
    """Return how many rows of prompts a slot's step has room for, whoever generates. Pure.

    On a device the whole window; on rails as many as are worth carrying there.
    """
    if isinstance(slot.home, DeviceHome):
        return slot.chunk_rows
    executor = slot.executor
    worth = executor.least if isinstance(executor, RailsExecutor) else 0
    return min(slot.chunk_rows, max(_LEAST, worth))
