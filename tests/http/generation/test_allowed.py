"""Answers made of allowed tokens only, from a server that computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from live import Live, serve
from tierd.backends.host import HostBackend
from tierd.settings import ModelSettings
from tiny import write_llama

VOCABULARY = 301
ALLOWED = [7, 31, 32, 40, 57, 64, 83, 290]  # of which each alone is text
PROMPT = {"prompt": [5, 6, 7], "max_tokens": 24, "ignore_eos": True, "logprobs": 2, "seed": 3}
WAYS = (
    {"temperature": 0},
    {"temperature": 1.2, "n": 3},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 1.0, "repeat_penalty": 1.3},
    {"temperature": 0.8, "n": 2, "frequency_penalty": 0.4, "top_p": 0.9},
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = write_llama(tmp_path_factory.mktemp("allowed") / "tiny.gguf", context=256)
    backend = HostBackend(1)
    with serve([ModelSettings(id="tiny", path=path, default=True)], backend=backend) as live:
        yield live
    backend.close()


def choices(live: Live, **fields: object) -> list[dict[str, Any]]:
    response = live.post("/v1/completions", PROMPT | fields)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["choices"]
    return found


@pytest.mark.parametrize("way", WAYS, ids=["greedy", "random", "penalised", "both"])
def test_only_what_is_allowed_comes(host: Live, way: dict[str, object]) -> None:
    """All is as with a bias that leaves others no chance: tokens, draws and the model's own likelihoods."""
    spelled = [host.post("/detokenize", {"tokens": [id]}).json()["content"] for id in ALLOWED]
    found = choices(host, **way, allowed_token_ids=ALLOWED)
    for choice in found:
        tokens = choice["logprobs"]["tokens"]
        assert len(tokens) == 24
        assert set(tokens) <= set(spelled)
    others = {str(id): -100 for id in range(VOCABULARY) if id not in ALLOWED}
    assert found == choices(host, **way, logit_bias=others)
    assert len({choice["text"] for choice in found}) == way.get("n", 1)
    assert found[0]["text"] != choices(host, **way)[0]["text"]


def test_a_stream_of_a_chat_is_held_to_it_as_well(host: Live) -> None:
    (word,) = (host.post("/detokenize", {"tokens": [id]}).json()["content"] for id in [100])
    stream = host.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Say something."}],
        max_tokens=5,
        stream=True,
        extra_body={"allowed_token_ids": [100]},
    )
    assert "".join(part.choices[0].delta.content or "" for part in stream) == word * 5


def test_an_end_comes_only_where_it_is_allowed(host: Live) -> None:
    (end,) = host.post("/tokenize", {"content": "<|im_end|>"}).json()["tokens"]
    (choice,) = choices(host, allowed_token_ids=[end], ignore_eos=False)
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    (choice,) = choices(host, allowed_token_ids=ALLOWED, ignore_eos=False)
    assert choice["finish_reason"] == "length"
