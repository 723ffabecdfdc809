"""Sets the gauges when the metrics are read, from what the engine published last: no turn pays for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tierd.engine.snapshot import ModelSnapshot, Snapshot
from tierd.metrics import BANK, PLACES, REGIONS, Metrics
from tierd.settings import QueueSettings
from tierd.tier.status import TierStatus

_ON_DEVICE = ("on", "leaving")


class Gauges:
    """Called by whoever reads the metrics, one at a time; touches nothing that is the engine's alone."""

    def __init__(
        self,
        metrics: Metrics,
        snapshot: Callable[[], Snapshot],
        tier: Callable[[], TierStatus],
        queue: QueueSettings,
    ) -> None:
        """snapshot: returns what was published last. tier: tells how the device stands."""
        self._metrics = metrics
        self._snapshot = snapshot
        self._tier = tier
        self._models: set[str] = set()  # that were there when the gauges were set last
        self._faults = 0
        self.configure(queue)
        metrics.registry.before.append(self._set)

    def configure(self, queue: QueueSettings) -> None:
        """Tell of other settings of the queue."""
        self._metrics.queue_capacity.set(queue.capacity)

    def _set(self) -> None:
        metrics, snapshot, tier = self._metrics, self._snapshot(), self._tier()
        for kind in BANK:
            metrics.bank_bytes.labels(kind).set(getattr(snapshot.bank, kind))
        metrics.gpu_memory.labels("used").set(tier.used)
        metrics.gpu_memory.labels("budget").set(tier.budget)
        metrics.gpu_available.set(bool(tier.device))
        metrics.gpu_faults.inc(tier.faults - self._faults)
        self._faults = tier.faults
        for model, state in snapshot.models.items():
            self._set_model(model, state)
        for model in self._models - snapshot.models.keys():
            self._remove(model)
        self._models = set(snapshot.models)

    def _set_model(self, model: str, state: ModelSnapshot) -> None:
        metrics = self._metrics
        metrics.running.labels(model).set(state.running)
        metrics.waiting.labels(model).set(state.waiting)
        metrics.paused.labels(model).set(state.paused)
        metrics.preempted.labels(model).set(state.preempted)
        metrics.pages_total.labels(model).set(state.pages_total)
        metrics.pages_used.labels(model).set(state.pages_used)
        metrics.pages_cached.labels(model).set(state.pages_cached)
        metrics.pages_free.labels(model).set(state.pages_free)
        metrics.on_device.labels(model).set(state.seat in _ON_DEVICE)
        for outcome in PLACES:
            metrics.model_outcome.labels(model, outcome).set(outcome == state.outcome)
        if state.regions:
            found = Counter(str(region.state) for region in state.regions)
            for word in REGIONS:
                metrics.regions.labels(model, word).set(found[word])

    def _remove(self, model: str) -> None:
        """Let a model that is gone have no gauges; what was counted stays."""
        metrics = self._metrics
        for gauge in (
            metrics.running,
            metrics.waiting,
            metrics.paused,
            metrics.preempted,
            metrics.pages_total,
            metrics.pages_used,
            metrics.pages_cached,
            metrics.pages_free,
            metrics.on_device,
        ):
            gauge.remove(model)
        for outcome in PLACES:
            metrics.model_outcome.remove(model, outcome)
        for word in REGIONS:
            metrics.regions.remove(model, word)
