"""Requests to a live server as spans, and the spans at a collector that listens on a real port."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from live import Live, serve
from tierd.errors import SettingsError
from tierd.service.traces import OpenTelemetryTraces
from tierd.settings import LimitsSettings, ModelSettings

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
TEXT = {
    "prompt": [1, 2, 3],
    "max_tokens": 4,
    "ignore_eos": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
}


@dataclass
class Collector:
    """What spans came, and what all of them are said to be of."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, object] = field(default_factory=dict)

    def named(self, name: str) -> Span:
        (span,) = (span for span in self.spans if span.name == name)
        return span


def plain(pairs: Iterator[KeyValue]) -> dict[str, object]:
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                collector.resource = plain(group.resource.attributes)
                for scoped in group.scope_spans:
                    collector.spans += scoped.spans
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def traced(model: ModelSettings, **sections: object) -> Iterator[tuple[Live, Collector]]:
    """A server whose spans are at the collector once it has ended."""
    with (
        collecting() as collector,
        closing(OpenTelemetryTraces(collector.url, "1.2")) as spans,
        serve([model], parts={"traces": spans}, **sections) as live,
    ):
        yield live, collector


def test_a_request_is_a_span_of_its_trace_with_its_way_below(tiny_model: ModelSettings) -> None:
    with traced(tiny_model) as (live, collector):
        answer = live.http.post("/v1/completions", json=TEXT, headers=SAMPLED)
        assert answer.status_code == 200
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert (collector.resource["service.name"], collector.resource["service.version"]) == ("tierd", "1.2")

    served = collector.named("POST /v1/completions")
    assert answer.headers["traceparent"] == f"00-{TRACE}-{served.span_id.hex()}-01"
    assert (served.parent_span_id.hex(), served.kind) == (PARENT, Span.SPAN_KIND_SERVER)
    assert plain(served.attributes) == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
    }

    whole = collector.named("text_completion tiny")
    assert (whole.parent_span_id, whole.kind) == (served.span_id, Span.SPAN_KIND_INTERNAL)
    assert plain(whole.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "tierd",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ["length"],
    }

    parts = [collector.named(name) for name in ("queue", "prefill", "decode")]
    assert all(part.parent_span_id == whole.span_id for part in parts)
    edges = [(part.start_time_unix_nano, part.end_time_unix_nano) for part in parts]
    assert edges[0][0] == whole.start_time_unix_nano
    assert edges[0][1] == edges[1][0]
    assert edges[1][1] == edges[2][0]
    assert edges[2][1] == whole.end_time_unix_nano
    assert served.start_time_unix_nano <= whole.start_time_unix_nano <= whole.end_time_unix_nano
    assert len(collector.spans) == 5


def test_without_a_header_it_gets_a_trace_of_its_own_but_for_who_watches(tiny_model: ModelSettings) -> None:
    with traced(tiny_model) as (live, collector):
        answer = live.http.post("/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 200
        asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        assert live.http.post("/v1/chat/completions", json=asked).status_code == 200
        assert live.get("/metrics").status_code == 200
        assert "traceparent" not in live.get("/health").headers
    _, trace, span, flags = answer.headers["traceparent"].split("-")
    served = collector.named("POST /v1/embeddings")
    assert (served.trace_id.hex(), served.span_id.hex(), flags) == (trace, span, "01")
    assert served.parent_span_id == b""
    assert collector.named("embeddings tiny").trace_id == served.trace_id
    chat = collector.named("POST /v1/chat/completions")
    assert collector.named("chat tiny").parent_span_id == chat.span_id
    assert chat.trace_id != served.trace_id
    assert not [span for span in collector.spans if span.name.startswith("GET")]


def test_what_goes_wrong_is_told_by_its_class(tiny_model: ModelSettings) -> None:
    with traced(tiny_model, limits=LimitsSettings(max_prompt_tokens=4)) as (live, collector):
        assert live.http.get("/v1/models/none", headers=SAMPLED).status_code == 404
        live.engine.drain().result(5)
        assert live.http.post("/v1/completions", json=TEXT, headers=SAMPLED).status_code == 503
    lost, refused = collector.named("GET"), collector.named("POST /v1/completions")
    assert plain(lost.attributes)["http.response.status_code"] == 404
    assert "error.type" not in plain(lost.attributes)
    assert plain(refused.attributes)["error.type"] == "503"
    assert refused.status.code == 2


def test_a_trace_that_is_not_recorded_is_handed_on_alone(tiny_model: ModelSettings) -> None:
    with traced(tiny_model) as (live, collector):
        header = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        answer = live.http.post("/v1/completions", json=TEXT, headers=header)
        assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
        assert answer.headers["traceparent"].endswith("-00")
    assert collector.spans == []


def test_without_opentelemetry_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(SettingsError, match=r"pip install 'tierd\[traces\]'"):
        OpenTelemetryTraces("http://127.0.0.1:1/v1/traces", "1")
