"""What schemathesis makes of /openapi.json, sent to a live server.

Every answer has a status, a media type and a shape that are described, nothing that the schemas forbid is
taken, and nothing is the server's fault. What they allow may still be refused: a model that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.engine import from_schema
from schemathesis.engine.events import EngineFinished, FatalError, NonFatalError

from described import EVENT_STREAM, Described
from live import Live
from tierd.http.openapi.document import document

SOME, MANY = 5, 100
DESCRIBED = Described(json.loads(document()))
ALLOWED, FORBIDDEN = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def schema(live: Live) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(DESCRIBED.document)
    schema.config.update(base_url=live.url)
    schema.config.seed = 1
    schema.config.checks.positive_data_acceptance.enabled = False
    load_all_checks()
    return schema


def cases() -> Iterator[tuple[str, str, schemathesis.GenerationMode]]:
    """Yield routes with what is to be sent there; where all is allowed, nothing else can be."""
    for path, methods in DESCRIBED.paths.items():
        for method, operation in methods.items():
            yield path, method, ALLOWED
            query = any(one["in"] == "query" for one in operation.get("parameters", []))
            if query or "requestBody" in operation:
                yield path, method, FORBIDDEN


def check(case: schemathesis.Case) -> None:
    response = case.call_and_validate(excluded_checks=[CHECKS.get_one("positive_data_acceptance")])
    assert "Traceback" not in response.text
    media_type = response.headers["content-type"][0].partition(";")[0]
    if media_type == EVENT_STREAM:
        DESCRIBED.check_stream(case.path, response.text, method=case.method.lower())


@pytest.mark.parametrize(("path", "method", "mode"), list(cases()))
def test_some_requests_to_each_route(
    schema: schemathesis.BaseSchema, path: str, method: str, mode: schemathesis.GenerationMode
) -> None:
    operation = schema[path][method.upper()]

    # Bodies have many fields, and how long it takes to make one is no fault.
    @given(operation.as_strategy(mode))
    @settings(max_examples=SOME, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
    def run(case: schemathesis.Case) -> None:
        check(case)

    run()


@pytest.mark.long
def test_each_bound_of_each_field_and_many_requests(schema: schemathesis.BaseSchema) -> None:
    """Its own runner also asks for what other answers have told of."""
    schema.config.generation.update(max_examples=MANY)
    faults = []
    for event in from_schema(schema).execute():
        if isinstance(event, EngineFinished):
            faults += event.failures
        elif isinstance(event, NonFatalError | FatalError):
            faults.append(event)
    assert not faults
