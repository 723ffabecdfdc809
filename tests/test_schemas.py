"""Answers of a real model that must obey JSON schemas: every one that has ended is valid."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from live import Live, serve
from schemas import BY_HAND, Schema, at_random
from tierd.backends.host import HostBackend
from tierd.settings import ModelSettings

STREAMS = 8
ALL = 200


@pytest.fixture(scope="module")
def live(smollm2_path: Path) -> Iterator[Live]:
    backend = HostBackend(0)
    model = ModelSettings(id="smol", path=smollm2_path, default=True, context=1024, streams=STREAMS)
    with serve([model], backend=backend) as served:
        yield served
    backend.close()


def ask(live: Live, schema: Schema, most: int) -> tuple[str, str]:
    """Return an answer and why it has ended."""
    body = {
        "messages": [{"role": "user", "content": "Tell me about a cat, in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        "max_tokens": most,
        "temperature": 0.8,
        "seed": 7,
    }
    response = live.http.post("/v1/chat/completions", json=body, timeout=600)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def check(live: Live, schemas: Mapping[str, Schema], most: int) -> Counter[str]:
    """Ask for an answer to each; return how many ended, and how."""
    with ThreadPoolExecutor(STREAMS) as clients:
        answers = list(clients.map(lambda schema: ask(live, schema, most), schemas.values()))
    faults = {}
    for (name, schema), (text, reason) in zip(schemas.items(), answers, strict=True):
        if reason == "stop":
            validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
            errors = [error.message for error in validator.iter_errors(json.loads(text))]
            if errors or "\ufffd" in text:
                faults[name] = (text, errors)
    assert not faults
    return Counter(reason for _, reason in answers)


def test_a_few(live: Live) -> None:
    names = random.Random(1).sample(sorted(BY_HAND), 16)
    some = {name: BY_HAND[name] for name in names} | {
        f"random {n}": schema for n, schema in enumerate(at_random(8, seed=2))
    }
    ended = check(live, some, 40)
    assert ended["stop"] >= 12


@pytest.mark.long
def test_two_hundred(live: Live, record_property: Callable[[str, object], None]) -> None:
    others = at_random(ALL - len(BY_HAND))
    ended = check(live, BY_HAND | {f"random {n}": schema for n, schema in enumerate(others)}, 200)
    record_property("ended", dict(ended))
    assert ended.total() == ALL
    assert ended["stop"] >= 140
