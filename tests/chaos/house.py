"""A server of tiny models, real down to its sockets and its software device, and an administrator's door."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from chaos.book import Traces
from engine.device_live import Stage, staged
from live import LONG_WAIT_S, Live, serve, wait_until
from processes import children
from tierd.backends.protocol import Executor
from tierd.backends.vkapi import Role
from tierd.engine import dance
from tierd.http.listeners import listen_at
from tierd.settings import (
    EngineSettings,
    GPUSettings,
    KVSettings,
    ModelSettings,
    QueueSettings,
    Settings,
    SwitchSettings,
)
from tierd.slot import open_slot
from tierd.tier import retries
from tierd.tier.host_site import HostSite

BANK = 8 << 20
# How long a model is barred from the device that could not be put there.
BAR_S = 0.02
# The thread that a process of Kompute's has.
_KEEPER = "tierd-kompute"


@dataclass
class House:
    """live: the server. admin: its other API. stage: what models are placed on. traces: of all streams."""

    models: Sequence[ModelSettings]
    live: Live
    admin: httpx.Client
    stage: Stage
    traces: Traces
    _references: Any

    def reference(self, model: str) -> Executor:
        """Return a model on the CPU that nobody else uses."""
        return self._references(model)

    def post(self, path: str, /, **content: object) -> httpx.Response:
        """Send the administrator's wish, and wait until it has come true, or not."""
        return self.admin.post(path, content=json.dumps(content).encode())

    def do(self, path: str, /, **content: object) -> None:
        """Send a wish that must come true."""
        view = self.post(path, **content)
        assert view.status_code == 200, view.text
        assert view.json()["state"] == "done", view.text

    def rests(self) -> None:
        """Wait until nobody runs, moves or waits; check that nobody holds anything."""
        wait_until(self._is_quiet)
        for model in self.live.engine.snapshot.models.values():
            assert model.pages_free + model.pages_cached == model.pages_total
            assert {region.state for region in model.regions} <= {"free", "parked", "scratch"}
            assert model.understudy is None or not model.understudy.used + model.understudy.reserved
        entries = self.stage.bank.entries
        assert self.stage.bank.used == sum(entry.bytes for entry in entries)
        assert not any(entry.pins or entry.live or not entry.kept for entry in entries)

    def _is_quiet(self) -> bool:
        snapshot = self.live.engine.snapshot
        busy = (model.running + model.waiting + model.pages_reserved for model in snapshot.models.values())
        moving = (r.state == "leaving" for model in snapshot.models.values() for r in model.regions)
        return snapshot.switch is None and not any(busy) and not any(moving)

    def is_up(self) -> bool:
        """Whether all models are there, none of them on the CPU or without its device."""
        states = self.live.engine.snapshot.models
        return (
            states.keys() == {model.id for model in self.models}
            and all(state.seat in ("on", "away") for state in states.values())
            and all(state.outcome != "cpu" for state in states.values())
            and self.has_device
        )

    @property
    def has_device(self) -> bool:
        """Whether there is one that works."""
        return self.stage.tier.status().device != ""

    def declined(self) -> list[str]:
        """Return the models that the device has declined when they were loaded."""
        return [model for model, state in self.live.engine.snapshot.models.items() if not state.seat]

    def vacate(self) -> None:
        """Unload every model."""
        for model in list(self.live.engine.snapshot.models):
            self.do("/models/unload?wait=true", model=model)

    @property
    def connections(self) -> int:
        """Those of clients that the server has not closed."""
        servers = (self.live.server, *self.live.server.admin)
        return sum(len(server.server_state.connections) for server in servers)

    @property
    def workers(self) -> list[str]:
        """Threads of Python that are there for one piece of work, not for as long as the server is."""
        lasting = (
            "MainThread", "Thread-", "tierd-engine", "tierd-cpu", "tierd-gpu", "tierd-rails", "tierd-encode",
            _KEEPER,
        )  # fmt: skip
        return [thread.name for thread in threading.enumerate() if not thread.name.startswith(lasting)]

    @property
    def holdings(self) -> Mapping[str, int]:
        """Counts and bytes of what the process holds, and must not keep. threads: not Python's."""
        status, bank, process = self.stage.tier.status(), self.stage.bank, Path("/proc/self")
        return {
            "reserved": sum(status.reservations.values()) + sum(status.away.values()),
            "used": status.used,
            "device": sum(device._memory._held(Role.DEVICE) for device in self.stage.devices[-1:]),
            "bank": bank.used,
            "entries": bank.count,
            "keepers": sum(thread.name == _KEEPER for thread in threading.enumerate()),
            "threads": len(os.listdir(process / "task")) - threading.active_count(),
            "descriptors": len(os.listdir(process / "fd")),
            "children": len(children()),
        }


@contextmanager
def housed(
    models: Sequence[ModelSettings],
    *,
    room: int = 0,
    switch: SwitchSettings | None = None,
    mode: str = "auto",
) -> Iterator[House]:
    """Run a server. room: bytes of its device, 0: as many as there are. mode: see GPUSettings.

    What a switch took or met bars no other for long.
    """
    settings = Settings(
        engine=EngineSettings(threads=1, chunk_rows=16),
        kv=KVSettings(memory_mb=16),
        gpu=GPUSettings(allow_software=True, mode=mode, rails_rows=4),
        switch=switch or SwitchSettings(),
        queue=QueueSettings(capacity=1000, timeout_s=0.0),
        models=tuple(models),
    )
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(dance, "_HOLD", 0.0)
        patch.setattr(dance, "_BAR_S", BAR_S)
        patch.setattr(dance, "_LONGEST_BAR_S", BAR_S)
        patch.setattr(retries, "TRIES", 100_000)
        traces = stack.enter_context(Traces().kept())
        stage = stack.enter_context(staged(settings, bank=BANK, vram_limit=room))

        @cache
        def reference(model: str) -> Executor:
            (each,) = (each for each in models if each.id == model)
            executor = open_slot(each, settings, HostSite(stage.host)).executor
            stack.callback(executor.close)
            return executor

        path = Path(stack.enter_context(TemporaryDirectory()), "admin.sock")
        door = stack.enter_context(listen_at(path))
        live = stack.enter_context(
            serve(
                models,
                admin=[(door, None)],
                open_one=stage.tier.open,
                parts=stage.parts,
                engine=settings.engine,
                kv=settings.kv,
                gpu=settings.gpu,
                switch=settings.switch,
                queue=settings.queue,
            )
        )
        transport = httpx.HTTPTransport(uds=str(path))
        admin = stack.enter_context(
            httpx.Client(transport=transport, base_url="http://admin", timeout=LONG_WAIT_S)
        )
        for client in (live.http, admin):  # what a client keeps open is no descriptor of the server's
            client.headers["connection"] = "close"
        yield House(models, live, admin, stage, traces, reference)
        stack.callback(stage.forget_devices)
