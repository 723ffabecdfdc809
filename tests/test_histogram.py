from __future__ import annotations

import random

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from tierd.histogram import Histogram

BOUNDS = (0.001, 0.5, 1.0, 60.0)


def test_it_says_what_the_client_librarys_says() -> None:
    chance, ours, theirs = random.Random(4), CollectorRegistry(), CollectorRegistry()
    both = [
        kind("t_seconds", "Time.", ("model", "phase"), registry=registry, buckets=BOUNDS)
        for kind, registry in ((Histogram, ours), (prometheus_client.Histogram, theirs))
    ]
    for _ in range(500):
        labels = chance.choice("ab"), chance.choice("xy")
        value = chance.choice((*BOUNDS, chance.uniform(-1, 2), chance.uniform(0, 100)))
        for histogram in both:
            histogram.labels(*labels).observe(value)
    for histogram in both:
        histogram.labels("never", "observed")
    (found,), (expected,) = ours.collect(), theirs.collect()
    samples = [
        {(one.name, tuple(sorted(one.labels.items()))): one.value for one in family.samples}
        for family in (found, expected)
    ]
    created = {key for key in samples[1] if key[0] == "t_seconds_created"}
    assert samples[0] == {key: value for key, value in samples[1].items() if key not in created}
    assert (found.name, found.type, found.documentation) == ("t_seconds", "histogram", "Time.")


def test_a_name_is_given_once() -> None:
    registry = CollectorRegistry(auto_describe=True)
    Histogram("t", "Time.", ("model",), registry=registry, buckets=BOUNDS)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Histogram("t", "Time.", ("model",), registry=registry, buckets=BOUNDS)
