"""Every metric tierd exports, declared once. Labels are bounded: ids of models, and fixed words.

No client can make one: models have the ids that an operator gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.metrics_core import Metric

from tierd.histogram import Histogram

SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NO_MODEL = "-"

Words = Mapping[str, str]
MODEL: Mapping[str, Words] = {"model": {}}
OUTCOMES: Words = {
    "stop": "the model ended its text, or a stop string did",
    "length": "it reached its limit of tokens",
    "cancelled": "its client went away, or the server chose to",
    "queue_full": "429: too many waited",
    "queue_timeout": "429: it waited for too long",
    "slow_reader": "its client did not read on",
    "unavailable": "503: the server ends or drains, or no model is ready",
    "refused": "it could not be served as asked",
    "failed": "a fault",
}
PLACES: Words = {
    "cpu": "on the CPU",
    "gpu:rails": "on the CPU, with large matmuls on the GPU",
    "gpu:resident": "on the GPU",
}
PREEMPTED: Words = {
    "banked": "its rows went to the bank",
    "dropped": "its tokens are fed again",
}
BANK: Words = {
    "used": "memory that it takes",
    "limit": "memory that it may take",
    "spilled": "bytes of its files",
}
REGIONS: Words = {
    "free": "it holds nothing",
    "live": "a running stream's",
    "parked": "a conversation's that may go on",
    "pinned": "a parked one that no other may take",
    "leaving": "what it holds is on its way out",
    "scratch": "prompts run there whose streams' K/V is on the host",
}
CLAIMS: Words = {
    "parked": "a stream ended and its rows stayed in its region",
    "adopted": "a conversation came back and took its region over",
    "forked": "a stream began with a copy of another conversation's rows",
    "died": "its region was taken; its rows went to the bank where there was room",
}
REASONS: Words = {
    "waiting": "streams waited for the model",
    "wished": "streams of the model ran elsewhere",
    "admin": "an administrator brought it",
    "idle": "a model left that had no work for long",
}
ENDS: Words = {"done": "it went well", "failed": "it did not"}
PHASES: Words = {
    "pause": "the steps of those that leave end",
    "hydrate": "their rows go to the bank",
    "drop": "what they have on the device is freed",
    "save": "what brings them back is kept",
    "restore": "what brings the newcomer is taken out",
    "rearm": "it is put on the device",
    "rehome": "its streams go home",
}
MEMORY: Words = {"used": "what models take", "budget": "what they may take in all"}


_Kind = TypeVar("_Kind", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. name: with a counter's _total. kind: "counter", "gauge" or "histogram".

    labels: with their words and what these mean, {} where they are not fixed. buckets: of a histogram.
    device: only models that are meant for a device have it. part: what it is about, a heading.
    """

    name: str
    kind: str
    text: str
    labels: Mapping[str, Words]
    buckets: tuple[float, ...]
    device: bool
    part: str


class Registry(CollectorRegistry):
    """Has those called that set gauges, whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Callable[[], None]] = []

    def collect(self) -> Iterable[Metric]:
        """Return all metrics as they are now."""
        for prepare in self.before:
            prepare()
        return super().collect()


class Metrics:
    """One registry and its metrics; table: what was declared, in order.

    The engine thread counts; gauges are set when the registry is read, by those in `registry.before`.
    model: NO_MODEL for what was refused before a model was asked, for switches for which no model came, and
    for loads of models that are not in the settings.
    """

    def __init__(self, version: str) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = Registry()
        self.table: list[Row] = []
        self._metrics: list[Counter | Gauge | Histogram] = []  # as in the table
        self._part = "Requests"
        self._declare_requests()
        self._part = "Steps"
        self._declare_steps()
        self._part = "Keys and values"
        self._declare_kv()
        self._part = "Models and the GPU"
        self._declare_tier()
        self._shared("tierd_build_info", "The running tierd.", version={}).labels(version).set(1)
        ProcessCollector(registry=self.registry)
        for outcome in ("refused", "unavailable"):
            self.requests.labels(NO_MODEL, outcome)
        self.loads.labels(NO_MODEL, "failed")

    def enter(self, model: str, *, device: bool) -> None:
        """Have all series of a model there, so that what they count first is seen as a change.

        device: it is meant for a device.
        """
        for metric, row in zip(self._metrics, self.table, strict=True):
            values = list(row.labels.values())
            if "model" in row.labels and all(values[1:]) and device >= row.device:
                for words in product((model,), *values[1:]):
                    metric.labels(*words)

    def _counter(self, name: str, text: str, *, device: bool = False, **labels: Words) -> Counter:
        """Declare one that is counted by model."""
        return self._declare(Counter, name, text, {**MODEL, **labels}, device=device)

    def _gauge(self, name: str, text: str, *, device: bool = False, **labels: Words) -> Gauge:
        """Declare one that each model has."""
        return self._declare(Gauge, name, text, {**MODEL, **labels}, device=device)

    def _shared(self, name: str, text: str, **labels: Words) -> Gauge:
        """Declare one that models have together."""
        return self._declare(Gauge, name, text, labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        """Declare one that each model has."""
        return self._declare(Histogram, name, text, MODEL, buckets=buckets)

    def _declare(
        self,
        kind: type[_Kind],
        name: str,
        text: str,
        labels: Mapping[str, Words],
        *,
        device: bool = False,
        **more: Any,
    ) -> _Kind:
        metric = kind(name, text, tuple(labels), registry=self.registry, **more)
        full = f"{name}_total" if kind is Counter else name
        buckets = more.get("buckets", ())
        self.table.append(Row(full, kind.__name__.lower(), text, labels, buckets, device, self._part))
        self._metrics.append(metric)
        return metric

    def _declare_requests(self) -> None:
        self.requests = self._counter("tierd_requests", "Requests that ended.", outcome=OUTCOMES)
        self.running = self._gauge("tierd_requests_running", "Requests being served.")
        self.waiting = self._gauge("tierd_requests_waiting", "Requests in the queue.")
        self.queue_capacity = self._shared("tierd_queue_capacity", "Requests of one model that may wait.")
        self.queue_wait = self._histogram(
            "tierd_queue_wait_seconds",
            "From a request's submission to its first rows, or to its end where it had none.",
        )
        self.time_to_first_token = self._histogram(
            "tierd_time_to_first_token_seconds", "From a request's submission to its first token."
        )
        self.inter_token = self._histogram("tierd_inter_token_seconds", "Between two tokens of one request.")
        self.prefill = self._histogram(
            "tierd_prefill_seconds", "From a request's first rows to its first token."
        )
        self.decode = self._histogram(
            "tierd_decode_seconds", "From a request's first token to its last one, where there were several."
        )
        self.request_duration = self._histogram(
            "tierd_request_duration_seconds", "From a request's submission to its end."
        )
        self.prompt_tokens = self._counter(
            "tierd_prompt_tokens",
            "Prompt tokens fed to the model, those that had to be fed again among them.",
        )
        self.cached_tokens = self._counter(
            "tierd_cached_tokens",
            "Prompt tokens that were not fed, as their K/V was there: what usage calls cached_tokens.",
        )
        self.generated_tokens = self._counter(
            "tierd_generated_tokens", "Tokens sampled, those that end a text too."
        )
        self.paused = self._gauge(
            "tierd_streams_paused", "Requests being served whose clients do not keep up."
        )
        self.pauses = self._counter("tierd_stream_pauses", "Times a stream was paused for its client.")
        self.preempted = self._gauge("tierd_requests_preempted", "Streams that wait for K/V pages again.")
        self.preemptions = self._counter(
            "tierd_preemptions", "Times a stream gave up its K/V pages for others.", rows=PREEMPTED
        )

    def _declare_steps(self) -> None:
        self.step_duration = self._histogram(
            "tierd_step_duration_seconds", "One pass over a model's weights."
        )
        self.step_rows = self._histogram("tierd_step_rows", "Token rows of one pass.", ROWS)
        self.rows_discarded = self._counter(
            "tierd_rows_discarded",
            "Rows whose token nobody wanted: their stream had ended, or had got another one before.",
        )
        self.logit_rows_read = self._counter(
            "tierd_gpu_logit_rows_read",
            "Rows of logits read back because the GPU could not draw from them, or for log-probabilities.",
        )
        self.hidden_rows_read = self._counter(
            "tierd_gpu_hidden_rows_read", "Hidden states read back from the GPU, to make embeddings of them."
        )
        self.passes = self._counter(
            "tierd_gpu_cpu_passes",
            "Steps' chunks that were meant for the GPU and ran on the CPU, by why.",
            device=True,
            reason={},
        )

    def _declare_kv(self) -> None:
        self.pages_used = self._gauge("tierd_kv_pages_used", "K/V pages in use.")
        self.pages_cached = self._gauge(
            "tierd_kv_pages_cached", "K/V pages kept for later prompts and in nobody's use."
        )
        self.pages_free = self._gauge("tierd_kv_pages_free", "K/V pages that hold nothing.")
        self.pages_total = self._gauge("tierd_kv_pages", "K/V pages there are.")
        self.prefix_queries = self._counter(
            "tierd_prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_hits = self._counter(
            "tierd_prefix_cache_hits", "Prompt tokens found in the prefix cache, so not fed again."
        )
        self.reprefilled = self._counter(
            "tierd_kv_reprefilled_tokens",
            "Tokens fed again because their K/V was lost, or could be kept nowhere.",
        )
        self.bank_bytes = self._shared(
            "tierd_kv_bank_bytes",
            "The bank of K/V rows that are kept outside of pages and regions.",
            kind=BANK,
        )
        self.bank_dropped = self._counter(
            "tierd_kv_bank_dropped",
            "Parked conversations whose K/V the bank dropped, for want of room or as a file was no good.",
        )
        self.bank_dropped_positions = self._counter(
            "tierd_kv_bank_dropped_positions",
            "Positions of the parked conversations whose K/V the bank dropped.",
        )
        self.bank_damaged = self._counter(
            "tierd_kv_bank_damaged",
            "Parked conversations whose K/V was dropped because its file could not be read back.",
        )
        self.regions = self._gauge(
            "tierd_gpu_regions",
            "Regions of K/V on the device, each for one stream.",
            device=True,
            state=REGIONS,
        )
        self.claims = self._counter(
            "tierd_gpu_claims",
            "What became of conversations whose K/V stayed in a region of the device.",
            device=True,
            event=CLAIMS,
        )

    def _declare_tier(self) -> None:
        self.loads = self._counter("tierd_model_loads", "Models that were to be loaded.", outcome=ENDS)
        self.model_outcome = self._gauge(
            "tierd_model_outcome", "1 where a model runs, 0 elsewhere.", outcome=PLACES
        )
        self.on_device = self._gauge(
            "tierd_model_on_device",
            "1 while a model is on the GPU; 0 while it is away, and for one that is on the CPU.",
        )
        self.switches = self._counter(
            "tierd_switches",
            "Switches that ended, by the model that came to the GPU or was to come.",
            device=True,
            reason=REASONS,
            outcome=ENDS,
        )
        self.switch_seconds = self._declare(
            Histogram,
            "tierd_switch_seconds",
            "What the phases of switches took.",
            {"phase": PHASES},
            buckets=SECONDS,
        )
        self.gpu_memory = self._shared(
            "tierd_gpu_memory_bytes", "Memory of the device; 0 without a device.", kind=MEMORY
        )
        self.gpu_available = self._shared(
            "tierd_gpu_available",
            "1 while there is a device that works; 0 without one, and while it is lost.",
        )
        self.gpu_faults = self._declare(
            Counter, "tierd_gpu_faults", "Times the device failed in its work and was given up.", {}
        )
