"""An engine that does nothing by itself: a test lets its devices and workers work, and takes its turns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from engine import device_slot
from engine.harness import Mail
from tierd.backends.null import NullExecutor
from tierd.core import Batch, Request
from tierd.engine import devices, fallbacks, ledger, loop, models, runner, streams, switch
from tierd.engine.dance import Dance
from tierd.engine.messages import Load, LoadDone, Message, StepDone, Submit
from tierd.engine.pace import Paces
from tierd.engine.runner import Device
from tierd.engine.turns import Turns
from tierd.errors import DeviceError, DeviceLostError
from tierd.kv.bank import Bank
from tierd.metrics import Metrics
from tierd.settings import ModelSettings, Settings
from tierd.slot import Slot
from tierd.tier import device_home
from tierd.tier.status import TierStatus


class Time(Protocol):
    """What the engine asks for the time; the module does."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...


class Clock:
    """A time that passes when a test lets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def thread_time(self) -> float:
        return time.thread_time()


class Board:
    """A device that several models are on, and that fails when it is told to.

    armed: what the next call of a kind meets. abandoned: it has failed, and does so for all from then on.
    """

    def __init__(self) -> None:
        self.armed: dict[str, Exception] = {}
        self.abandoned = False

    def meet(self, call: str) -> None:
        if self.abandoned:
            raise DeviceLostError("it was given up")
        error = self.armed.pop(call, None)
        if error is not None:
            self.abandoned = isinstance(error, DeviceError)
            raise error


class BoardExecutor(NullExecutor):
    """One model on a board."""

    def __init__(self, board: Board, **options: Any) -> None:
        super().__init__(**options | {"before_step": lambda _: board.meet("step")})
        self.board = board

    def submit(self, batch: Batch) -> None:
        self.board.meet("submit")
        super().submit(batch)

    def read_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, out: npt.NDArray[np.uint8]
    ) -> None:
        self.board.meet("out")
        super().read_rows(layer, pages, start, stop, out)
        self.board.meet("behind")

    def write_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        self.board.meet("in")
        super().write_rows(layer, pages, start, stop, rows)
        self.board.meet("behind")


class ManualDevice(Device):
    """Does what it was given when it is told to."""

    def __init__(self, name: str, inbox: SimpleQueue[Message], gap: float) -> None:
        self.name = name
        self.turns = Turns()
        self.paces = Paces(gap)
        self._inbox = inbox
        self._work = SimpleQueue()

    def work(self) -> bool:
        """Do the next thing; return whether there was one."""
        try:
            work = self._work.get_nowait()
        except Empty:
            return False
        assert work is not None
        done = work()
        if isinstance(done, StepDone):
            done = replace(done, seconds=1.0)  # whose turn it is depends on it
        self._inbox.put(done)
        return True


def _no_slot(_: object) -> Slot:
    raise AssertionError("slots are put here by hand")


class ManualLoop(loop.Loop):
    """inbox: take turns to have it read. workers: what threads of the engine would do. mail: what it says."""

    def __init__(
        self,
        settings: Settings,
        bank: Bank,
        *,
        clock: Time = time,
        open_slot: Callable[[ModelSettings], Slot] = _no_slot,
        tier: Callable[[], TierStatus] = TierStatus,
        release: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.mail = Mail()
        self.workers: deque[Callable[[], None]] = deque()
        self.metrics = Metrics("0.0")
        self._clock = clock
        self._patches = ExitStack()
        for module in (models, fallbacks, switch):
            self._patch(module, "threading", SimpleNamespace(Thread=self._thread))
        for module in (loop, models, streams, fallbacks, switch, ledger, runner, device_home, device_slot):
            self._patch(module, "time", clock)
        self._patch(devices, "Device", ManualDevice)
        self._patch(loop, "Dance", partial(loop.Dance, clock=clock.monotonic))
        self._patch(loop, "Keeper", partial(loop.Keeper, clock=clock.monotonic))
        self._patch(loop, "Drains", partial(loop.Drains, clock=clock.monotonic))
        super().__init__(
            self.inbox, self.mail.deliver, open_slot, self.metrics, settings, bank, tier, release
        )

    def put(self, slot: Slot) -> None:
        """Serve a slot from now on."""
        load = Load(slot.settings, Future())
        self.models.loads[slot.id] = load
        self._handle(LoadDone(load, slot))

    def submit(self, request: Request) -> None:
        self.inbox.put(Submit(request, self._clock.monotonic()))

    def turn(self) -> None:
        """Handle all that has come, and do what has become possible."""
        while not self.inbox.empty():
            self._handle(self.inbox.get())
        self._turn()

    def work(self, device: str) -> bool:
        """Let a device do its next thing; return whether there was one."""
        there = next((it for it, _ in self._devices if it.name == device), None)
        return isinstance(there, ManualDevice) and there.work()

    def save(self) -> None:
        """Let all that is kept over a restart be written now."""
        self._keeper.ask()

    @property
    def ended(self) -> bool:
        """Whether it has stopped, as it was told to."""
        return self._stopping and not self._busy and self._keeper.finished

    @property
    def everyone(self) -> list[Slot]:
        """All slots, understudies too."""
        return list(self._devices.slots)

    @property
    def live(self) -> set[str]:
        """Requests that have not ended."""
        return set(self._streams.live)

    @property
    def retry_deadline(self) -> float | None:
        """When a lost device is due."""
        return self._fallbacks.deadline

    @property
    def busy(self) -> bool:
        """Whether it would go on when it is told to stop."""
        return self._busy

    @property
    def due(self) -> float | None:
        """When it takes a turn though no message comes."""
        return self._deadline

    @property
    def unloads(self) -> set[str]:
        """Models that go."""
        return set(self.models.unloads)

    @property
    def dance(self) -> Dance:
        """Who is on the device."""
        return self._dance

    def close(self) -> None:
        self._patches.close()

    def _patch(self, where: object, name: str, value: object) -> None:
        self._patches.enter_context(patch.object(where, name, value))

    def _thread(
        self, target: Callable[..., None], args: tuple[object, ...] = (), **_: object
    ) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: self.workers.append(partial(target, *args)))
