"""Settings that change while the engine runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.harness import NULL, Gate, model, running
from engine.null_slot import request
from tierd.core import FailedEvent, FinishedEvent
from tierd.errors import QueueFullError, UnavailableError
from tierd.settings import EngineSettings, LimitsSettings, QueueSettings, Settings, SwitchSettings

BEFORE = Settings(queue=QueueSettings(capacity=1, timeout_s=0.0))


def test_the_queue_goes_by_what_it_is_told_last() -> None:
    gate = Gate()
    with running(model("null", streams=1), settings=BEFORE, before_step=gate, pages=400) as harness:
        engine, mail = harness.engine, harness.mail
        engine.submit(request("runs"))
        gate.wait()
        engine.submit(request("waits"))
        engine.submit(request("is refused"))
        event = mail.terminal("is refused")
        assert isinstance(event, FailedEvent)
        assert isinstance(event.error, QueueFullError)
        engine.configure(replace(BEFORE, queue=QueueSettings(capacity=2, timeout_s=0.0))).result(5)
        engine.submit(request("waits too"))
        engine.submit(request("is refused too"))
        assert isinstance(mail.terminal("is refused too"), FailedEvent)
        gate.let(1000)
        for name in ("runs", "waits", "waits too"):
            assert isinstance(mail.terminal(name), FinishedEvent)


def test_a_queue_that_waited_too_long_already_ends_at_once() -> None:
    gate = Gate()
    with running(model("null", streams=1), settings=BEFORE, before_step=gate, pages=400) as harness:
        harness.engine.submit(request("runs"))
        gate.wait()
        harness.engine.submit(request("waits"))
        harness.engine.configure(replace(BEFORE, queue=QueueSettings(timeout_s=0.001))).result(5)
        assert isinstance(harness.mail.terminal("waits"), FailedEvent)
        gate.let(1000)


def test_limits_are_those_of_models_that_are_there_and_of_those_that_come() -> None:
    with running(NULL) as harness:
        before = harness.engine.catalogue.entries["null"]
        limits = LimitsSettings(max_prompt_tokens=3, max_output_tokens=2)
        harness.engine.configure(Settings(limits=limits)).result(5)
        entry = harness.engine.catalogue.entries["null"]
        assert (entry.max_prompt_tokens, entry.max_output_tokens) == (3, 2)
        assert entry.created == before.created
        harness.engine.unload("null").result(5)
        entry = harness.engine.load(NULL).result(5)
        assert (entry.max_prompt_tokens, entry.max_output_tokens) == (3, 2)


def test_what_devices_and_switches_go_by_changes() -> None:
    with running(NULL) as harness:
        settings = Settings(engine=EngineSettings(gap_ms=5.0), switch=SwitchSettings(idle_s=7.0))
        harness.engine.configure(settings).result(5)
        loop = harness.engine._loop
        assert [device.paces.gap for device, _ in loop._devices] == [0.005]
        assert loop._dance._settings.idle_s == 7.0


def test_an_engine_that_has_stopped_takes_none() -> None:
    with running(NULL) as harness:
        harness.engine.stop(5)
        with pytest.raises(UnavailableError):
            harness.engine.configure(Settings())
