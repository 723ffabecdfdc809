"""Models that take turns on a fake device: whatever runs goes on, with the text that it has alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from engine.drive import greedy
from engine.embedded import embed, expected
from engine.harness import PATIENCE, Gate, Harness, model, running
from engine.null_slot import request
from engine.null_stage import NullStage, seated_slot
from tierd.core import FinishedEvent, PassReason, Pooling
from tierd.engine.operation import Operation
from tierd.engine.switch import PHASES
from tierd.errors import (
    DeviceLostError,
    DeviceMemoryError,
    ModelNotFoundError,
    NoDeviceError,
    TierdError,
    UnavailableError,
)
from tierd.kv.bank import Bank
from tierd.settings import ModelSettings, Settings, SwitchSettings
from tierd.slot import Slot

A, B, C = model("a", streams=4, default=True), model("b", streams=4), model("c", streams=4)
AT_ONCE = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0)
PATIENT = SwitchSettings(min_hold_s=600.0, max_wait_s=600.0)


@contextmanager
def dancing(
    *models: ModelSettings,
    switch: SwitchSettings = AT_ONCE,
    budget: int = 10,
    sizes: dict[str, int] | None = None,
    bank: int = 1 << 20,
    gates: dict[str, Gate] | None = None,
    open_slot: Callable[[ModelSettings, Callable[..., Slot]], Slot] | None = None,
    **options: Any,
) -> Iterator[tuple[Harness, NullStage]]:
    """Run an engine whose models, of 10 bytes unless told otherwise, take turns. Those that fit are there."""
    stage, there = NullStage(budget), Bank(bank)

    def seat(settings: ModelSettings) -> Slot:
        size = (sizes or {}).get(settings.id, 10)
        gate = (gates or {}).get(settings.id)
        return seated_slot(
            settings,
            stage,
            size=size,
            on=settings.preload and size <= stage.reservations.free,
            bank=there,
            regions=4,
            before_step=gate,
            **options,
        )

    with running(
        open_slot=seat,
        settings=Settings(switch=switch),
        engine={"bank": there, "tier": stage.status, "release": stage.reservations.release},
    ) as harness:
        for settings in models:  # one after another, so that the first ones are there
            harness.load(settings)
        yield harness, stage


def said(harness: Harness, id: str, prompt: bytes, tokens: int) -> None:
    """Wait for the end of a request, which must be right."""
    end = harness.mail.terminal(id)
    assert isinstance(end, FinishedEvent), end
    assert end.usage.completion_tokens == tokens
    expected = bytes(t for t in greedy(prompt, tokens)[len(prompt) :] if t < 256)
    assert harness.mail.text(id) == expected.decode("utf-8", "replace")


def passes(harness: Harness, model: str) -> dict[str, float]:
    counts = {
        reason: harness.metrics.registry.get_sample_value(
            "tierd_gpu_cpu_passes_total", {"model": model, "reason": reason}
        )
        for reason in PassReason
    }
    return {reason: count for reason, count in counts.items() if count}


def test_a_request_brings_its_model_and_the_other_comes_back() -> None:
    with dancing(A, B) as (harness, stage):
        for turn in range(4):
            for name in ("a", "b"):
                harness.engine.submit(request(f"{name}{turn}", b"hello", 8, model=name))
                said(harness, f"{name}{turn}", b"hello", 8)
        assert stage.armed == ["a", *("b", "a") * 3, "b"]
        assert passes(harness, "a") == passes(harness, "b") == {}
        assert harness.engine.snapshot.switches == 7
        recent = harness.engine.snapshot.recent
        assert [(switch.incoming, switch.outgoing) for switch in recent] == [
            ("b", ("a",)) if turn % 2 == 0 else ("a", ("b",)) for turn in range(7)
        ]
        for switch in recent:
            assert list(switch.phases) == [*PHASES]
            assert switch.error == ""
            assert 0 < sum(switch.phases.values()) <= switch.seconds


def test_two_models_that_are_away_are_both_served() -> None:
    with dancing(A, B, C) as (harness, stage):
        harness.engine.submit(request("b", b"one", 8, model="b"))
        harness.engine.submit(request("c", b"two", 8, model="c"))
        said(harness, "b", b"one", 8)
        said(harness, "c", b"two", 8)
        assert set(stage.armed[1:]) == {"b", "c"}


def test_streams_pause_and_go_on_where_they_were() -> None:
    gate = Gate()
    with dancing(A, B, gates={"a": gate}) as (harness, _):
        for i in range(4):
            harness.engine.submit(request(f"a{i}", b"talk %d" % i, 30, model="a"))
        for _ in range(12):
            gate.wait()
            gate.let()
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        gate.let(200)
        said(harness, "b", b"hi", 8)
        for i in range(4):
            said(harness, f"a{i}", b"talk %d" % i, 30)
        assert passes(harness, "a") == {}


@pytest.mark.parametrize("bank", [1 << 20, 0], ids=["with its rows", "without"])
def test_a_text_to_be_embedded_pauses_in_its_midst(bank: int) -> None:
    """What was fed before counts; fed again, as the bank had no room, it does not count twice."""
    gate, text = Gate(), bytes(range(40, 100))
    with dancing(A, B, gates={"a": gate}, bank=bank, chunk_rows=8) as (harness, _):
        harness.engine.submit(embed("e", text, model="a"))
        for _ in range(2):
            gate.wait()
            gate.let()
        gate.wait()
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        gate.let(200)
        end = harness.mail.terminal("e")
        assert isinstance(end, FinishedEvent), end
        np.testing.assert_array_equal(end.embedding, expected(text, Pooling.MEAN))
        said(harness, "b", b"hi", 8)
        refed = harness.metrics.registry.get_sample_value("tierd_kv_reprefilled_tokens_total", {"model": "a"})
        assert (refed > 0) is (bank == 0)


def test_a_stream_that_leaves_again_and_again_takes_one_place_in_the_bank() -> None:
    gate = Gate()
    with dancing(A, B, gates={"a": gate}, switch=PATIENT) as (harness, _):
        harness.engine.submit(request("a", b"talk", 40, model="a"))
        for _ in range(3):
            gate.wait()
            gate.let()
            left = harness.engine.activate("b")
            while not left.done():
                gate.let()
                wait([left], 0.02)
            left.result()
            harness.engine.activate("a").result(PATIENCE)
        snapshot = harness.snapshot_when(lambda snapshot: snapshot.bank.entries <= 1)
        assert (snapshot.bank.entries, snapshot.bank.dropped) == (1, 0)
        gate.let(200)
        said(harness, "a", b"talk", 40)


def test_what_a_prompt_was_fed_before_a_switch_counts_as_fed() -> None:
    gate = Gate()
    with dancing(A, B, gates={"a": gate}, switch=PATIENT) as (harness, _):
        harness.engine.submit(request("a", b"of more tokens than a step has room for", 8, model="a"))
        gate.wait()
        switched = harness.engine.activate("b")
        harness.snapshot_when(lambda snapshot: snapshot.models["a"].seat == "leaving")
        gate.let(200)
        switched.result(PATIENCE)
        harness.engine.activate("a").result(PATIENCE)
        said(harness, "a", b"of more tokens than a step has room for", 8)
        (end,) = harness.mail.terminals()["a"]
        assert isinstance(end, FinishedEvent)
        assert end.usage.cached_tokens == 0


def test_streams_go_on_at_the_cpu_where_that_is_set() -> None:
    gate = Gate()
    switch = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0, resume="cpu")
    with dancing(A, B, gates={"a": gate}, switch=switch) as (harness, _):
        harness.engine.submit(request("a", b"talk", 20, model="a"))
        for _ in range(8):
            gate.wait()
            gate.let()
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        gate.let(200)
        said(harness, "b", b"hi", 8)
        said(harness, "a", b"talk", 20)
        assert passes(harness, "a").keys() == {"away"}


def test_those_that_fit_stay_together() -> None:
    with dancing(A, B, C, budget=20) as (harness, stage):
        harness.engine.submit(request("c", b"hi", 8, model="c"))
        said(harness, "c", b"hi", 8)
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        said(harness, "b", b"hi", 8)
        assert stage.armed == ["a", "b", "c"]


def test_a_model_with_work_stays_for_its_hold() -> None:
    gate = Gate()
    with dancing(A, B, gates={"a": gate}, switch=PATIENT) as (harness, stage):
        harness.engine.submit(request("a", b"talk", 20, model="a"))
        gate.wait()
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        gate.let(200)
        said(harness, "a", b"talk", 20)
        said(harness, "b", b"hi", 8)
        assert stage.armed == ["a", "b"]


def test_activate_tells_the_phases() -> None:
    with dancing(A, B, switch=PATIENT) as (harness, stage):
        operation, stage.patience = Operation("activate", "b"), 0.05
        seconds = harness.engine.activate("b", operation).result(PATIENCE)
        assert list(seconds) == ["pause", "hydrate", "drop", "save", "restore", "rearm", "rehome"]
        assert seconds["rearm"] >= 0.05 > seconds["restore"]
        operation.finish()
        assert [phase.name for phase in operation.view.phases] == ["wait", *seconds]
        assert harness.engine.activate("b").result(PATIENCE) == {}
        assert stage.reservations.held == {"b": 10}
        assert {m: s.seat for m, s in harness.engine.snapshot.models.items()} == {"a": "away", "b": "on"}


def test_activate_of_what_cannot_come_says_why() -> None:
    pinned = model("a")
    pinned = ModelSettings(id=pinned.id, path=pinned.path, pin=True)
    with dancing(pinned, B) as (harness, stage):
        with pytest.raises(DeviceMemoryError, match="pinned"):
            harness.engine.activate("b").result(PATIENCE)
        with pytest.raises(ModelNotFoundError):
            harness.engine.activate("x").result(PATIENCE)
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        said(harness, "b", b"hi", 8)
        assert passes(harness, "b").keys() == {"no_room"}
        assert stage.armed == ["a"]


def test_who_left_comes_back_where_the_newcomer_cannot_be_put() -> None:
    with dancing(A, B, switch=PATIENT) as (harness, stage):
        stage.broken = [DeviceMemoryError("in pieces")]
        with pytest.raises(DeviceMemoryError, match="in pieces"):
            harness.engine.activate("b").result(PATIENCE)
        assert stage.reservations.held == {"a": 10}
        harness.engine.submit(request("a", b"hi", 8, model="a"))
        said(harness, "a", b"hi", 8)
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        said(harness, "b", b"hi", 8)
        assert passes(harness, "a") == {}
        assert passes(harness, "b").keys() == {"no_room"}


def test_a_load_that_cannot_come_is_taken_back() -> None:
    with dancing(A, switch=PATIENT) as (harness, stage):
        stage.broken = [DeviceMemoryError("in pieces")]
        with pytest.raises(DeviceMemoryError, match="in pieces"):
            harness.engine.load(B, activate=True).result(PATIENCE)
        assert list(harness.engine.catalogue.entries) == ["a"]
        assert stage.reservations.held == {"a": 10}
        harness.engine.load(B, activate=True).result(PATIENCE)
        assert list(harness.engine.catalogue.entries) == ["a", "b"]
        assert stage.reservations.held == {"b": 10}


def test_a_device_that_is_lost_meanwhile_is_tried_again() -> None:
    with dancing(A, B) as (harness, stage):
        stage.broken = [DeviceLostError("gone"), DeviceLostError("gone")]
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        said(harness, "b", b"hi", 8)
        harness.engine.submit(request("a", b"hi", 8, model="a"))
        said(harness, "a", b"hi", 8)


def test_unload_waits_for_streams_and_frees_all() -> None:
    gate = Gate()
    with dancing(A, B, gates={"a": gate}) as (harness, stage):
        harness.engine.submit(request("a", b"talk", 8, model="a"))
        gate.wait()
        unloaded = harness.engine.unload("a")
        with pytest.raises(ModelNotFoundError):
            harness.engine.unload("a").result(PATIENCE)
        harness.engine.submit(request("late", b"talk", 8, model="a"))
        assert isinstance(harness.mail.terminal("late").error, ModelNotFoundError)
        assert not unloaded.done()
        gate.let(100)
        said(harness, "a", b"talk", 8)
        unloaded.result(PATIENCE)
        assert stage.reservations.held == {}
        assert list(harness.engine.snapshot.models) == ["b"]
        harness.load(A)
        harness.engine.submit(request("again", b"talk", 8, model="a"))
        said(harness, "again", b"talk", 8)


def test_unload_ends_streams_after_its_limit() -> None:
    gate = Gate()
    with dancing(A, gates={"a": gate}) as (harness, _):
        harness.engine.submit(request("a", b"talk", 8, model="a"))
        gate.wait()
        unloaded = harness.engine.unload("a", limit_s=0.05)
        assert isinstance(harness.mail.terminal("a").error, UnavailableError)
        gate.let(100)
        unloaded.result(PATIENCE)


def test_a_model_without_work_leaves_after_a_time() -> None:
    switch = SwitchSettings(min_hold_s=0.0, max_wait_s=0.0, idle_s=0.05)
    with dancing(A, switch=switch) as (harness, stage):
        harness.snapshot_when(lambda snapshot: snapshot.models["a"].seat == "away")
        assert stage.reservations.held == {}
        harness.engine.submit(request("a", b"talk", 8, model="a"))
        said(harness, "a", b"talk", 8)


def test_drain_is_called_off() -> None:
    gate = Gate()
    with dancing(A, B, gates={"a": gate}) as (harness, _):
        harness.engine.submit(request("a", b"talk", 8, model="a"))
        gate.wait()
        drained = harness.engine.drain()
        harness.engine.submit(request("no", b"talk", 8, model="a"))
        assert isinstance(harness.mail.terminal("no").error, UnavailableError)
        harness.engine.resume().result(PATIENCE)
        with pytest.raises(UnavailableError, match="called off"):
            drained.result(PATIENCE)
        gate.let(200)
        harness.engine.submit(request("yes", b"talk", 8, model="a"))
        said(harness, "a", b"talk", 8)
        said(harness, "yes", b"talk", 8)


def test_a_cpu_model_cannot_be_activated() -> None:
    with running(model("null")) as harness, pytest.raises(NoDeviceError):
        harness.engine.activate("null").result(PATIENCE)


def test_the_engine_stops_in_the_middle_of_a_switch() -> None:
    gate = Gate()
    with dancing(A, B, gates={"a": gate}) as (harness, _):
        harness.engine.submit(request("a", b"talk", 20, model="a"))
        gate.wait()
        activated = harness.engine.activate("b")
        harness.engine.submit(request("b", b"hi", 8, model="b"))
        gate.let(1000)
        assert harness.engine.stop(PATIENCE)
        assert activated.done()
        assert {type(end) for ends in harness.mail.terminals().values() for end in ends}
        with pytest.raises((TierdError, AssertionError)):
            activated.result() and pytest.fail("it may have been done")
