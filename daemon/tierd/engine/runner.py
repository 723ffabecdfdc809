"""The thread of one device: takes a step, runs it, posts its completion."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from tierd.backends.protocol import Logits
from tierd.engine.messages import Message, StepDone
from tierd.slot import Slot, Step


class Runner:
    """Runs the steps of all slots of one device in the order they come, one at a time.

    The engine gives a slot's next step only after the last one's completion, so slots take turns.
    """

    def __init__(self, device: str, inbox: SimpleQueue[Message]) -> None:
        self._inbox = inbox
        self._steps: SimpleQueue[tuple[Slot, Step] | None] = SimpleQueue()
        # A daemon: a hung device must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"tierd-{device}", daemon=True)
        self._thread.start()

    def submit(self, slot: Slot, step: Step) -> None:
        """Run the slot's step when its turn comes. Never blocks."""
        self._steps.put((slot, step))

    def stop(self) -> None:
        """Let the thread end once its steps are done. Never blocks."""
        self._steps.put(None)

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        while (work := self._steps.get()) is not None:
            slot, step = work
            started = time.monotonic()
            result: Logits | Exception
            try:
                result = slot.executor.run(step.batch)
            except Exception as error:  # whatever a backend raises is this step's failure, not the thread's
                result = error
            self._inbox.put(StepDone(slot, step, result, time.monotonic() - started))
