"""What supervises tierd: told how it goes, and, as long as the engine turns, that it lives.

A sign of life is sent for each time that the engine thread has taken a turn when it was asked to, while no
step is older than any device may take for one (`backends.patience`): a device that hangs is given up by tierd
itself before that. Loading is done by workers, so that a long load keeps nothing from turning.
"""

from __future__ import annotations

import threading
import time

from tierd.backends.patience import step_timeout_s
from tierd.engine import Engine
from tierd.engine.operation import OperationView
from tierd.errors import TierdError
from tierd.http import Operations
from tierd.service.notify import Notifier

# So often it is looked at what goes on; at half of what the watchdog asks for, if that is sooner.
LOOK_S = 5.0
# At each look the start is given so much longer, as long as loads come on: have changed within STALL_S.
EXTRA_S = 60.0
STALL_S = 900.0
# A device that hangs is noticed by then, with what it takes to give it up.
LONGEST_STEP_S = step_timeout_s(software=True) + EXTRA_S


class Supervision:
    """A thread that tells the notifier, where anybody listens. pending: settings that wait for a restart."""

    def __init__(self, notifier: Notifier, engine: Engine, operations: Operations) -> None:
        self.pending = ""
        self._notifier = notifier
        self._engine = engine
        self._operations = operations
        self._look_s = min(LOOK_S, notifier.watchdog_s / 2) if notifier.watchdog_s else LOOK_S
        self._said = ""
        self._loads: list[tuple[str, str, int]] = []
        self._moved = time.monotonic()  # when a load came on last
        self._ready = False
        self._ending = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierd-supervision", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        if self._notifier.listens:
            self._thread.start()

    def close(self) -> None:
        """Tell nothing more. An engine that hangs is not waited for."""
        self._closed.set()

    def ready(self) -> None:
        """Tell that all models are there."""
        self._ready = True
        self._said = self._words()
        self._notifier.ready(self._said)

    def reloading(self) -> None:
        """Tell that the settings are read; `reloaded` follows. While it starts nobody waits for that."""
        if self._ready:
            self._notifier.reloading("reading the settings")

    def reloaded(self, pending: str = "", problem: str = "") -> None:
        """Tell that they are taken over. pending: what waits for a restart. problem: why they are not."""
        self.pending = pending
        if self._ready:
            self._said = f"the settings from before hold: {problem}" if problem else self._words()
            self._notifier.ready(self._said)

    def ending(self, within_s: float) -> None:
        """Tell that tierd ends, which may take so long."""
        self._ending = True
        self._notifier.stopping("ending; what runs may finish", within_s)

    def _run(self) -> None:
        while not self._closed.wait(self._look_s):
            try:
                oldest = self._engine.beat().result()  # for ever, where it hangs
            except TierdError:  # it has ended, or failed
                return
            if oldest < LONGEST_STEP_S:
                self._tell()

    def _tell(self) -> None:
        if self._notifier.watchdog_s:
            self._notifier.alive()
        if self._ending:
            return
        if not self._ready and self._goes_on():
            self._notifier.takes_longer(EXTRA_S)
        words = self._words()
        if words != self._said:
            self._said = words
            self._notifier.status(words)

    def _goes_on(self) -> bool:
        """Whether any load has come on lately."""
        loads = [(view.id, view.phase, view.done) for view in self._running()]
        if loads != self._loads:
            self._loads, self._moved = loads, time.monotonic()
        return time.monotonic() - self._moved < STALL_S

    def _running(self) -> list[OperationView]:
        return [view for view in self._operations.all() if view.state == "running"]

    def _words(self) -> str:
        """Say what is served, what goes on and what waits."""
        catalogue, models = self._engine.catalogue, self._engine.snapshot.models
        said = []
        if catalogue.closed:
            said.append(catalogue.closed)
        elif served := [f"{name} ({models[name].outcome})" for name in catalogue.entries if name in models]:
            running = sum(model.running for model in models.values())
            waiting = sum(model.waiting for model in models.values())
            said.append(f"serves {', '.join(served)}; {running} requests run, {waiting} wait")
        said += [_progress(view) for view in self._running()]
        if self.pending:
            said.append(f"a restart is needed for {self.pending}")
        return "; ".join(said) or "starting"


def _progress(view: OperationView) -> str:
    """Say what an operation does and how far it is."""
    share = f" {100 * view.done // view.total} %" if view.total else ""
    phase = f" ({view.phase}{share})" if view.phase else ""
    return f"{view.kind} {view.model}".rstrip() + phase
