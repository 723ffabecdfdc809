"""Models that take turns on a fake device, switched from outside while others look on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.null_stage import NullStage, seated_slot
from live import LONG_WAIT_S, Gate, Live, error_of, serve, wait_until
from live_admin import body
from tierd.errors import DeviceLostError, DeviceMemoryError
from tierd.http import sse
from tierd.http.listeners import listen_at
from tierd.kv.bank import Bank
from tierd.settings import ModelSettings, SwitchSettings
from tierd.slot import Slot

PHASES = ["pause", "hydrate", "drop", "save", "restore", "rearm", "rehome"]
A = ModelSettings(id="a", path=Path("a.gguf"), default=True, streams=4)
B = ModelSettings(id="b", path=Path("b.gguf"), streams=4)


@dataclass
class Stage(NullStage):
    """One whose models come when the test lets them."""

    gate: Gate = field(default_factory=Gate)

    def arm(self, marks: Any) -> Any:
        if marks.model == "late":
            self.gate(None)  # type: ignore[arg-type]
        return super().arm(marks)


@dataclass(frozen=True)
class House:
    """A server of "a" and "b", of which the device has room for one; steps of "a" wait for its gate."""

    live: Live
    admin: httpx.Client
    stage: Stage
    gate: Gate

    def post(self, path: str, /, **content: object) -> httpx.Response:
        return self.admin.post(path, content=json.dumps(content).encode())

    def seats(self) -> dict[str, str]:
        models = body(self.admin.get("/status"))["models"]
        return {model["id"]: model["seat"] for model in models}

    def begin(self, model: str, tokens: int = 20) -> socket.socket:
        """Begin a stream and leave it open."""
        request = {"model": model, "prompt": [1, 2, 3], "max_tokens": tokens, "ignore_eos": True}
        return self.live.send("/v1/completions", request)


@contextmanager
def housed(folder: Path, *models: ModelSettings) -> Iterator[House]:
    stage, bank, gate = Stage(10), Bank(1 << 20), Gate()

    def seat(model: ModelSettings) -> Slot:
        on = model.preload and stage.reservations.free >= 10
        step = gate if model.id == "a" else None
        return seated_slot(model, stage, size=10, on=on, bank=bank, regions=4, before_step=step)

    path = folder / "admin.sock"
    with (
        listen_at(path) as door,
        serve(
            models,
            admin=[(door, None)],
            open_one=seat,
            parts={"bank": bank, "tier": stage.status, "release": stage.reservations.release},
            switch=SwitchSettings(min_hold_s=600, max_wait_s=600),
        ) as live,
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://admin", timeout=LONG_WAIT_S
        ) as admin,
    ):
        try:
            yield House(live, admin, stage, gate)
        finally:
            gate.open()
            stage.gate.open()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with housed(tmp_path, A, B) as house:
        yield house


def test_a_model_is_brought_to_the_device_and_each_phase_is_timed(house: House) -> None:
    house.gate.open()
    assert house.seats() == {"a": "on", "b": "away"}
    tier = body(house.admin.get("/tier"))
    assert (tier["reservations"], tier["memory"]["used"]) == ({"a": 10}, 10)
    view = body(house.post("/models/activate?wait=true", model="b"))
    assert (view["kind"], view["model"], view["state"]) == ("activate", "b", "done")
    names = [phase["name"] for phase in view["phases"] if phase["name"] != "wait"]
    assert names == PHASES
    assert all(phase["seconds"] >= 0 for phase in view["phases"])
    assert sum(phase["seconds"] for phase in view["phases"]) <= view["seconds"] + 0.001
    assert house.seats() == {"a": "away", "b": "on"}
    assert body(house.admin.get("/status"))["switches"] == 1
    view = body(house.post("/models/activate?wait=true", model="b"))
    assert view["state"] == "done"
    assert body(house.admin.get("/status"))["switches"] == 1


def test_streams_wait_and_go_on_through_a_switch(house: House) -> None:
    with closing(house.begin("a")) as stream:
        house.gate.step(5)
        wait_until(lambda: house.live.engine.snapshot.models["a"].running == 1)
        leaves = house.post("/models/activate", model="b")
        house.gate.step(2)  # those in flight
        wait_until(lambda: body(house.admin.get(leaves.headers["location"]))["state"] == "done")
        (session,) = body(house.admin.get("/sessions"))["sessions"]
        assert (session["model"], session["away"]) == ("a", True)
        house.gate.open()
        returns = body(house.post("/models/activate?wait=true", model="a"))
        assert returns["state"] == "done"
        assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_stream_is_kept_alive_while_it_waits_for_its_model(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    with closing(house.begin("a")):
        wait_until(lambda: house.live.engine.snapshot.models["a"].running == 1)
        wanted = {"model": "b", "prompt": [1, 2, 3], "max_tokens": 2, "stream": True}
        with closing(house.live.send("/v1/completions", wanted)) as stream, stream.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 200 ")
            assert any(line == b": keep-alive\n" for line in answer)
            assert house.seats() == {"a": "on", "b": "away"}
            house.gate.open()
            assert any(line == b"data: [DONE]\n" for line in answer)


def test_a_switch_is_seen_while_it_goes_on(house: House) -> None:
    with closing(house.begin("a")):
        wait_until(lambda: house.live.engine.snapshot.models["a"].running == 1)
        leaves = house.post("/models/activate", model="b")
        wait_until(lambda: body(house.admin.get("/status"))["switch"] is not None)
        switch = body(house.admin.get("/status"))["switch"]
        assert switch.pop("seconds") >= 0
        assert switch == {"incoming": "b", "outgoing": ["a"], "phase": "pause"}
        assert house.seats()["a"] == "leaving"
        assert body(house.admin.get(leaves.headers["location"]))["phase"] == "pause"
        house.gate.open()
        wait_until(lambda: body(house.admin.get("/status"))["switch"] is None)


def test_a_load_brings_its_model_to_the_device(house: House) -> None:
    house.gate.open()
    view = body(house.post("/models/load?wait=true", path="/late.gguf", activate=False))
    assert view["state"] == "done"
    assert house.seats() == {"a": "on", "b": "away", "late": "away"}
    body(house.post("/models/unload?wait=true", model="late"))
    loading = house.post("/models/load", id="late")
    wait_until(lambda: house.seats()["a"] == "away")
    assert body(house.admin.get("/status"))["loading"] == ["late"]
    house.stage.gate.open()
    wait_until(lambda: body(house.admin.get(loading.headers["location"]))["state"] == "done")
    assert house.seats() == {"a": "away", "b": "away", "late": "on"}


def test_a_load_that_fails_puts_the_former_owner_back(house: House) -> None:
    house.gate.open()
    with closing(house.begin("a")) as stream:
        house.stage.broken = [DeviceMemoryError("c: the device has no room in one piece")]
        response = house.post("/models/load?wait=true", path="/c.gguf")
        assert (response.status_code, error_of(response)["code"]) == (409, "no_room")
        assert house.seats() == {"a": "on", "b": "away"}
        status = body(house.admin.get("/status"))
        assert (status["loading"], status["unloaded"]) == ([], [])
        assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_model_that_is_pinned_does_not_leave(tmp_path: Path) -> None:
    with housed(tmp_path, ModelSettings(id="a", path=Path("a"), default=True, pin=True), B) as house:
        response = house.post("/models/activate?wait=true", model="b")
        assert (response.status_code, error_of(response)["code"]) == (409, "no_room")
        assert "pinned" in error_of(response)["message"]
        assert house.seats() == {"a": "on", "b": "away"}


def test_a_device_that_is_lost_meanwhile_may_be_tried_again(house: House) -> None:
    house.gate.open()
    house.stage.broken = [DeviceLostError("the device is lost")]
    response = house.post("/models/activate?wait=true", model="b")
    assert (response.status_code, error_of(response)["code"]) == (503, "device_unavailable")
    assert int(response.headers["retry-after"]) >= 1
