"""Write the reference of the metrics, docs/metrics.md, from their table.

Usage: python tools/make_metrics_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tierd.core import PassReason
from tierd.metrics import NO_MODEL, ROWS, SECONDS, Metrics, Row

PLACE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
# Words that core keeps.
REASONS = {("tierd_gpu_cpu_passes_total", "reason"): {reason.value: reason.words for reason in PassReason}}
HEAD = f"""\
# Metrics

Made by `make pages` from `daemon/tierd/metrics.py`.

tierd exports these at `/metrics` of the public listener, in Prometheus' text format or, to who asks for it,
as OpenMetrics. No key is asked for: there is no text, no key and nothing in them that a client could name. A
scrape reads what the engine has published, so it wakes nobody, loads nothing and waits for no step.

- Names are in base units: seconds, bytes, tokens. Counters end in `_total` and begin at 0 when tierd starts.
- `model` is the id of a model; `{NO_MODEL}` stands for none: requests that were refused before a model was
  asked, switches for which no model came, loads of models that the settings do not name. A model that is
  unloaded keeps what was counted and has no gauges.
- Metrics marked *GPU* are there for models alone that are meant for a GPU.
- Upper bounds of buckets, in seconds: {", ".join(f"{bound:g}" for bound in SECONDS)}; in rows:
  {", ".join(map(str, ROWS))}.

Rules and alerts are in [deploy/prometheus](../deploy/prometheus/README.md), a dashboard in
[deploy/grafana](../deploy/grafana/README.md).
"""
PROCESS = """
## The process

`process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_cpu_seconds_total`,
`process_open_fds`, `process_max_fds` and `process_start_time_seconds` are what Prometheus' client library
tells of any program.
"""


def page() -> str:
    """Return the reference as Markdown."""
    return HEAD + "".join(parts(Metrics("").table)) + PROCESS


def parts(table: list[Row]) -> Iterator[str]:
    """Yield a table of metrics for each part, and one of words for each label of its metrics."""
    for part, rows in groupby(table, key=lambda row: row.part):
        own = list(rows)
        yield f"\n## {part}\n\n| metric | kind | labels | what |\n|---|---|---|---|\n"
        for row in own:
            labels = ", ".join(f"`{label}`" for label in row.labels)
            marks = " *GPU.*" if row.device else ""
            yield f"| `{row.name}` | {row.kind} | {labels} | {row.text}{marks} |\n"
        for row in own:
            for label, words in row.labels.items():
                known = words or REASONS.get((row.name, label))
                if known:
                    yield f"\n`{label}` of `{row.name}`:\n\n| value | meaning |\n|---|---|\n"
                    yield from (f"| `{word}` | {meaning} |\n" for word, meaning in known.items())


if __name__ == "__main__":
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_text(page())
