"""A request's way through the engine as spans: the whole of it, and below that the queue, prefill and decode.

Attributes are those of the semantic conventions for generative AI: numbers and names, nothing of any text.
"""

from __future__ import annotations

from tierd.core import Request, Sequence
from tierd.engine.timeline import Timeline
from tierd.errors import TierdError
from tierd.service.trace_context import sampled_parent
from tierd.service.traces import Span


def spans_of(
    request: Request,
    sequence: Sequence | None,
    timeline: Timeline,
    now: float,
    outcome: str,
    error: TierdError | None,
) -> list[Span]:
    """Return the spans of a request that has ended, none where its trace is not recorded.

    sequence: None where it was not taken in. now: monotonic seconds.
    """
    above = sampled_parent(request.traceparent)
    if above is None:
        return []
    trace, parent = above
    whole = Span(
        name=f"{request.operation} {request.model}",
        trace=trace,
        parent=parent,
        start=timeline.submitted,
        end=now,
        error="" if error is None else type(error).__name__,
        attributes={
            "gen_ai.operation.name": request.operation,
            "gen_ai.provider.name": "tierd",
            "gen_ai.request.model": request.model,
            "gen_ai.response.model": request.model,
            "gen_ai.response.id": request.id,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.sampling.temperature,
            "gen_ai.request.top_p": request.sampling.top_p,
            "gen_ai.request.top_k": request.sampling.top_k,
            "gen_ai.usage.input_tokens": len(request.prompt),
            "gen_ai.usage.cache_read.input_tokens": sequence.cached if sequence else 0,
            "gen_ai.usage.output_tokens": sequence.generated if sequence else 0,
            "gen_ai.response.finish_reasons": (outcome,),
        },
    )
    times = [timeline.submitted, timeline.started, timeline.first_token]
    names = ("queue", "prefill", "decode")
    begun = [time for time in times if time is not None]
    parts = [
        Span(name=name, trace=trace, parent=whole.span, start=start, end=end)
        for name, start, end in zip(names, begun, [*begun[1:], now], strict=False)
    ]
    return [whole, *parts]
