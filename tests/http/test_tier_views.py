"""The admin API's views over snapshots that the engine might have published."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from tierd.core import PassReason
from tierd.engine import (
    BankSnapshot,
    Engine,
    ModelSnapshot,
    RegionSnapshot,
    RegionState,
    SessionSnapshot,
    Snapshot,
    SwitchSnapshot,
)
from tierd.http import Operations, Roster, create_admin_app
from tierd.metrics import Metrics
from tierd.settings import ModelSettings, Settings
from tierd.slot import Slot
from tierd.tier.status import TierStatus


def model(**facts: Any) -> ModelSnapshot:
    return ModelSnapshot(
        **{
            "outcome": "gpu:resident",
            "device": "GPU",
            "decline": "",
            "running": 0,
            "paused": 0,
            "waiting": 0,
            "pages_total": 4,
            "pages_free": 4,
            "pages_used": 0,
            "pages_cached": 0,
            "pages_reserved": 0,
        }
        | facts
    )


def open_nothing(settings: ModelSettings) -> Slot:
    raise AssertionError(settings)


def get(path: str, snapshot: Snapshot | None = None, tier: TierStatus | None = None) -> Any:
    """Ask the admin API of an engine that has published a snapshot, and whose device stands so."""
    status = tier or TierStatus()
    metrics = Metrics("test")
    engine = Engine(lambda events: None, open_slot=open_nothing, metrics=metrics, tier=lambda: status)
    engine._loop.snapshot = snapshot or Snapshot()

    async def ask() -> Any:
        transport = httpx.ASGITransport(create_admin_app(engine, Roster(Settings()), Operations(), metrics))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            response = await client.get(path)
            assert response.status_code == 200
            return response.json()

    return asyncio.run(ask())


def test_tier() -> None:
    tier = TierStatus(
        backend="resident",
        device="GPU",
        products="bit for bit",
        used=300,
        budget=1000,
        reservations={"two": 100, "one": 200},
        away={"four": 50, "three": 400},
        faults=2,
        fault="it did not finish in 10 s",
        retry_s=1.25,
    )
    answer = get("/tier", tier=tier)
    assert list(answer["reservations"]) == ["one", "two"]
    assert answer == {
        "backend": "resident",
        "device": "GPU",
        "products": "bit for bit",
        "reason": "",
        "memory": {"used": 300, "free": 700, "budget": 1000},
        "reservations": {"one": 200, "two": 100},
        "away": {"three": 400, "four": 50},
        "faults": 2,
        "fault": "it did not finish in 10 s",
        "retry_s": 1.25,
    }


@pytest.mark.parametrize(("used", "budget"), [(0, 0), (12, 10)])
def test_a_device_has_never_less_than_nothing_free(used: int, budget: int) -> None:
    answer = get("/tier", tier=TierStatus(used=used, budget=budget, reason="lost"))
    assert (answer["memory"]["free"], answer["device"], answer["reason"]) == (0, "", "lost")


def test_regions() -> None:
    now = time.monotonic()
    regions = (
        RegionSnapshot(region=0, state=RegionState.LIVE, positions=9, request="cmpl-1", used=now - 2),
        RegionSnapshot(region=1, state=RegionState.PARKED, positions=5, claim=7, used=now - 60),
        RegionSnapshot(region=2, state=RegionState.FREE),
    )
    snapshot = Snapshot({"b": model(regions=regions), "a": model(regions=regions[2:]), "cpu": model()})
    models = get("/regions", snapshot)["models"]
    assert [entry["id"] for entry in models] == ["a", "b"]
    live, parked, free = models[1]["regions"]
    assert 2 <= live.pop("age_s") < 30
    assert 60 <= parked.pop("age_s") < 90
    assert live == {"region": 0, "state": "live", "positions": 9, "request": "cmpl-1", "claim": None}
    assert parked == {"region": 1, "state": "parked", "positions": 5, "request": None, "claim": 7}
    assert free == {
        "region": 2,
        "state": "free",
        "positions": 0,
        "request": None,
        "claim": None,
        "age_s": None,
    }
    assert models[0]["regions"] == [free]


def test_sessions() -> None:
    on_device = SessionSnapshot(request="cmpl-1", region=0, positions=9, prompt=4, generated=6, away=True)
    on_host = SessionSnapshot(
        request="cmpl-2",
        positions=4,
        prompt=4,
        generated=0,
        paused=True,
        moving=True,
        reason=PassReason.UNHOMED,
    )
    snapshot = Snapshot({"b": model(sessions=(on_device, on_host)), "a": model(sessions=(on_host,))})
    sessions = get("/sessions", snapshot)["sessions"]
    assert [(session["model"], session["id"]) for session in sessions] == [
        ("a", "cmpl-2"),
        ("b", "cmpl-1"),
        ("b", "cmpl-2"),
    ]
    assert sessions[1:] == [
        {
            "id": "cmpl-1",
            "model": "b",
            "region": 0,
            "positions": 9,
            "prompt": 4,
            "generated": 6,
            "paused": False,
            "moving": False,
            "away": True,
            "reason": None,
            "words": "",
        },
        {
            "id": "cmpl-2",
            "model": "b",
            "region": None,
            "positions": 4,
            "prompt": 4,
            "generated": 0,
            "paused": True,
            "moving": True,
            "away": False,
            "reason": "unhomed",
            "words": "no region of K/V was free on the device",
        },
    ]


def test_passes_in_the_order_of_the_table() -> None:
    passes = {PassReason.GAP: 2, PassReason.CODEC: 1, PassReason.UNHOMED: 30}
    answer = get("/passes", Snapshot({"b": model(passes=passes), "a": model(outcome="cpu")}))
    assert answer == {
        "models": [
            {"id": "a", "outcome": "cpu", "passes": []},
            {
                "id": "b",
                "outcome": "gpu:resident",
                "passes": [
                    {"reason": reason.value, "words": reason.words, "count": passes[reason]}
                    for reason in (PassReason.CODEC, PassReason.UNHOMED, PassReason.GAP)
                ],
            },
        ]
    }


def test_status_tells_how_the_bank_stands() -> None:
    bank = BankSnapshot(limit=1000, used=300, entries=3, dropped=2, dropped_positions=70)
    assert get("/status", Snapshot(bank=bank))["bank"] == {
        "limit": 1000,
        "used": 300,
        "entries": 3,
        "dropped": 2,
        "dropped_positions": 70,
    }


def test_status_tells_who_takes_whose_turn() -> None:
    switch = SwitchSnapshot(incoming="b", outgoing=("a", "c"), phase="drop", since=time.monotonic() - 3)
    models = {"a": model(seat="leaving"), "b": model(seat="away"), "cpu": model(seat="")}
    answer = get("/status", Snapshot(models, switch=switch, switches=4))
    assert {entry["id"]: entry["seat"] for entry in answer["models"]} == {
        "a": "leaving",
        "b": "away",
        "cpu": "",
    }
    assert 3 <= answer["switch"].pop("seconds") < 30
    assert answer["switch"] == {"incoming": "b", "outgoing": ["a", "c"], "phase": "drop"}
    assert answer["switches"] == 4


@pytest.mark.parametrize(
    ("path", "answer"),
    [("/regions", {"models": []}), ("/sessions", {"sessions": []}), ("/passes", {"models": []})],
)
def test_without_models_there_is_nothing_to_see(path: str, answer: Any) -> None:
    assert get(path, Snapshot()) == answer
