"""The official client, against a live server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from live import Gated, Live

MESSAGES = [{"role": "user", "content": "Say something."}]


def chat(live: Live, **arguments: object) -> openai.types.chat.ChatCompletion:
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": 0} | arguments
    with live.client() as client:
        return client.chat.completions.create(**settings)


def said(completion: openai.types.chat.ChatCompletion) -> str:
    return completion.choices[0].message.content


def test_chat_is_answered_whole(live: Live) -> None:
    answer = chat(live, extra_body={"ignore_eos": True})
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert len(said(answer)) > 10
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens > len("Say something.") // 4
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


def test_streamed_chat_says_the_same_and_counts(live: Live) -> None:
    whole = chat(live, extra_body={"ignore_eos": True})
    with live.client() as client:
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True, "max_completion_tokens": 24},
            )
        )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(texts) == said(whole)
    assert len([text for text in texts if text]) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "length"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    details = {"prompt_tokens_details": whole.usage.prompt_tokens_details}
    assert usage.model_copy(update=details) == whole.usage
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}


def test_usage_tells_how_much_of_the_prompt_was_cached(live: Live) -> None:
    arguments = {"model": "tiny", "max_tokens": 3, "extra_body": {"ignore_eos": True}}
    prompt = [*range(40, 60), *range(90, 80, -1)]
    with live.client() as client:
        first = client.completions.create(prompt=prompt, **arguments)
        again = client.completions.create(prompt=[*prompt[:25], 7, 8], **arguments)
        *_, last = client.completions.create(
            prompt=prompt, stream=True, stream_options={"include_usage": True}, **arguments
        )
    usages = [first.usage, again.usage, last.usage]
    assert [usage.prompt_tokens for usage in usages] == [30, 27, 30]
    assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [0, 25, 29]


def test_usage_is_streamed_only_when_asked_for(live: Live) -> None:
    with live.client() as client:
        chunks = list(
            client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, stream=True)
        )
    assert all(chunk.choices for chunk in chunks)
    assert "usage" not in chunks[-1].model_fields_set


@pytest.mark.parametrize("prompt", ["Once upon", [72, 101, 108], ["Once upon"], [[72, 101, 108]]])
def test_completions_streamed_and_whole(live: Live, prompt: object) -> None:
    with live.client() as client:
        whole = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0)
        chunks = list(
            client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0, stream=True)
        )
    assert whole.id.startswith("cmpl-")
    assert whole.object == "text_completion"
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.usage.prompt_tokens >= 3


def test_a_token_array_is_the_prompt_as_it_is(live: Live) -> None:
    with live.client() as client:
        completion = client.completions.create(model="tiny", prompt=[5, 6, 7, 8], max_tokens=1)
    assert completion.usage.prompt_tokens == 4


@pytest.mark.parametrize("seed", [7, -1, -(2**63), 2**63 - 1])
def test_a_seed_fixes_the_answer(live: Live, seed: int) -> None:
    first, second = (said(chat(live, temperature=1, seed=seed)) for _ in range(2))
    assert first == second


def test_other_seeds_and_none_give_other_answers(live: Live) -> None:
    seeded = {said(chat(live, temperature=1, seed=seed)) for seed in range(4)}
    silent = {said(chat(live, temperature=1)) for _ in range(4)}
    assert len(seeded) == len(silent) == 4
    assert not seeded & silent


@pytest.mark.parametrize("as_list", [True, False])
def test_a_stop_string_ends_the_text_before_itself(live: Live, as_list: bool) -> None:
    free = said(chat(live, extra_body={"ignore_eos": True}))
    stop = next(free[i : i + 2] for i in range(5, len(free) - 2) if "�" not in free[i : i + 2])
    answer = chat(live, stop=["never said", stop] if as_list else stop, extra_body={"ignore_eos": True})
    assert said(answer) == free[: free.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < 24


def test_content_parts_and_developers_are_understood(live: Live) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    with_parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\ntwo"}]
    assert said(chat(live, messages=with_parts)) == said(chat(live, messages=plain))


def test_errors_arrive_as_the_clients_own(live: Live) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        chat(live, model="gpt-4")
    assert not_found.value.code == "model_not_found"
    assert "tiny" in not_found.value.message
    with pytest.raises(openai.BadRequestError) as bad:
        chat(live, messages=[{"role": "nobody", "content": "?"}])
    assert bad.value.param == "messages[0].role"
    with pytest.raises(openai.BadRequestError) as too_long:
        chat(live, max_tokens=250)
    assert too_long.value.code == "context_length_exceeded"


def test_an_error_in_a_stream_arrives_as_an_exception(gated: Gated) -> None:
    with gated.live.client() as client:
        gated.gate.step(8)
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        gated.gate.error = ValueError("the device caught fire")
        gated.gate.open()
        with pytest.raises(openai.APIError, match="caught fire") as failed:
            list(stream)
    assert failed.value.type == "server_error"


def test_a_prompt_gets_the_tokens_its_model_begins_with(live: Live) -> None:
    with live.client() as client:
        completion = client.completions.create(model="plain", prompt="the", max_tokens=1)
    assert completion.usage.prompt_tokens == 1 + len(
        live.post("/tokenize", {"content": "the", "model": "plain"}).json()["tokens"]
    )


def test_models_are_listed_and_shown(live: Live) -> None:
    with live.client() as client:
        assert {model.id for model in client.models.list()} == {"tiny", "plain"}
        assert client.models.retrieve("plain").owned_by == "tierd"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("no/such model")


def test_sixteen_streams_at_once_each_get_their_own(live: Live) -> None:
    def answer(i: int) -> str:
        with live.client() as client:
            stream = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"Number {i}."}],
                max_tokens=24,
                temperature=0,
                stream=True,
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(answer, range(16)))
    assert len(set(together)) == 16
    assert together[::5] == [answer(i) for i in range(0, 16, 5)]
