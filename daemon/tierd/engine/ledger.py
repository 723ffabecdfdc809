"""Keeps the times of live requests; feeds the metrics and writes one log line for each request's end."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace

from prometheus_client import Counter as Metric

from tierd.backends.protocol import Result
from tierd.core import FailedEvent, Request, Sequence, TerminalEvent
from tierd.engine.snapshot import Snapshot
from tierd.engine.spans import spans_of
from tierd.engine.timeline import Timeline
from tierd.errors import (
    BusyError,
    QueueFullError,
    RequestError,
    SlowReaderError,
    TierdError,
    UnavailableError,
)
from tierd.metrics import NO_MODEL, Metrics
from tierd.service.logs import line, told
from tierd.service.trace_context import trace_id
from tierd.service.traces import Traces
from tierd.slot import Slot, Step

log = logging.getLogger(__name__)


# Weight of the latest request in the running mean of how long requests run.
LATEST = 0.125


class Ledger:
    """What is measured and logged about requests and steps. Never says a word of their text."""

    def __init__(
        self, metrics: Metrics, configured: Collection[str] = (), traces: Traces | None = None
    ) -> None:
        """configured: models that the settings name. traces: take the spans of requests."""
        self._metrics = metrics
        self._traces = traces or Traces()
        self._configured = frozenset(configured)
        self._timelines: dict[str, Timeline] = {}
        self._service_s: dict[str, float] = {}  # by model
        self._preemptions: dict[str, Mapping[str, int]] = {}  # by model, as counted
        self._claims: dict[str, Mapping[str, int]] = {}  # by model, as counted

    def service_s(self, model: str) -> float:
        """Return how long the model's requests run from their first rows to their end; 0 before any has."""
        return self._service_s.get(model, 0.0)

    def enter(self, model: str, *, device: bool) -> None:
        """Note a model that has been loaded. device: it is meant for a device."""
        self._metrics.enter(model, device=device)

    def loaded(self, model: str, *, failed: bool) -> None:
        """Note how a load ended."""
        if failed and model not in self._configured:  # its name says nothing, and there is no end of names
            model = NO_MODEL
        self._metrics.loads.labels(model, "failed" if failed else "done").inc()

    def refused(self, request: Request, submitted: float, error: RequestError, *, known: bool) -> None:
        """Note a request that was not taken in. known: its model is one of those loaded."""
        if known:
            self._metrics.requests.labels(request.model, _outcome(error)).inc()
        self._note(request, None, Timeline(submitted), time.monotonic(), _outcome(error), error)

    def opened(self, sequence: Sequence) -> None:
        """Note a request that has come in."""
        self._timelines[sequence.request.id] = Timeline(sequence.submitted)

    def scheduled(self, slot: Slot, step: Step) -> list[Sequence]:
        """Note a step on its way to the executor. Returns whose first rows it holds."""
        metrics, model, now = self._metrics, slot.id, time.monotonic()
        started = []
        for sequence in (*step.sequences, *(guest.sequence for guest in step.guests)):
            timeline = self._timelines.get(sequence.request.id)
            if timeline is None:  # a guest that has left
                continue
            if timeline.started is None:
                timeline.started = now
                started.append(sequence)
                metrics.reprefilled.labels(model).inc(sequence.refed)
                metrics.queue_wait.labels(model).observe(now - timeline.submitted)
                metrics.cached_tokens.labels(model).inc(sequence.cached)
                if slot.home.keeps and sequence.request.shares:
                    metrics.prefix_queries.labels(model).inc(len(sequence.request.prompt))
                    metrics.prefix_hits.labels(model).inc(sequence.cached)
        return started

    def paused(self, sequence: Sequence) -> None:
        """Note that a stream waits for its client."""
        self._metrics.pauses.labels(sequence.request.model).inc()

    def stepped(
        self, slot: Slot, step: Step, tokens: Ordered[int | None], seconds: float, result: Result
    ) -> None:
        """Note a step that is done and about to be committed, and the tokens that came of it."""
        metrics, model, now = self._metrics, slot.id, time.monotonic()
        first, between = metrics.time_to_first_token.labels(model), metrics.inter_token.labels(model)
        prefill = metrics.prefill.labels(model)
        fed = again = sampled = discarded = 0
        for sequence, chunk, token in zip(step.sequences, step.chunks, tokens, strict=True):
            discarded += chunk.draws and token is None
            timeline = self._timelines.get(sequence.request.id)
            if timeline is None:  # it has left meanwhile
                continue
            if sequence not in step.void:
                again += timeline.feed(chunk.start, chunk.end - (token is None and chunk.draws))
            fed += max(0, min(chunk.end, len(sequence.request.prompt)) - chunk.start)
            if token is None:
                continue
            sampled += 1
            if timeline.last_token is None:
                timeline.first_token = now
                first.observe(now - timeline.submitted)
                assert timeline.started is not None
                prefill.observe(now - timeline.started)
            else:
                between.observe(now - timeline.last_token)
            timeline.last_token = now
        for guest in step.guests:
            timeline = self._timelines.get(guest.sequence.request.id)
            again += 0 if timeline is None else timeline.feed(guest.chunk.start, guest.chunk.end)
            fed += len(guest.chunk.tokens)
        metrics.prompt_tokens.labels(model).inc(fed)
        metrics.reprefilled.labels(model).inc(again)
        metrics.generated_tokens.labels(model).inc(sampled)
        metrics.step_duration.labels(model).observe(seconds)
        metrics.step_rows.labels(model).observe(step.batch.rows)
        metrics.rows_discarded.labels(model).inc(discarded)
        metrics.logit_rows_read.labels(model).inc(result.rows_read)
        metrics.hidden_rows_read.labels(model).inc(result.hidden_read)

    def switched(
        self, incoming: Slot | None, reason: str, seconds: Mapping[str, float], *, failed: bool
    ) -> None:
        """Note a switch that has ended. reason: one of the metric's. seconds: of its phases."""
        model = NO_MODEL if incoming is None else incoming.id
        self._metrics.switches.labels(model, reason, "failed" if failed else "done").inc()
        for phase, count in seconds.items():
            self._metrics.switch_seconds.labels(phase).observe(count)

    def forget(self, model: str) -> None:
        """Forget a model that is not served any more; what was counted stays."""
        self._service_s.pop(model, None)
        self._preemptions.pop(model, None)
        self._claims.pop(model, None)

    def closed(self, sequence: Sequence, event: TerminalEvent) -> TerminalEvent:
        """Note a request's end; return it with what it took."""
        now, request = time.monotonic(), sequence.request
        timeline = self._timelines.pop(request.id)
        error = event.error if isinstance(event, FailedEvent) else None
        outcome = _outcome(event.error) if isinstance(event, FailedEvent) else event.reason.value
        self._metrics.requests.labels(request.model, outcome).inc()
        if not isinstance(error, QueueFullError):  # it has not even waited
            self._metrics.request_duration.labels(request.model).observe(now - timeline.submitted)
            if timeline.started is None:
                self._metrics.queue_wait.labels(request.model).observe(now - timeline.submitted)
        if timeline.started is not None:
            ran = now - timeline.started
            mean = self._service_s.setdefault(request.model, ran)
            self._service_s[request.model] = mean + LATEST * (ran - mean)
        first, last = timeline.first_token, timeline.last_token
        if first is not None and last is not None and last > first:
            self._metrics.decode.labels(request.model).observe(last - first)
        self._note(request, sequence, timeline, now, outcome, error)
        if isinstance(event, FailedEvent):
            return event
        return replace(event, usage=timeline.on(event.usage, now))

    def _note(
        self,
        request: Request,
        sequence: Sequence | None,
        timeline: Timeline,
        now: float,
        outcome: str,
        error: TierdError | None,
    ) -> None:
        """Log a request's end, and record its spans."""
        log.info(
            *line(
                request=request.id,
                model=request.model,
                key=request.key or None,
                trace=trace_id(request.traceparent),
                prompt=len(request.prompt),
                cached=sequence.cached if sequence else 0,
                generated=sequence.generated if sequence else 0,
                queue_ms=_milliseconds(timeline.submitted, timeline.started),
                ttft_ms=_milliseconds(timeline.submitted, timeline.first_token),
                total_ms=_milliseconds(timeline.submitted, now),
                outcome=outcome,
                error=None if error is None else told(error),
            )
        )
        for span in spans_of(request, sequence, timeline, now, outcome, error):
            self._traces.record(span)

    def published(self, snapshot: Snapshot) -> None:
        """Count what the models' homes and queues have counted since."""
        for model, state in snapshot.models.items():
            if state.preemptions:
                _count(self._metrics.preemptions, model, state.preemptions, self._preemptions)
            if state.claims:
                _count(self._metrics.claims, model, state.claims, self._claims)


def _count(
    counter: Metric, model: str, totals: Mapping[str, int], counted: dict[str, Mapping[str, int]]
) -> None:
    """Count by how much totals have grown; they begin anew where a model is put on its device again."""
    before = counted.get(model, {})
    if totals is before:
        return
    if any(totals.get(word, 0) < count for word, count in before.items()):
        before = {}
    for word, total in totals.items():
        counter.labels(model, word).inc(total - before.get(word, 0))
    counted[model] = totals


def _outcome(error: TierdError) -> str:
    """Return the one word, of the few there are, for how a request failed."""
    if isinstance(error, BusyError | SlowReaderError | UnavailableError):
        return str(error.code)
    return "refused" if isinstance(error, RequestError) else "failed"


def _milliseconds(start: float, end: float | None) -> float | str:
    return "-" if end is None else round((end - start) * 1000, 1)
