"""A device: whose turn it is, and the thread that waits for its work and posts its completion."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from tierd.backends.protocol import Result
from tierd.core import TokenLogprobs
from tierd.engine.messages import Message, MoveDone, StepDone
from tierd.engine.pace import Paces
from tierd.engine.scoring import measure
from tierd.engine.turns import Turns
from tierd.kv.moves import Move, Slice
from tierd.slot import Slot, Step

# So long others wait for a stream of their step of which it is not known what may come next, when it is over.
LATE_S = 0.002
# So much of the processor's time before a step is for finding that out; what is left goes on beside the step.
FIND_S = 0.004


class Device:
    """Runs the steps of all slots of one device, and slices of moves of rows, in the order they come.

    turns: who may give it the next one. paces: how much may be in it; gap: see there.
    """

    def __init__(self, name: str, inbox: SimpleQueue[Message], gap: float = 0.0) -> None:
        self.name = name
        self.turns = Turns()
        self.paces = Paces(gap)
        self._inbox = inbox
        self._began: float | None = None  # when it took up what it is at, monotonic seconds
        self._work: SimpleQueue[Callable[[], Message] | None] = SimpleQueue()
        # A daemon: a hung device must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"tierd-{name}", daemon=True)
        self._thread.start()

    def run(self, slot: Slot, step: Step) -> None:
        """Run the slot's step once those before it are done; its turn begins. Never blocks.

        Raises what the executor does when it does not take the step; then there is no turn.
        """
        slot.executor.submit(step.batch)
        self.turns.begin(slot.id)
        self._work.put(lambda: _collect(slot, step))

    def carry(self, slot: Slot, move: Move, parts: Slice) -> None:
        """Carry a slice of a move of the slot's rows once what came before is done. Never blocks."""
        self._work.put(lambda: _carry(slot, move, parts))

    @property
    def at_work_s(self) -> float:
        """For how long it has been at what it is at, 0 when it is at nothing."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def stop(self) -> None:
        """Let the thread end once its work is done. Never blocks."""
        self._work.put(None)

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._began = time.monotonic()
            done = work()
            self._began = None
            self._inbox.put(done)


# Whatever a backend raises is the failure of this work, not of the thread.


def _collect(slot: Slot, step: Step) -> StepDone:
    """Wait for a step. Some time before and behind it is for what constrained streams may go on with."""
    started = time.monotonic()
    _find(step)
    result: Result | Exception
    scores: list[tuple[TokenLogprobs, ...]] = []
    try:
        result = slot.executor.collect()
        scores = measure(step, result)
    except Exception as error:
        result = error
    done = time.monotonic()
    for following in step.following:
        following.wait(max(0.0, done + LATE_S - time.monotonic()))
    return StepDone(slot, step, result, done - started, scores)


def _find(step: Step) -> None:
    """Find out what the streams of a step may go on with; leave to threads what is not begun in time."""
    end = time.thread_time() + FIND_S
    for following in step.following:
        if time.thread_time() < end:
            following.find()
        else:
            following.start()


def _carry(slot: Slot, move: Move, parts: Slice) -> MoveDone:
    try:
        move.run(parts, slot.executor)
    except Exception as error:
        return MoveDone(slot, move, error)
    return MoveDone(slot, move, None)
