from __future__ import annotations

import re

import pytest
from prometheus_client.metrics_core import Metric

from tierd.core import FinishReason, PassReason
from tierd.engine.snapshot import RegionState
from tierd.engine.switch import PHASES
from tierd.errors import QueueFullError, QueueTimeoutError, SlowReaderError, UnavailableError
from tierd.metrics import NO_MODEL, OUTCOMES, REGIONS, SECONDS, Metrics
from tierd.metrics import PHASES as COUNTED_PHASES
from tierd.tier.passes import Passes


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0.0")


def families(metrics: Metrics) -> dict[str, Metric]:
    """Return tierd's own metrics by the names that they have in the table."""
    found = [family for family in metrics.registry.collect() if family.name.startswith("tierd_")]
    return {family.name + "_total" * (family.type == "counter"): family for family in found}


def test_the_table_has_all_that_is_exported_and_no_more(metrics: Metrics) -> None:
    assert [*families(metrics)] == [row.name for row in metrics.table]
    for row in metrics.table:
        family = families(metrics)[row.name]
        assert (family.type, family.documentation) == (row.kind, row.text)
        assert (row.buckets != ()) == (row.kind == "histogram")


def test_names_are_in_base_units(metrics: Metrics) -> None:
    for row in metrics.table:
        assert re.fullmatch(r"tierd_[a-z]+(_[a-z]+)*", row.name)
        assert (row.kind == "counter") == row.name.endswith("_total")
        assert not re.search(r"_(ms|mb|mib|kb|percent|milliseconds|megabytes)\b", row.name)
        assert (row.buckets == SECONDS) == (row.kind == "histogram" and row.name.endswith("_seconds"))
        assert row.text.endswith(".")
    assert (SECONDS[0], SECONDS[-1]) == (0.001, 60.0)


def test_a_model_has_all_of_its_series_before_anything_was_counted(metrics: Metrics) -> None:
    metrics.enter("host", device=False)
    metrics.enter("device", device=True)
    Passes("device", metrics.passes)
    for row in metrics.table:
        if "model" not in row.labels:
            continue
        models = {sample.labels["model"] for sample in families(metrics)[row.name].samples} - {NO_MODEL}
        assert models == {"device"} if row.device else {"device", "host"}, row.name


def test_the_words_of_labels_are_those_that_the_engine_uses(metrics: Metrics) -> None:
    busy = (QueueFullError, QueueTimeoutError, SlowReaderError, UnavailableError)
    assert OUTCOMES.keys() == {*FinishReason, *(str(error.code) for error in busy), "refused", "failed"}
    assert list(REGIONS) == list(RegionState)
    assert tuple(COUNTED_PHASES) == PHASES
    Passes("m", metrics.passes)
    (family,) = metrics.passes.collect()
    assert {sample.labels["reason"] for sample in family.samples} == set(PassReason)


def test_gauges_are_set_when_they_are_read(metrics: Metrics) -> None:
    metrics.registry.before.append(lambda: metrics.gpu_available.set(1))
    assert metrics.registry.get_sample_value("tierd_gpu_available") == 1
