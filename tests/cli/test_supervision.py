from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from live import LONG_WAIT_S, Gate
from manager import Manager, Told, manager
from tierd.backends.null import NullBackend
from tierd.cli import supervision
from tierd.cli.supervision import Supervision
from tierd.core import Request, SamplingParams
from tierd.engine import Engine
from tierd.engine.operation import Operation
from tierd.http import Operations
from tierd.metrics import Metrics
from tierd.service.notify import Notifier
from tierd.settings import ModelSettings, Settings
from tierd.slot import Slot, open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

WATCHDOG_S = 0.1


class Watched:
    """An engine over a null device behind `gate`, whose loads wait for `opening`, and who supervises it."""

    def __init__(self, systemd: Manager, path: Path) -> None:
        self.systemd = systemd
        self.gate = Gate()
        self.opening = threading.Event()
        site = HostSite(NullBackend(before_step=self.gate))

        def opened(model: ModelSettings) -> Slot:
            assert self.opening.wait(LONG_WAIT_S)
            return open_slot(model, Settings(), site)

        self.engine = Engine(lambda events: None, open_slot=opened, metrics=Metrics("test"))
        self.operations = Operations()
        self.supervision = Supervision(Notifier(systemd.address, WATCHDOG_S), self.engine, self.operations)
        self._path = path
        self.engine.start()
        self.supervision.start()

    def begin_to_load(self) -> None:
        operation = Operation("load", "tiny")
        self.loaded = self.engine.load(ModelSettings(id="tiny", path=self._path, default=True), operation)
        self.operations.add(operation, self.loaded)

    def load(self) -> None:
        self.begin_to_load()
        self.opening.set()
        self.loaded.result(LONG_WAIT_S)
        self.supervision.ready()

    def await_alive(self, times: int = 3) -> None:
        """Wait for signs of life that come from now on, less one that may be on its way."""
        count = len(self.systemd.told)
        for _ in range(times):
            count = self.systemd.await_one(alive, count)

    def falls_silent(self) -> bool:
        """Whether it gives no sign of life for longer than systemd waits, but for one on its way."""
        before = len(self.systemd.times("WATCHDOG"))
        threading.Event().wait(WATCHDOG_S * 4)
        return len(self.systemd.times("WATCHDOG")) <= before + 1


def alive(told: Told) -> bool:
    return "WATCHDOG" in told


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@contextmanager
def watching(path: Path) -> Iterator[Watched]:
    with manager() as systemd:
        watched = Watched(systemd, path)
        try:
            yield watched
        finally:
            watched.supervision.close()
            watched.opening.set()
            watched.gate.open()
            watched.engine.stop(LONG_WAIT_S)


@pytest.fixture
def watched(path: Path) -> Iterator[Watched]:
    with watching(path) as watched:
        yield watched


def test_a_long_load_is_given_time_and_told_of(watched: Watched) -> None:
    watched.begin_to_load()
    count = watched.systemd.await_one(lambda told: told.get("STATUS") == "load tiny (open)")
    for _ in range(3):
        count = watched.systemd.await_one(lambda told: told.get("EXTEND_TIMEOUT_USEC") == "60000000", count)
    watched.await_alive()
    assert watched.systemd.times("READY") == []
    watched.opening.set()
    watched.loaded.result(LONG_WAIT_S)
    watched.supervision.ready()
    count = watched.systemd.await_one(
        lambda told: told == {"READY": "1", "STATUS": "serves tiny (cpu); 0 requests run, 0 wait"}
    )
    watched.await_alive()
    assert not any("EXTEND_TIMEOUT_USEC" in told for told in watched.systemd.told[count:])


def test_a_load_that_does_not_come_on_is_given_no_more_time(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.begin_to_load()
    watched.systemd.await_one(lambda told: "EXTEND_TIMEOUT_USEC" in told)
    monkeypatch.setattr(supervision, "STALL_S", 0.0)
    watched.await_alive(2)
    before = len(watched.systemd.times("EXTEND_TIMEOUT_USEC"))
    watched.await_alive()
    assert len(watched.systemd.times("EXTEND_TIMEOUT_USEC")) == before


def test_an_engine_that_hangs_gives_no_sign_of_life(watched: Watched) -> None:
    watched.load()
    watched.await_alive()
    let_go = threading.Event()
    # What waits for a future is called by the engine thread.
    watched.engine.flush().add_done_callback(lambda _: let_go.wait(LONG_WAIT_S))
    assert watched.falls_silent()
    let_go.set()
    watched.await_alive()


def test_a_step_that_takes_too_long_is_an_engine_that_hangs(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the engine thread turns: whoever runs the step does not come back from it."""
    watched.load()
    sampling = SamplingParams(temperature=0.0)
    watched.engine.submit(Request(id="one", model="tiny", prompt=(5, 6), max_tokens=4, sampling=sampling))
    watched.systemd.await_one(lambda told: "1 requests run" in told.get("STATUS", ""))
    watched.await_alive()  # it may take long
    monkeypatch.setattr(supervision, "LONGEST_STEP_S", 0.0)
    assert watched.falls_silent()
    monkeypatch.undo()
    watched.await_alive()


def test_an_engine_that_has_failed_gives_no_sign_of_life(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.load()
    watched.await_alive()
    monkeypatch.setattr(watched.engine._loop, "_turn", lambda: 1 / 0)
    watched.engine.flush()
    assert watched.falls_silent()


def test_the_end_is_told_of_and_how_long_it_may_take(watched: Watched) -> None:
    watched.load()
    watched.supervision.ending(12.0)
    watched.systemd.await_one(
        lambda told: (told.get("STOPPING"), told.get("EXTEND_TIMEOUT_USEC")) == ("1", "12000000")
    )
    watched.await_alive()


def test_what_waits_for_a_restart_is_told_of(watched: Watched) -> None:
    watched.load()
    watched.supervision.reloading()
    watched.supervision.reloaded("kv.memory_mb")
    reloading = watched.systemd.await_one(lambda told: "RELOADING" in told)
    watched.systemd.await_one(
        lambda told: (
            told.get("READY") == "1" and told["STATUS"].endswith("; a restart is needed for kv.memory_mb")
        ),
        reloading,
    )
    watched.supervision.reloaded(problem="t.toml: not valid TOML")
    watched.systemd.await_one(
        lambda told: told.get("STATUS") == "the settings from before hold: t.toml: not valid TOML"
    )
