from __future__ import annotations

import logging

import pytest
from prometheus_client import generate_latest

from tierd.core import PassReason
from tierd.metrics import Metrics
from tierd.tier.passes import Passes


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("test")


@pytest.fixture
def passes(metrics: Metrics) -> Passes:
    return Passes("smol", metrics.passes)


def exported(metrics: Metrics, reason: PassReason) -> float | None:
    labels = {"model": "smol", "reason": reason.value}
    return metrics.registry.get_sample_value("tierd_gpu_cpu_passes_total", labels)


def test_every_reason_is_exported_as_zero_before_it_happens(metrics: Metrics, passes: Passes) -> None:
    assert {reason: exported(metrics, reason) for reason in PassReason} == dict.fromkeys(PassReason, 0)
    assert b'tierd_gpu_cpu_passes_total{model="smol",reason="no_room"} 0.0' in generate_latest(
        metrics.registry
    )


def test_a_model_that_has_no_passes_is_not_exported(metrics: Metrics) -> None:
    assert exported(metrics, PassReason.GAP) is None


def test_status_begins_anew_and_the_metric_goes_on(metrics: Metrics, passes: Passes) -> None:
    assert passes.status == {}
    passes.count(PassReason.UNHOMED)
    passes.count(PassReason.UNHOMED, 3)
    passes.count(PassReason.GAP)
    assert passes.status == {"unhomed": 4, "gap": 1}
    passes.reset()
    assert passes.status == {}
    passes.count(PassReason.UNHOMED, 2)
    assert passes.status == {"unhomed": 2}
    assert exported(metrics, PassReason.UNHOMED) == 6
    assert exported(metrics, PassReason.GAP) == 1


def test_a_status_that_was_published_does_not_change(passes: Passes) -> None:
    passes.count(PassReason.CAP)
    published = passes.status
    passes.count(PassReason.CAP)
    passes.reset()
    assert published == {"cap": 1}


def test_a_reason_is_logged_once_until_the_reset(passes: Passes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    passes.count(PassReason.UNHOMED, 5)
    passes.count(PassReason.UNHOMED)
    passes.count(PassReason.BUSY)
    unhomed = "model=smol passes to the CPU: no region of K/V was free on the device"
    busy = "model=smol passes to the CPU: another stream's prompt is in the scratch region"
    assert caplog.messages == [unhomed, busy]
    passes.reset()
    passes.count(PassReason.UNHOMED)
    assert caplog.messages == [unhomed, busy, unhomed]


def test_each_reason_has_words_of_its_own() -> None:
    words = {reason.words for reason in PassReason}
    assert len(words) == len(PassReason) == 14
    assert all(text and "\n" not in text and not text.endswith(".") for text in words)
