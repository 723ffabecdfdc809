"""Draining: nothing more is admitted, what runs finishes, what waits is told."""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotYet

import pytest

from engine.harness import NULL, PATIENCE, Gate, Harness, model, running
from engine.null_slot import request
from tierd.core import FailedEvent, FinishedEvent, FinishReason, Usage
from tierd.errors import UnavailableError


def unavailable(harness: Harness, request_id: str) -> bool:
    event = harness.mail.terminal(request_id)
    return isinstance(event, FailedEvent) and isinstance(event.error, UnavailableError)


def test_running_streams_finish_and_the_rest_is_refused() -> None:
    gate = Gate()
    with running(model("null", streams=2), before_step=gate) as harness:
        harness.engine.submit(request("a", max_tokens=5))
        gate.wait()
        for name in "bc":
            harness.engine.submit(request(name, max_tokens=5))
        harness.snapshot_when(lambda s: s.models["null"].waiting == 2)
        drained = harness.engine.drain(ending=True)
        # b would have run with the next step, c would not
        assert unavailable(harness, "b")
        assert unavailable(harness, "c")
        assert not harness.engine.catalogue
        for name in (None, "null", "other"):
            with pytest.raises(UnavailableError, match="shutting down"):
                harness.engine.catalogue.resolve(name)
        harness.engine.submit(request("late"))
        assert unavailable(harness, "late")
        assert isinstance(harness.engine.load(model("late")).exception(PATIENCE), UnavailableError)
        with pytest.raises(NotYet):
            drained.result(0)
        gate.let(99)
        assert harness.mail.terminal("a") == FinishedEvent(FinishReason.LENGTH, Usage(8, 5))
        drained.result(PATIENCE)
        harness.engine.drain().result(PATIENCE)


def test_a_server_that_ends_cannot_be_called_back() -> None:
    gate = Gate()
    with running(NULL, before_step=gate) as harness:
        harness.engine.submit(request("a", max_tokens=3))
        gate.wait()
        ending, asked = harness.engine.drain(ending=True), harness.engine.drain()
        with pytest.raises(UnavailableError, match="shutting down"):
            harness.engine.resume().result(PATIENCE)
        with pytest.raises(UnavailableError, match="shutting down"):
            harness.engine.catalogue.resolve("null")
        gate.let(99)
        for drained in (ending, asked):
            drained.result(PATIENCE)


def test_an_idle_engine_is_drained_at_once_and_one_that_stops_as_well() -> None:
    gate = Gate()
    with running(NULL, before_step=gate) as harness:
        harness.engine.submit(request("a"))
        gate.wait()
        drained = harness.engine.drain()
        harness.engine.stop(0)
        drained.result(PATIENCE)
        assert unavailable(harness, "a")
        gate.let()
    harness.engine.drain().result(0)
    with running(NULL) as harness:
        harness.engine.drain().result(PATIENCE)
