"""A running engine over null slots, and what it delivers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from engine.null_slot import null_slot
from tierd.core import Batch, Event, StartedEvent, TerminalEvent, TextEvent
from tierd.engine import Engine, Snapshot
from tierd.metrics import Metrics
from tierd.settings import ModelSettings, Settings
from tierd.slot import Slot

PATIENCE = 10.0


class Mail:
    """Takes what the engine delivers."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, Event]]] = []
        self.broken = False
        self._changed = threading.Condition()

    def deliver(self, events: Sequence[tuple[str, Event]]) -> None:
        if self.broken:
            raise RuntimeError("nobody reads")
        with self._changed:
            self.calls.append(list(events))
            self._changed.notify_all()

    def events(self, request_id: str) -> list[Event]:
        """Return what a request's text and end are made of."""
        with self._changed:
            pairs = [pair for call in self.calls for pair in call]
        return [event for name, event in pairs if name == request_id and not isinstance(event, StartedEvent)]

    def started(self, request_id: str) -> bool:
        with self._changed:
            return any((request_id, StartedEvent()) in call for call in self.calls)

    def terminals(self) -> dict[str, list[TerminalEvent]]:
        found: dict[str, list[TerminalEvent]] = defaultdict(list)
        with self._changed:
            for name, event in (pair for call in self.calls for pair in call):
                if isinstance(event, TerminalEvent):
                    found[name].append(event)
        return found

    def text(self, request_id: str) -> str:
        return "".join(event.text for event in self.events(request_id) if isinstance(event, TextEvent))

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait for deliveries until `done`."""
        with self._changed:
            assert self._changed.wait_for(done, PATIENCE), "the engine delivered too little"

    def terminal(self, request_id: str) -> TerminalEvent:
        self.wait(lambda: bool(self.terminals().get(request_id)))
        (event,) = self.terminals()[request_id]
        return event


class Gate:
    """Holds every step until it is let through, and counts them."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def __call__(self, batch: Batch) -> None:
        self._arrived.release()
        assert self._open.acquire(timeout=PATIENCE)

    def wait(self) -> None:
        """Wait until a step stands at the gate."""
        assert self._arrived.acquire(timeout=PATIENCE)

    def let(self, steps: int = 1) -> None:
        self._open.release(steps)


def model(
    id: str, *, path: Path = Path("null.gguf"), streams: int = 8, default: bool = False, weight: int = 1
) -> ModelSettings:
    return ModelSettings(id=id, path=path, streams=streams, default=default, weight=weight)


NULL = model("null", default=True)


class Harness:
    """mail: what was delivered. slots: what was opened, to be looked at only while the engine rests.

    open_slot: opens a model; with None `null_slot` does, with the other options.
    settings: the engine's; engine: what else it is given.
    """

    def __init__(
        self,
        *,
        open_slot: Callable[[ModelSettings], Slot] | None = None,
        settings: Settings | None = None,
        engine: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.mail = Mail()
        self.slots: dict[str, Slot] = {}
        self.metrics = Metrics("0.0")
        self._open_slot = open_slot or partial(null_slot, **options)
        self.engine = Engine(
            self.mail.deliver, open_slot=self._open, metrics=self.metrics, settings=settings, **engine or {}
        )

    def _open(self, settings: ModelSettings) -> Slot:
        slot = self.slots[settings.id] = self._open_slot(settings)
        return slot

    def load(self, *models: ModelSettings) -> None:
        for future in [self.engine.load(settings) for settings in models]:
            future.result(PATIENCE)

    def snapshot_when(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """Wait, for want of an event, until the snapshot is as wanted."""
        pause = threading.Event()
        for _ in range(int(PATIENCE * 1000)):
            snapshot = self.engine.snapshot
            if condition(snapshot):
                return snapshot
            pause.wait(0.001)
        raise AssertionError(f"still {self.engine.snapshot}")

    def rests(self) -> bool:
        """Whether nobody holds a page of any model, as the last snapshot has it."""
        return all(
            m.pages_free + m.pages_cached == m.pages_total
            and not (m.running or m.waiting or m.pages_reserved)
            for m in self.engine.snapshot.models.values()
        )


@contextmanager
def running(*models: ModelSettings, **options: Any) -> Iterator[Harness]:
    """Run an engine that serves the models; options as of `Harness`. It is stopped at the end."""
    harness = Harness(**options)
    harness.engine.start()
    try:
        harness.load(*models)
        yield harness
    finally:
        harness.engine.stop(PATIENCE)
