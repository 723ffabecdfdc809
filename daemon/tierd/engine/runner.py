"""A device: whose turn it is, and the thread that waits for its steps and posts their completion."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from tierd.backends.protocol import Result
from tierd.engine.messages import Message, StepDone
from tierd.engine.turns import Turns
from tierd.slot import Slot, Step


class Device:
    """Runs the steps of all slots of one device in the order they come.

    turns: who may give it the next one.
    """

    def __init__(self, name: str, inbox: SimpleQueue[Message]) -> None:
        self.name = name
        self.turns = Turns()
        self._inbox = inbox
        self._steps: SimpleQueue[tuple[Slot, Step] | None] = SimpleQueue()
        # A daemon: a hung device must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"tierd-{name}", daemon=True)
        self._thread.start()

    def run(self, slot: Slot, step: Step) -> None:
        """Run the slot's step once those before it are done; its turn begins. Never blocks.

        Raises what the executor does when it does not take the step; then there is no turn.
        """
        slot.executor.submit(step.batch)
        self.turns.begin(slot.id)
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
            result: Result | Exception
            try:
                result = slot.executor.collect()
            except Exception as error:  # whatever a backend raises is this step's failure, not the thread's
                result = error
            self._inbox.put(StepDone(slot, step, result, time.monotonic() - started))
