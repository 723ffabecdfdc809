from __future__ import annotations

from collections.abc import Iterable

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed_plain

from tierd.http.exposition import OPEN_METRICS, PLAIN, Exposition, accepted
from tierd.metrics import NO_MODEL, Metrics

HOSTILE = 'a "quoted"\\n\\ \n name,{le="1"} 5 # ü'


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    metrics = Metrics('1.0"')
    for model in ("plain", HOSTILE):
        metrics.enter(model, device=True)
        for seconds in (0.0001, 0.3, 1e9):
            metrics.time_to_first_token.labels(model).observe(seconds)
        metrics.prompt_tokens.labels(model).inc(2**60)
        metrics.running.labels(model).set(float("nan"))
    return metrics


def values(families: Iterable[Metric]) -> list[tuple[str, str, str, list[tuple[str, str, str]]]]:
    """Return what families say, without what the process takes, in one order."""
    return sorted(
        (
            family.name,
            family.type,
            family.documentation,
            sorted(
                (one.name, str(sorted(one.labels.items())), f"{one.value:.17g}") for one in family.samples
            ),
        )
        for family in families
        if family.name.startswith("tierd_")
    )


def test_the_text_says_what_the_client_library_would_have_said(metrics: Metrics) -> None:
    expected = values(parsed_plain(generate_latest(metrics.registry).decode()))
    exposition = Exposition(metrics.registry)
    for _ in range(2):  # the second time from what was kept
        text = "".join(exposition.parts(PLAIN))
        assert values(parsed_plain(text)) == expected
    read = [sample for family in parsed_plain(text) for sample in family.samples]
    assert {sample.labels.get("model") for sample in read} == {None, NO_MODEL, "plain", HOSTILE}


def test_open_metrics_can_be_read_and_says_the_same(metrics: Metrics) -> None:
    text = "".join(Exposition(metrics.registry).parts(OPEN_METRICS))
    assert text.endswith("\n# EOF\n")
    plain = "".join(Exposition(metrics.registry).parts(PLAIN))
    assert values(parsed_openmetrics(text)) == values(parsed_plain(plain))


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", PLAIN),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", OPEN_METRICS),
        ("text/plain, application/openmetrics-text ; version=0.0.1", OPEN_METRICS),
        ("application/openmetrics-text-but-not", PLAIN),
    ],
)
def test_who_asks_for_open_metrics_gets_it(accept: str, form: object) -> None:
    assert accepted(accept) is form
