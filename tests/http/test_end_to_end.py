"""From bytes to bytes, over the host backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from live import Live, serve
from tierd.backends.host import HostBackend
from tierd.settings import ModelSettings


@contextmanager
def host_server(model: ModelSettings) -> Iterator[Live]:
    backend = HostBackend(2)
    try:
        with serve([model], backend=backend) as live:
            yield live
    finally:
        backend.close()


def test_a_tiny_model_answers(tiny_model: ModelSettings) -> None:
    with host_server(tiny_model) as live, live.client() as client:
        arguments = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "the of and"}],
            "max_tokens": 16,
            "seed": 5,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**arguments)
        chunks = list(client.chat.completions.create(stream=True, **arguments))
    assert whole.usage.completion_tokens == 16
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    )


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Live]:
    model = ModelSettings(id="smollm2", path=smollm2_path, default=True, context=1024, streams=1)
    with host_server(model) as live:
        yield live


def test_a_real_model_knows_its_capitals(smollm2: Live) -> None:
    with smollm2.client() as client:
        completion = client.completions.create(
            model="smollm2", prompt="The capital of France is", max_tokens=3, temperature=0
        )
    assert completion.choices[0].text.startswith(" Paris")


def test_a_real_model_finds_the_likely_text_of_several(smollm2: Live) -> None:
    """As those ask who have models choose an answer: texts with their answers, scored behind the question."""
    question = "The capital of France is"
    with smollm2.client() as client:
        scored = client.completions.create(
            model="smollm2",
            prompt=[question + answer for answer in (" a big banana.", " Paris.", " London.")],
            max_tokens=0,
            echo=True,
            logprobs=1,
        )
    likely = []
    for choice in scored.choices:
        told = choice.logprobs
        assert told is not None
        assert "".join(told.tokens or []) == choice.text
        behind = [offset >= len(question) for offset in told.text_offset or []]
        of_answer = [logprob for logprob, mine in zip(told.token_logprobs or [], behind, strict=True) if mine]
        likely.append(sum(of_answer) / len(of_answer))
    assert max(likely) == likely[1]


def test_a_real_model_goes_on_from_what_it_has_begun_with(smollm2: Live) -> None:
    asked = {"role": "user", "content": "What is the capital of France?"}
    begun = {"role": "assistant", "content": "The capital of France is"}
    with smollm2.client() as client:
        answer = client.chat.completions.create(
            model="smollm2", messages=[asked, begun], max_tokens=3, temperature=0
        )
    assert answer.choices[0].message.content.startswith(" Paris")


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
            "required": ["place", "unit"],
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_real_model_calls_what_it_must(smollm2: Live, stream: bool) -> None:
    """Its template knows no tools, so it is told of them in words, and a grammar holds it to them."""
    arguments = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 60,
    }
    with smollm2.client() as client:
        if stream:
            with client.chat.completions.stream(**arguments) as events:
                answer = events.get_final_completion()
        else:
            answer = client.chat.completions.create(**arguments)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content in (None, "")
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    given = json.loads(call.function.arguments)
    assert given.keys() == {"place", "unit"}
    assert given["place"] == "Paris"
    assert given["unit"] in ("C", "F")
