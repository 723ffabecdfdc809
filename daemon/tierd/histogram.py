"""A histogram that one thread feeds: of all that is exported most are its series, and they must be cheap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Observed:
    """What was observed under one set of labels."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: upper ones, ascending; what is above the last is counted too."""
        self.counts = [0] * (len(bounds) + 1)  # not cumulative
        self.total = 0.0
        self._bounds = bounds

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Histogram(Collector):
    """As the client library's, without locks: a thread may read while another observes, but only one may."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        *,
        registry: CollectorRegistry,
        buckets: Sequence[float],
    ) -> None:
        """buckets: upper bounds, ascending, without infinity."""
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labelnames)
        self._bounds = tuple(buckets)
        self._words = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self._observed: dict[tuple[str, ...], Observed] = {}
        registry.register(self)

    def labels(self, *values: str) -> Observed:
        """Return what was observed under these values of the labels."""
        observed = self._observed.get(values)
        if observed is None:
            observed = self._observed[values] = Observed(self._bounds)
        return observed

    def describe(self) -> Iterable[Metric]:
        """Return the metric without series."""
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        """Return the metric as it is now."""
        family = self._family()
        for values, observed in self._observed.copy().items():
            cumulative = accumulate(observed.counts)
            family.add_metric(values, list(zip(self._words, cumulative, strict=True)), observed.total)
        return [family]

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
