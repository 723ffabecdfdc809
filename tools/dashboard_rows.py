"""What the Grafana dashboard shows: its rows of panels, and their queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INSTANCE = 'job="tierd",instance=~"$instance"'
MODEL = f'{INSTANCE},model=~"$model"'
WINDOW = "[$__rate_interval]"

Query = tuple[str, str]  # an expression, and what its series are called


@dataclass(frozen=True)
class Panel:
    """text: what it shows and what to do. unit: Grafana's name. bounds: where it turns orange and red.

    stacked: series add up. most: the end of the axis. words: what values are called.
    """

    title: str
    text: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    bounds: tuple[float, float] | None = None
    stacked: bool = False
    most: float | None = None
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def rate(name: str, by: str = "model", more: str = "") -> str:
    """Sum a counter's rates a second by labels."""
    return f"sum by ({by}) (rate({name}{{{MODEL}{more}}}{WINDOW}))"


def gauge(name: str, by: str = "model", more: str = "") -> str:
    """Sum a gauge of models by labels."""
    return f"sum by ({by}) ({name}{{{MODEL}{more}}})"


def quantiles(name: str) -> list[Query]:
    """Return the median and the 95th and 99th of 100 of a histogram, by model."""
    return [(quantile(name, share), f"{{{{model}}}} p{100 * share:.0f}") for share in (0.5, 0.95, 0.99)]


def quantile(name: str, share: float, by: str = "model") -> str:
    """Return a quantile of a histogram of models."""
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({name}_bucket{{{MODEL}}}{WINDOW})))"


def mean(name: str, by: str = "model") -> str:
    """Return the mean of a histogram of models."""
    return f"{rate(f'{name}_sum', by)} / ({rate(f'{name}_count', by)} > 0)"


GLANCE = [
    Panel(
        "Up",
        "Daemons that Prometheus reaches. None: its log says why, journalctl --unit tierd.",
        [(f"sum(up{{{INSTANCE}}})", "up")],
        kind="stat",
    ),
    Panel(
        "Models",
        "Where each model runs. cpu for one that is meant for the GPU: tierd ctl slots says why.",
        [(f"tierd_model_outcome{{{MODEL}}} == 1", "{{model}}: {{outcome}}")],
        kind="names",
    ),
    Panel(
        "Generated",
        "Tokens a second of all streams together.",
        [(f"sum(rate(tierd_generated_tokens_total{{{MODEL}}}{WINDOW}))", "generated")],
        unit="short",
        kind="stat",
    ),
    Panel(
        "First token, p95",
        "19 of 20 requests have their first token within this time. The alerts' objective is 5 s.",
        [
            (
                "histogram_quantile(0.95, sum by (le) "
                f"(rate(tierd_time_to_first_token_seconds_bucket{{{MODEL}}}{WINDOW})))",
                "p95",
            )
        ],
        unit="s",
        kind="stat",
        bounds=(2, 5),
    ),
    Panel(
        "Waiting",
        "Requests in all queues. Beyond queue.capacity clients get 429.",
        [(f"sum(tierd_requests_waiting{{{MODEL}}})", "waiting")],
        kind="stat",
        bounds=(8, 48),
    ),
    Panel(
        "Failed requests",
        "Share that ended by no wish of their clients': faults, full queues, a server that ends.",
        [(f"max(model:tierd_requests_failed:ratio_rate5m{{{MODEL}}})", "failed")],
        unit="percentunit",
        kind="stat",
        bounds=(0.01, 0.05),
    ),
    Panel(
        "Passes",
        "Chunks a second that were meant for the GPU and ran on the CPU. None while all goes well.",
        [(f"sum(rate(tierd_gpu_cpu_passes_total{{{MODEL}}}{WINDOW}))", "passes")],
        kind="stat",
        bounds=(0.001, 10),
    ),
    Panel(
        "Switching",
        "Share of time in which the device works for nobody, as models change places. See Switches.",
        [(f"max(instance:tierd_switching:ratio_rate10m{{{INSTANCE}}})", "switching")],
        unit="percentunit",
        kind="stat",
        bounds=(0.1, 0.25),
    ),
]

ALERTS = [
    Panel(
        "Alerts that fire",
        "deploy/prometheus/tierd.rules.yml says what each means; its description what to do.",
        [(f'ALERTS{{{INSTANCE},alertstate="firing"}}', "{{alertname}}")],
        kind="table",
    ),
]

TRAFFIC = [
    Panel(
        "Requests that ended",
        "By outcome. refused: the clients' fault; queue_full, queue_timeout: too little room; failed: ours.",
        [(rate("tierd_requests_total", "outcome"), "{{outcome}}")],
        unit="reqps",
        stacked=True,
    ),
    Panel(
        "Requests in the house",
        "running have a place, waiting have none yet; preempted gave up their pages for others, paused have "
        "clients that do not read on.",
        [(f"sum(tierd_requests_{state}{{{MODEL}}})", state) for state in ("running", "waiting", "preempted")]
        + [(f"sum(tierd_streams_paused{{{MODEL}}})", "paused")],
    ),
    Panel(
        "Tokens",
        "fed is work, cached was spared by K/V that is kept, generated is what clients get.",
        [
            (f"sum(rate(tierd_{counter}_tokens_total{{{MODEL}}}{WINDOW}))", called)
            for counter, called in (("prompt", "fed"), ("cached", "cached"), ("generated", "generated"))
        ],
        unit="short",
    ),
    Panel(
        "Generated tokens by model",
        "Tokens a second of each model.",
        [(rate("tierd_generated_tokens_total"), "{{model}}")],
        stacked=True,
    ),
    Panel(
        "Queue, share of its capacity",
        "Above 80 % an alert fires; at 100 % the last in the order is turned away with 429.",
        [
            (
                f"tierd_requests_waiting{{{MODEL}}} / on (job, instance) group_left () "
                f"(tierd_queue_capacity{{{INSTANCE}}} > 0)",
                "{{model}}",
            )
        ],
        unit="percentunit",
        bounds=(0.5, 0.8),
        most=1,
    ),
    Panel(
        "Time in the queue",
        "From submission to the first rows of a step. Long while steps are short: too few streams.",
        quantiles("tierd_queue_wait_seconds"),
        unit="s",
    ),
]

LATENCY = [
    Panel(
        "Time to first token",
        "Queue, a switch if the model was away, and the prompt. The objective is 5 s.",
        quantiles("tierd_time_to_first_token_seconds"),
        unit="s",
        bounds=(2, 5),
    ),
    Panel(
        "Time to first token, all requests",
        "How many took how long. Two bands: prompts that were cached, or a model that was away.",
        [
            (
                f"sum by (le) (increase(tierd_time_to_first_token_seconds_bucket{{{MODEL}}}{WINDOW}))",
                "{{le}}",
            )
        ],
        unit="s",
        kind="heatmap",
    ),
    Panel(
        "Time to first token late",
        "Share above 5 s. 5 % is the objective; at 72 % in 5 minutes and in an hour somebody is called.",
        [
            (f"model:tierd_first_token_late:ratio_rate5m{{{MODEL}}}", "{{model}} 5 min"),
            (f"model:tierd_first_token_late:ratio_rate1h{{{MODEL}}}", "{{model}} 1 h"),
        ],
        unit="percentunit",
        bounds=(0.05, 0.72),
        most=1,
    ),
    Panel(
        "Between tokens",
        "What a reader sees. Peaks: prompts of others in the same steps; lower engine.gap_ms.",
        quantiles("tierd_inter_token_seconds"),
        unit="s",
    ),
    Panel(
        "Prefill",
        "From a request's first rows to its first token: the prompt alone, without the queue.",
        quantiles("tierd_prefill_seconds"),
        unit="s",
    ),
    Panel(
        "Decode",
        "From a request's first token to its last one.",
        quantiles("tierd_decode_seconds"),
        unit="s",
    ),
    Panel(
        "Whole requests",
        "From submission to the end, streams that clients cancelled included.",
        quantiles("tierd_request_duration_seconds"),
        unit="s",
    ),
    Panel(
        "Steps",
        "One pass over a model's weights, and its 95th of 100.",
        [
            (mean("tierd_step_duration_seconds"), "{{model}} mean"),
            (quantile("tierd_step_duration_seconds", 0.95), "{{model}} p95"),
        ],
        unit="s",
    ),
    Panel(
        "Rows of a step",
        "Streams and prompt tokens that share a pass. Near 1 under load: steps wait for one another.",
        [(mean("tierd_step_rows"), "{{model}}")],
    ),
]

KV = [
    Panel(
        "Pages",
        "used by streams, cached for later prompts, free. On a device a page is a region.",
        [(f"sum(tierd_kv_pages_{state}{{{MODEL}}})", state) for state in ("used", "cached", "free")],
        stacked=True,
    ),
    Panel(
        "Pages in use, share of all",
        "At 100 % streams are preempted. Raise kv.memory_mb, or choose a smaller kv_dtype.",
        [
            (
                f"tierd_kv_pages_used{{{MODEL}}} / (tierd_kv_pages{{{MODEL}}} > 0)",
                "{{model}}",
            )
        ],
        unit="percentunit",
        bounds=(0.8, 0.95),
        most=1,
    ),
    Panel(
        "Prefix cache hits",
        "Share of prompt tokens that need not be fed. Low where conversations go on: too little room.",
        [(f"model:tierd_prefix_cache_hits:ratio_rate5m{{{MODEL}}}", "{{model}}")],
        unit="percentunit",
        most=1,
    ),
    Panel(
        "Bank",
        "Rows of K/V outside of pages and regions. At its limit some are dropped: kv.bank_mb, state.dir.",
        [(f"sum by (kind) (tierd_kv_bank_bytes{{{INSTANCE}}})", "{{kind}}")],
        unit="bytes",
    ),
    Panel(
        "Fed again",
        "Tokens a second whose K/V was lost or had no room. Much of it: raise kv.bank_mb.",
        [(rate("tierd_kv_reprefilled_tokens_total"), "{{model}}")],
    ),
    Panel(
        "Preempted, dropped, damaged",
        "Streams that made room for others, conversations that the bank dropped, files that were no good.",
        [
            (rate("tierd_preemptions_total", "rows"), "preempted, {{rows}}"),
            (f"sum(rate(tierd_kv_bank_dropped_total{{{MODEL}}}{WINDOW}))", "dropped"),
            (f"sum(rate(tierd_kv_bank_damaged_total{{{MODEL}}}{WINDOW}))", "damaged"),
        ],
    ),
]

TIER = [
    Panel(
        "Models on the GPU",
        "Who is there. Models that do not fit together take turns.",
        [(gauge("tierd_model_on_device"), "{{model}}")],
        kind="state-timeline",
        words={"0": ("away", "text"), "1": ("on the GPU", "green")},
    ),
    Panel(
        "GPU memory",
        "What models take of what they may: gpu.vram_limit_mb, or what the device reports.",
        [(f"sum by (kind) (tierd_gpu_memory_bytes{{{INSTANCE}}})", "{{kind}}")],
        unit="bytes",
    ),
    Panel(
        "GPU works",
        "Lost: streams go on by the CPU meanwhile, and it is tried again. tierd ctl tier says why.",
        [(f"min by (instance) (tierd_gpu_available{{{INSTANCE}}})", "{{instance}}")],
        kind="state-timeline",
        words={"0": ("none, or lost", "red"), "1": ("works", "green")},
    ),
    Panel(
        "Regions",
        "K/V of streams on the GPU. None free or parked while streams wait: raise regions, or lower context.",
        [(gauge("tierd_gpu_regions", "state"), "{{state}}")],
        stacked=True,
    ),
    Panel(
        "Claims",
        "Conversations whose rows stayed in their region: adopted and forked ones were worth it, "
        "those that died had to make room.",
        [(rate("tierd_gpu_claims_total", "event"), "{{event}}")],
    ),
    Panel(
        "Loads and faults",
        "Models that were loaded or could not be, and times the device was given up, so far.",
        [
            (f"sum by (outcome) (tierd_model_loads_total{{{MODEL}}})", "loads, {{outcome}}"),
            (f"sum(tierd_gpu_faults_total{{{INSTANCE}}})", "faults"),
        ],
    ),
]

SWITCHES = [
    Panel(
        "Switches a minute",
        "waiting: streams asked for a model that was away. admin: somebody brought it.",
        [(f"60 * {rate('tierd_switches_total', 'reason, outcome')}", "{{reason}}, {{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Phases of a switch",
        "Mean time of each. hydrate and rehome grow with live K/V, rearm with weights.",
        [
            (
                f"sum by (phase) (rate(tierd_switch_seconds_sum{{{INSTANCE}}}{WINDOW})) "
                f"/ (sum by (phase) (rate(tierd_switch_seconds_count{{{INSTANCE}}}{WINDOW})) > 0)",
                "{{phase}}",
            )
        ],
        unit="s",
        stacked=True,
    ),
    Panel(
        "Time spent on switches",
        "Above 25 % an alert fires. Raise switch.min_hold_s, or let models share the GPU: smaller contexts.",
        [(f"instance:tierd_switching:ratio_rate10m{{{INSTANCE}}}", "{{instance}}")],
        unit="percentunit",
        bounds=(0.1, 0.25),
        most=1,
    ),
]

PASSES = [
    Panel(
        "Passes by reason",
        "Chunks a second that ran on the CPU instead. unhomed, paged: raise regions; cap: longer ones; "
        "away: see switch.resume. tierd ctl passes has the words.",
        [(rate("tierd_gpu_cpu_passes_total", "reason"), "{{reason}}")],
        stacked=True,
    ),
    Panel(
        "Passes by model",
        "Chunks a second of each model that ran on the CPU instead.",
        [(rate("tierd_gpu_cpu_passes_total"), "{{model}}")],
        stacked=True,
    ),
    Panel(
        "Rows read back",
        "No passes: logits that the GPU could not draw from, hidden states for embeddings, and rows "
        "that were computed for nobody.",
        [
            (f"sum(rate(tierd_gpu_logit_rows_read_total{{{MODEL}}}{WINDOW}))", "logits"),
            (f"sum(rate(tierd_gpu_hidden_rows_read_total{{{MODEL}}}{WINDOW}))", "hidden states"),
            (f"sum(rate(tierd_rows_discarded_total{{{MODEL}}}{WINDOW}))", "discarded"),
        ],
    ),
]

PROCESS = [
    Panel(
        "Memory",
        "Resident memory of the process. It should be flat once all models have been used.",
        [(f"process_resident_memory_bytes{{{INSTANCE}}}", "{{instance}}")],
        unit="bytes",
    ),
    Panel(
        "Processor",
        "Cores that the process keeps busy; engine.threads says how many it may.",
        [(f"rate(process_cpu_seconds_total{{{INSTANCE}}}{WINDOW})", "{{instance}}")],
    ),
    Panel(
        "Descriptors and version",
        "Open files and connections, and which tierd it is.",
        [
            (f"process_open_fds{{{INSTANCE}}}", "{{instance}} open"),
            (f"tierd_build_info{{{INSTANCE}}}", "{{instance}} tierd {{version}}"),
        ],
    ),
]

ROWS: Mapping[str, Sequence[Panel]] = {
    "At a glance": GLANCE,
    "Alerts": ALERTS,
    "Traffic": TRAFFIC,
    "Latency": LATENCY,
    "K/V": KV,
    "Tier": TIER,
    "Switches": SWITCHES,
    "Passes": PASSES,
    "Process": PROCESS,
}
