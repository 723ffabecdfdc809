"""Every metric tierd exports, declared once. Labels are bounded: configured model ids and fixed words."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MODEL = ("model",)
NO_MODEL = "-"


class Metrics:
    """One registry and its metrics; the engine thread feeds them.

    outcome: how a request ended: "stop", "length", "cancelled" (its client went away, or the server chose
    to), "queue_full" and "queue_timeout" (429), "slow_reader", "unavailable" (the server ends), "refused"
    (it could not be served as asked), "failed" (a fault). model: NO_MODEL for what was refused before a
    model was asked.
    """

    def __init__(self, version: str) -> None:
        registry = self.registry = CollectorRegistry()
        Info("tierd_build", "The running tierd.", registry=registry).info({"version": version})
        self.requests = Counter(
            "tierd_requests", "Requests that ended.", (*MODEL, "outcome"), registry=registry
        )
        self.prompt_tokens = Counter(
            "tierd_prompt_tokens",
            "Prompt tokens fed to the model, those that had to be fed again among them.",
            MODEL,
            registry=registry,
        )
        self.generated_tokens = Counter(
            "tierd_generated_tokens", "Tokens sampled, those that end a text too.", MODEL, registry=registry
        )
        self.time_to_first_token = Histogram(
            "tierd_time_to_first_token_seconds",
            "From a request's submission to its first token.",
            MODEL,
            buckets=SECONDS,
            registry=registry,
        )
        self.inter_token = Histogram(
            "tierd_inter_token_seconds",
            "Between two tokens of one request.",
            MODEL,
            buckets=SECONDS,
            registry=registry,
        )
        self.queue_wait = Histogram(
            "tierd_queue_wait_seconds",
            "From a request's submission to its first rows, or to its end where it had none.",
            MODEL,
            buckets=SECONDS,
            registry=registry,
        )
        self.request_duration = Histogram(
            "tierd_request_duration_seconds",
            "From a request's submission to its end.",
            MODEL,
            buckets=SECONDS,
            registry=registry,
        )
        self.step_duration = Histogram(
            "tierd_step_duration_seconds",
            "One pass over a model's weights.",
            MODEL,
            buckets=SECONDS,
            registry=registry,
        )
        self.step_rows = Histogram(
            "tierd_step_rows", "Token rows of one pass.", MODEL, buckets=ROWS, registry=registry
        )
        self.rows_discarded = Counter(
            "tierd_rows_discarded",
            "Rows whose token nobody wanted: their stream had ended, or had got another one before.",
            MODEL,
            registry=registry,
        )
        self.logit_rows_read = Counter(
            "tierd_gpu_logit_rows_read",
            "Rows of logits read back because the GPU could not draw from them, or for log-probabilities.",
            MODEL,
            registry=registry,
        )
        self.hidden_rows_read = Counter(
            "tierd_gpu_hidden_rows_read",
            "Hidden states read back from the GPU, to make embeddings of them.",
            MODEL,
            registry=registry,
        )
        self.passes = Counter(
            "tierd_gpu_cpu_passes",
            "Steps' chunks that were meant for the GPU and ran on the CPU, by why.",
            (*MODEL, "reason"),
            registry=registry,
        )
        self.running = Gauge("tierd_requests_running", "Requests being served.", MODEL, registry=registry)
        self.paused = Gauge(
            "tierd_streams_paused",
            "Requests being served whose clients do not keep up.",
            MODEL,
            registry=registry,
        )
        self.pauses = Counter(
            "tierd_stream_pauses", "Times a stream was paused for its client.", MODEL, registry=registry
        )
        self.preemptions = Counter(
            "tierd_preemptions",
            "Times a stream gave up its K/V pages for others; rows: banked, or dropped and fed again.",
            (*MODEL, "rows"),
            registry=registry,
        )
        self.preempted = Gauge(
            "tierd_requests_preempted", "Streams that wait for K/V pages again.", MODEL, registry=registry
        )
        self.waiting = Gauge("tierd_requests_waiting", "Requests in the queue.", MODEL, registry=registry)
        self.prefix_queries = Counter(
            "tierd_prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            MODEL,
            registry=registry,
        )
        self.prefix_hits = Counter(
            "tierd_prefix_cache_hits",
            "Prompt tokens found in the prefix cache, so not fed again.",
            MODEL,
            registry=registry,
        )
        self.pages_used = Gauge("tierd_kv_pages_used", "K/V pages in use.", MODEL, registry=registry)
        self.pages_cached = Gauge(
            "tierd_kv_pages_cached",
            "K/V pages kept for later prompts and in nobody's use.",
            MODEL,
            registry=registry,
        )
        self.pages_total = Gauge("tierd_kv_pages", "K/V pages there are.", MODEL, registry=registry)
        self.reprefilled = Counter(
            "tierd_kv_reprefilled_tokens",
            "Tokens fed again because their K/V was lost, or could be kept nowhere.",
            MODEL,
            registry=registry,
        )
        self.bank_bytes = Gauge(
            "tierd_kv_bank_bytes",
            "Memory that the bank of K/V rows takes (used) and may take (limit), and its files (spilled).",
            ("kind",),
            registry=registry,
        )
        self.bank_dropped = Counter(
            "tierd_kv_bank_dropped",
            "Parked conversations whose K/V the bank dropped, for want of room or as a file was no good.",
            MODEL,
            registry=registry,
        )
        self.bank_dropped_positions = Counter(
            "tierd_kv_bank_dropped_positions",
            "Positions of the parked conversations whose K/V the bank dropped.",
            MODEL,
            registry=registry,
        )
        self.bank_damaged = Counter(
            "tierd_kv_bank_damaged",
            "Parked conversations whose K/V was dropped because its file could not be read back.",
            MODEL,
            registry=registry,
        )
        self.model_outcome = Gauge(
            "tierd_model_outcome",
            "1 where a model runs: cpu or gpu:resident.",
            (*MODEL, "outcome"),
            registry=registry,
        )
        self.on_device = Gauge(
            "tierd_model_on_device",
            "1 while a model is on the GPU; 0 while it is away, and for one that is on the CPU.",
            MODEL,
            registry=registry,
        )
        self.switches = Counter(
            "tierd_switches",
            "Switches that ended, by the model that came to the GPU, or was to come (failed).",
            (*MODEL, "outcome"),
            registry=registry,
        )
        self.switch_seconds = Histogram(
            "tierd_switch_seconds",
            "What the phases of switches took: pause, hydrate, drop, save, restore, rearm, rehome.",
            ("phase",),
            buckets=SECONDS,
            registry=registry,
        )
        self.gpu_memory = Gauge(
            "tierd_gpu_memory_bytes",
            "Memory of the device that models take (used), and may take in all (budget); 0 without a device.",
            ("kind",),
            registry=registry,
        )
