"""A daemon whose device holds one of its models at a time, as clients see it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import openai
import pytest

from http_daemon import Daemon, daemon
from tiny import write_llama

PATIENCE_S = 60.0
# Of the three models, 8 MiB hold one, as their contexts are what is large of them. All are quick to leave.
SETTINGS = """
[gpu]
allow_software = true
vram_limit_mb = 8
require = "resident"
[switch]
min_hold_s = 0.0
max_wait_s = 0.0
[kv]
memory_mb = 64
[[models]]
id = "one"
path = "one.gguf"
context = 4096
ctx_strict = true
streams = 2
preload = false
[[models]]
id = "two"
path = "two.gguf"
context = 4096
ctx_strict = true
streams = 2
preload = false
[[models]]
context = 4096
ctx_strict = true
streams = 2
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("dance")
    for seed, id in enumerate(("one", "two"), 1):
        write_llama(folder / f"{id}.gguf", context=4096, seed=seed)
    with daemon(folder, context=4096, settings=SETTINGS) as served:
        yield served


@pytest.fixture
def client(served: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as client:
        yield client


def ask(client: openai.OpenAI, model: str, tokens: int) -> str:
    completion = client.completions.create(
        model=model, prompt="the of and", max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
    )
    assert completion.usage is not None
    assert completion.usage.completion_tokens == tokens
    return completion.choices[0].text


def switches(served: Daemon, model: str) -> int:
    """Return how often a model has come to the device."""
    metrics = httpx.get(f"{served.url}/metrics", trust_env=False).text
    found = re.search(
        rf'^tierd_switches_total{{model="{model}",outcome="done",reason="waiting"}} (\d+)',
        metrics,
        re.MULTILINE,
    )
    assert found is not None
    return int(found[1])


def test_two_requests_at_a_time_for_two_models_that_are_away(served: Daemon, client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda model: ask(client, model, 24), ("one", "two")))
    assert switches(served, "one") >= 1
    assert switches(served, "two") >= 1
    assert texts == [ask(client, model, 24) for model in ("one", "two")]
    assert len(set(texts)) == 2


def test_a_stream_stays_open_while_another_model_answers(served: Daemon, client: openai.OpenAI) -> None:
    expected = [ask(client, "two", 24), ask(client, "one", 300)]
    came = {model: switches(served, model) for model in ("one", "two")}
    stream = client.completions.create(
        model="one",
        prompt="the of and",
        max_tokens=300,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    with closing(stream), ThreadPoolExecutor(1) as pool:
        pieces = [next(stream).choices[0].text]
        other = pool.submit(ask, client, "two", 24)
        came_late = 0
        for chunk in stream:
            pieces.append(chunk.choices[0].text)
            came_late += other.done()
        assert [other.result(), "".join(pieces)] == expected
    assert came_late > 0
    assert all(switches(served, model) > before for model, before in came.items())
