"""POST /v1/completions, by the official client, raw, and against a plain forward."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import Gated, Live, serve, wait_until
from reference.forward import forward
from reference.oracle import log_softmax
from tierd.backends.host import HostBackend
from tierd.backends.null import NullBackend
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Batch
from tierd.http.completions.echo import spell, token_starts
from tierd.settings import KVSettings, ModelSettings, QueueSettings
from tiny import write_gemma3, write_llama

PROMPTS = ["the of", "and the", "of the and"]
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "extra_body": {"ignore_eos": True}}


def answer(live: Live, **body: object) -> dict[str, Any]:
    response = live.post("/v1/completions", {"max_tokens": 8, "ignore_eos": True} | body)
    assert response.status_code == 200, response.text
    return response.json()


def choices(live: Live, **body: object) -> list[dict[str, Any]]:
    return answer(live, **body)["choices"]


def streamed(live: Live, **body: object) -> list[dict[str, Any]]:
    """Return the choices of a stream, put together, and its last object under "last"."""
    response = live.post("/v1/completions", {"max_tokens": 8, "ignore_eos": True, "stream": True} | body)
    assert response.status_code == 200, response.text
    *frames, done, nothing = response.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    found: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    objects = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert all("timings" not in each for each in objects[:-1])
    assert objects[-1]["timings"]["prompt_n"] >= 0
    for choice in (choice for each in objects for choice in each["choices"]):
        mine = found[choice["index"]]
        assert "finish_reason" not in mine or mine["finish_reason"] is None
        mine.update(index=choice["index"], finish_reason=choice["finish_reason"])
        mine["text"] = mine.get("text", "") + choice["text"]
        mine.setdefault("logprobs", None)
        if choice["logprobs"]:
            before = mine["logprobs"] or {}
            mine["logprobs"] = {
                field: None if values is None else [*before.get(field, []), *values]
                for field, values in choice["logprobs"].items()
            }
    return [found[index] for index in sorted(found)]


# ---- Lists of prompts ----------------------------------------------------------------------------------


def test_a_list_is_answered_prompt_by_prompt_as_each_would_be_alone(live: Live) -> None:
    with live.client() as client:
        together = client.completions.create(prompt=PROMPTS, n=2, seed=5, **ASKED)
        alone = [client.completions.create(prompt=prompt, n=2, seed=5, **ASKED) for prompt in PROMPTS]
        chunks = list(client.completions.create(prompt=PROMPTS, n=2, seed=5, stream=True, **ASKED))
    assert [choice.index for choice in together.choices] == list(range(6))
    texts = [choice.text for choice in together.choices]
    assert texts == [choice.text for each in alone for choice in each.choices]
    assert len(set(texts)) == 6
    pieces: defaultdict[int, str] = defaultdict(str)
    for chunk in chunks:
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert [pieces[index] for index in range(6)] == texts
    assert together.usage is not None
    counts = [each.usage for each in alone if each.usage is not None]
    assert together.usage.prompt_tokens == sum(count.prompt_tokens for count in counts)
    assert together.usage.completion_tokens == sum(count.completion_tokens for count in counts) == 72


def test_without_a_seed_equal_prompts_get_other_answers(live: Live) -> None:
    assert len({choice["text"] for choice in choices(live, prompt=["the of"] * 6)}) > 1


def test_prompts_are_texts_or_ids(live: Live) -> None:
    ids = live.post("/tokenize", {"content": "the of"}).json()["tokens"]
    asked = {"temperature": 0}
    (of_text,) = choices(live, prompt="the of", **asked)
    for prompt in (ids, [ids], ["the of"]):
        assert choices(live, prompt=prompt, **asked) == [of_text]
    both = choices(live, prompt=[ids, "and"], **asked)
    assert both[0] == of_text
    assert [choice["index"] for choice in both] == [0, 1]


def test_more_prompts_than_streams_and_places_in_the_queue_are_answered(tiny_model: ModelSettings) -> None:
    """As many at a time as there are streams: the others are not in the queue, which could refuse them."""
    two = replace(tiny_model, streams=2)
    with serve([two], queue=QueueSettings(capacity=1)) as live:
        prompts = [f"the number {n}" for n in range(20)]
        found = choices(live, prompt=prompts, temperature=0)
        assert found[13]["text"] == choices(live, prompt=prompts[13], temperature=0)[0]["text"]
        assert len(found) == 20
        assert streamed(live, prompt=prompts, temperature=0) == found


def test_who_hangs_up_ends_all_prompts(gated: Gated) -> None:
    def running() -> int:
        state = gated.live.engine.snapshot.models["tiny"]
        return state.running + state.waiting

    connection = gated.live.send("/v1/completions", {"prompt": ["the"] * 40, "stream": True})
    wait_until(lambda: running() == 16)
    connection.close()
    wait_until(lambda: not running())
    assert 'tierd_requests_total{model="tiny",outcome="cancelled"} 16.0' in gated.live.get("/metrics").text


def test_a_failure_ends_all_prompts_with_one_error(gated: Gated) -> None:
    gated.gate.error = ValueError("out of smoke")
    gated.gate.open()
    status, error = gated.live.refusal("/v1/completions", {"prompt": ["a", "b", "c"]})
    assert (status, "out of smoke" in error["message"]) == (500, True)


def test_a_prompt_of_a_list_that_is_too_long_is_named(live: Live) -> None:
    for prompts, named in ((["a", "the of " * 400], "prompt[1]"), ([[1], [1], [1] * 250], "prompt[2]")):
        status, error = live.refusal("/v1/completions", {"prompt": prompts, "max_tokens": 8})
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", named)


def test_every_prompt_obeys_the_format(live: Live) -> None:
    for choice in choices(live, prompt=PROMPTS, guided_choice=["yes", "no"], ignore_eos=False, n=2):
        assert choice["text"] in ("yes", "no")
        assert choice["finish_reason"] == "stop"


def test_usage_and_timings_of_a_list(live: Live) -> None:
    body = {"prompt": PROMPTS, "stream_options": {"include_usage": True}, "n": 2}
    response = live.post("/v1/completions", body | {"stream": True, "max_tokens": 4, "ignore_eos": True})
    *_, last, done, _ = response.text.split("\n\n")
    assert done == "data: [DONE]"
    end = json.loads(last.removeprefix("data: "))
    whole = answer(live, prompt=PROMPTS, n=2, max_tokens=4)
    assert end["choices"] == []
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [end["usage"][name] for name in counts] == [whole["usage"][name] for name in counts]
    assert whole["usage"]["completion_tokens"] == 24
    for told in (end, whole):
        timings, usage = told["timings"], told["usage"]
        assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
        assert timings["predicted_n"] == 24
        assert timings["predicted_ms"] > 0
    assert list(whole)[-2:] == ["usage", "timings"]


# ---- Echo ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"logprobs": 0, "n": 2}], ids=str)
def test_an_echo_is_the_prompt_before_the_answer(live: Live, fields: dict[str, object]) -> None:
    asked = {"prompt": ["the of", "the <|im_start|>é"], "seed": 3} | fields
    plain, echoed = choices(live, **asked), choices(live, echo=True, **asked)
    for bare, choice in zip(plain, echoed, strict=True):
        prompt = asked["prompt"][bare["index"] * 2 // len(plain)]
        assert choice["text"] == prompt + bare["text"]
        assert choice["finish_reason"] == bare["finish_reason"] == "length"
        if bare["logprobs"] is None:
            assert choice["logprobs"] is None
            continue
        ids = live.post("/tokenize", {"content": prompt, "add_special": True}).json()["tokens"]
        for field, values in bare["logprobs"].items():
            behind = choice["logprobs"][field]
            if values is None:
                assert behind is None
                continue
            assert len(behind) == len(ids) + 8
            shift = len(prompt) if field == "text_offset" else None
            assert behind[len(ids) :] == [value + shift if shift else value for value in values]
    assert streamed(live, echo=True, **asked) == echoed


def test_an_echo_alone_scores_a_text(live: Live) -> None:
    (scored,) = choices(live, prompt="the of and", echo=True, max_tokens=0, logprobs=3)
    assert (scored["text"], scored["finish_reason"]) == ("the of and", "length")
    (longer,) = choices(live, prompt="the of and", echo=True, max_tokens=1, logprobs=3)
    for field, values in scored["logprobs"].items():
        assert values == longer["logprobs"][field][:-1]
    assert scored["logprobs"]["token_logprobs"][0] is None
    assert scored["logprobs"]["top_logprobs"][0] is None
    assert all(logprob < 0 for logprob in scored["logprobs"]["token_logprobs"][1:])
    assert "".join(scored["logprobs"]["tokens"]) == "the of and"
    usage = answer(live, prompt="the of and", echo=True, max_tokens=0)["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"] == len(scored["logprobs"]["tokens"])


def test_an_echo_alone_is_streamed_too(live: Live) -> None:
    for fields in ({}, {"logprobs": 1}, {"prompt": [5], "logprobs": 1}, {"prompt": [5]}):
        asked = {"prompt": PROMPTS, "echo": True, "max_tokens": 0} | fields
        assert streamed(live, **asked) == choices(live, **asked)


def test_the_official_client_reads_scores(live: Live) -> None:
    with live.client() as client:
        asked = {"model": "tiny", "prompt": "the of and", "max_tokens": 0, "echo": True, "logprobs": 1}
        (whole,) = client.completions.create(**asked).choices
        chunks = list(client.completions.create(**asked, stream=True))
    assert whole.logprobs is not None
    assert whole.logprobs.token_logprobs is not None
    assert whole.logprobs.token_logprobs[0] is None
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [each for part in parts for each in part.token_logprobs or []] == whole.logprobs.token_logprobs
    assert "".join(chunk.choices[0].text for chunk in chunks) == "the of and"


def test_a_long_prompt_comes_in_parts(live: Live) -> None:
    """So that no frame takes long to write."""
    text = "the of and " * 60
    response = live.post(
        "/v1/completions",
        {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0, "stream": True},
    )
    frames = response.text.split("\n\n")[:-2]
    texts = [json.loads(frame.removeprefix("data: "))["choices"][0]["text"] for frame in frames]
    assert len(texts) > 3
    assert "".join(texts) == text
    assert max(map(len, texts)) < len(text) / 2


def test_the_choices_of_a_prompt_share_its_scores(tiny_model: ModelSettings) -> None:
    """Which are computed once, also where the others have long answered."""
    scored: list[int] = []

    def count(batch: Batch) -> None:
        scored.append(sum(len(chunk.targets) for chunk in batch.chunks))

    asked = {"prompt": ["the of and " * 25, "and"], "n": 3, "echo": True, "logprobs": 1, "seed": 3}
    with serve([tiny_model], backend=NullBackend(before_step=count)) as live:
        whole = choices(live, **asked)
        tokens = [len(choice["logprobs"]["tokens"]) - 8 for choice in whole[::3]]
        assert sum(scored) == sum(tokens) - 2
        assert max(scored) < max(tokens) / 2
        assert streamed(live, **asked) == whole
    for first in (0, 3):
        told = [choice["logprobs"]["token_logprobs"][: tokens[first // 3]] for choice in whole[first:][:3]]
        assert told[0] == told[1] == told[2]
        assert len({choice["text"] for choice in whole[first:][:3]}) == 3


def test_a_prompt_that_fills_the_context_can_be_scored(live: Live) -> None:
    (scored,) = choices(live, prompt=[5] * 256, echo=True, max_tokens=0, logprobs=0)
    assert len(scored["logprobs"]["tokens"]) == 256
    status, error = live.refusal(
        "/v1/completions", {"prompt": [5] * 257, "echo": True, "max_tokens": 0, "logprobs": 0}
    )
    assert (status, error["code"]) == (400, "context_length_exceeded")


def test_what_a_model_begins_texts_with_is_told_and_not_shown(live: Live) -> None:
    asked = {"model": "plain", "echo": True, "max_tokens": 0, "logprobs": 0}
    (scored,) = choices(live, prompt="the", **asked)
    ids = live.post("/tokenize", {"content": "the", "model": "plain", "add_special": True}).json()["tokens"]
    assert scored["text"] == "the"
    assert scored["logprobs"]["tokens"][0] == "<bos>"
    assert scored["logprobs"]["text_offset"][:2] == [0, 0]
    assert choices(live, prompt=ids, **asked) == [scored]
    assert len(scored["logprobs"]["tokens"]) == len(ids)


def test_a_token_that_ends_a_text_counts_among_those_told(live: Live) -> None:
    """So that of what is told of an echo as many are the prompt's as are left without those sampled."""
    end = live.engine.catalogue.resolve().tokenizer.end_ids
    asked = {"prompt": "the of", "echo": True, "logprobs": 1, "ignore_eos": False, "temperature": 0}
    only_end = {"allowed_token_ids": sorted(end), "max_tokens": 4}
    (ended,) = choices(live, **asked | only_end)
    assert (ended["text"], ended["finish_reason"]) == ("the of", "stop")
    (scored,) = choices(live, **asked | {"max_tokens": 0})
    for field, values in ended["logprobs"].items():
        assert values[:-1] == scored["logprobs"][field]
    assert ended["logprobs"]["text_offset"][-1] == len("the of")
    assert streamed(live, **asked | only_end) == [ended]


# ---- Where the tokens of a prompt begin ----------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny", "plain"])
@pytest.mark.parametrize(
    "text", ["the of", " the", "é\U0001f600 the", "<|im_start|>user\nthe<|im_end|>", "<bos>the", "\n\n\t"]
)
def test_tokens_lie_side_by_side_in_the_text(live: Live, model: str, text: str) -> None:
    tokenizer = live.engine.catalogue.resolve(model).tokenizer
    ids = tokenizer.encode(text, add_special=True, parse_special=True)
    assert spell(tokenizer, ids) == text
    starts = token_starts(tokenizer, ids, text)
    assert starts == sorted(starts)
    assert starts[0] == 0
    shown = "".join(text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True))
    assert shown == text
    for token, begin, end in zip(ids, starts, [*starts[1:], len(text)], strict=True):
        raw = tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()
        assert text[begin:end].encode() in (raw, b"") or not raw.isascii()


class Spaced:
    """Spells each id as a word behind a space, the first of which is no part of a text; 9 is a mark."""

    bos_id, adds_bos = 0, True

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in (0, 9) else b" w%d" % token

    def token_text(self, token: int) -> str:
        return {0: "<s>", 9: "<m>"}[token]

    def decode(self, ids: Iterator[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode().removeprefix(" ")


def test_a_space_that_was_put_before_a_text_has_no_place_in_it() -> None:
    tokenizer: Tokenizer = Spaced()  # type: ignore[assignment]
    ids = [0, 1, 2, 9, 3, 4]
    text = "w1 w2<m>w3 w4"
    assert spell(tokenizer, ids) == text
    assert token_starts(tokenizer, ids, text) == [0, 0, 2, 5, 8, 10]


# ---- Of models that compute ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completions")
    return {
        "llama": write_llama(folder / "llama.gguf", context=128),
        "gemma": write_gemma3(folder / "gemma.gguf", context=128),
    }


@pytest.fixture(scope="module")
def host(paths: dict[str, Path]) -> Iterator[Live]:
    models = [
        ModelSettings(id=name, path=path, kv_dtype="f32", default=name == "llama", streams=4)
        for name, path in paths.items()
    ]
    backend = HostBackend(1)
    with serve(models, backend=backend, kv=KVSettings(memory_mb=64)) as live:
        yield live
    backend.close()


@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_scores_equal_a_plain_forwards(model: str, host: Live, paths: dict[str, Path]) -> None:
    prompts = [np.random.default_rng(n).integers(0, 300, 100 - 30 * n).tolist() for n in range(3)]
    found = choices(host, model=model, prompt=prompts, echo=True, max_tokens=0, logprobs=5)
    for prompt, choice in zip(prompts, found, strict=True):
        exact = log_softmax(forward(paths[model], prompt))
        logprobs = choice["logprobs"]
        expected = exact[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(logprobs["token_logprobs"][1:], expected, atol=2e-3, rtol=0)
        best = exact.max(axis=1)[:-1]
        np.testing.assert_allclose(
            [max(top.values()) for top in logprobs["top_logprobs"][1:]], best, atol=2e-3, rtol=0
        )


def test_scores_are_the_same_warm_and_cold_and_among_others(host: Live) -> None:
    ids = np.random.default_rng(9).integers(0, 300, 90).tolist()
    asked = {"echo": True, "logprobs": 5, "temperature": 0}
    (cold,) = choices(host, prompt=ids, **asked)
    choices(host, prompt=ids)  # leaves its rows behind
    (warm,) = choices(host, prompt=ids, **asked)
    among = choices(host, prompt=[ids[:50], ids[3:], ids, ids[:1], ids[20:]], **asked)
    assert warm == cold
    assert among[2] | {"index": 0} == cold
