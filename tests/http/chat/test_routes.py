"""Thoughts, begun answers and early ends of chats, on a live server whose model says what a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import openai
import pytest

from chat import templates
from live import Live, serve, wait_until
from live_script import ScriptedBackend
from tierd.http.chat.turn import messages
from tierd.http.requests import Message
from tierd.settings import ModelSettings
from tiny import write_llama

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
MODELS = {
    "hermes": templates.HERMES,
    "r1": templates.R1,
    "gpt-oss": templates.GPT_OSS,
    "gemma": templates.GEMMA,
    "rag": "{% for d in documents or [] %}{{ d.title }}: {{ d.text }}\n{% endfor %}{{ messages[0].content }}",
}


class Speaking:
    """A server, and what its models are to say."""

    def __init__(self, live: Live, backend: ScriptedBackend) -> None:
        self.live = live
        self._backend = backend

    def whole(self, says: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to a chat that is not streamed."""
        self._backend.says = says
        response = self.live.post(CHAT, {"model": "hermes", "messages": [USER]} | fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def message(self, says: str, **fields: Any) -> tuple[str | None, str | None, str]:
        """Return thought, text and finish reason, which are the same when they are streamed."""
        (choice,) = self.whole(says, **fields)["choices"]
        message = choice["message"]
        with self.live.client() as client:
            extra = {"chat_template_kwargs": fields.pop("chat_template_kwargs", None)}
            stream = client.chat.completions.create(
                **{"model": "hermes", "messages": [USER]} | fields, stream=True, extra_body=extra
            )
            deltas = [(chunk.choices[0].delta, chunk.choices[0].finish_reason) for chunk in stream]
        assert "".join(delta.content or "" for delta, _ in deltas) == (message["content"] or "")
        thoughts = [getattr(delta, "reasoning_content", None) or "" for delta, _ in deltas]
        assert "".join(thoughts) == message.get("reasoning_content", "")
        assert deltas[-1][1] == choice["finish_reason"]
        return message.get("reasoning_content"), message["content"], choice["finish_reason"]

    def prompt(self, **fields: Any) -> str:
        answer = self.live.post("/apply-template", {"model": "hermes", "messages": [USER]} | fields)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["prompt"]
        return text


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    folder = tmp_path_factory.mktemp("chat")
    path = write_llama(folder / "tiny.gguf", context=1024)
    models = []
    for name, text in MODELS.items():
        template = folder / f"{name}.jinja"
        template.write_text(text.strip("\n"))
        models.append(ModelSettings(id=name, path=path, streams=4, chat_template=template))
    models[0] = replace(models[0], default=True)
    backend = ScriptedBackend()
    with serve(models, backend=backend) as live:
        yield Speaking(live, backend)


def test_a_thought_is_split_off_whole_and_streamed(speaking: Speaking) -> None:
    said = "<think>\nWhy? Well…\n</think>\n\nBecause <of> that."
    assert speaking.message(said) == ("Why? Well…", "Because <of> that.", "stop")
    assert speaking.message(said, max_tokens=17) == ("Why? Well", "", "length")
    assert speaking.message("Because.") == (None, "Because.", "stop")
    assert speaking.message("Why?</think>So.", model="r1") == ("Why?", "So.", "stop")


def test_channels_are_told_apart(speaking: Speaking) -> None:
    said = "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>final<|message|>So."
    assert speaking.message(said, model="gpt-oss") == ("Why?", "So.", "stop")


def test_thinking_is_counted_and_timed(speaking: Speaking) -> None:
    thought, text = "<think>hm, hm</think>", "So."
    answer = speaking.whole(thought + text)
    usage, timings = answer["usage"], answer["timings"]
    assert usage["completion_tokens"] == len(thought + text) + 1
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
    assert timings["predicted_n"] == usage["completion_tokens"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert timings["prompt_ms"] > 0
    assert timings["predicted_ms"] > 0
    rate = timings["predicted_n"] / timings["predicted_ms"] * 1000
    assert timings["predicted_per_second"] == pytest.approx(rate, rel=0.01)


def test_a_thought_that_was_not_asked_for_is_split_off_if_it_leads(speaking: Speaking) -> None:
    said = "\n<think>Why?</think>\nSo."
    assert speaking.message(said, **OFF) == ("Why?", "So.", "stop")
    assert speaking.message(said, model="r1", **OFF) == ("Why?", "So.", "stop")
    assert speaking.message(said, reasoning_effort="none") == ("Why?", "So.", "stop")


@pytest.mark.parametrize("mark", ["<think>", "</think>"])
def test_one_behind_text_ends_the_answer(speaking: Speaking, mark: str) -> None:
    heard = f"<think>a</think>So.{mark}"
    said = heard + "and on " * 80
    assert speaking.message(said, **OFF) == ("a", "So.", "stop")
    usage = speaking.whole(said, **OFF)["usage"]
    assert usage["completion_tokens"] == len(heard)
    both = speaking.whole(said, n=2, **OFF)["choices"]
    assert [choice["message"]["content"] for choice in both] == ["So.", "So."]
    wait_until(lambda: speaking.live.engine.snapshot.models["hermes"].running == 0)
    asked = speaking.whole(said)["choices"][0]
    assert asked["message"]["content"] == said.removeprefix("<think>a</think>")


def test_stop_strings_leak_no_part_and_what_is_held_back_is_flushed(speaking: Speaking) -> None:
    said = "<think>Why?</think>One STO two STOP three"
    assert speaking.message(said, stop=["STOP"]) == ("Why?", "One STO two ", "stop")
    assert speaking.message(said, stop=["STOPPED"]) == ("Why?", "One STO two STOP three", "stop")
    assert speaking.message("One ST", stop="STOP") == (None, "One ST", "stop")
    assert speaking.message("One STO", stop="STOP", max_tokens=7) == (None, "One STO", "length")
    assert speaking.message("One <thi", stop="STOP") == (None, "One <thi", "stop")
    assert speaking.message("One <think", max_tokens=8) == (None, "One <thi", "length")
    assert speaking.message("<think>a</thin", max_tokens=10) == ("a</", "", "length")


def test_logprobs_are_those_of_the_text(speaking: Speaking) -> None:
    fields = {"logprobs": True, "top_logprobs": 1, "temperature": 0}
    (choice,) = speaking.whole("<think>\nhm</think>\n\nSö.", **fields)["choices"]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "Sö."
    with speaking.live.client() as client:
        stream = client.chat.completions.create(model="hermes", messages=[USER], stream=True, **fields)
        streamed = [
            entry.model_dump()
            for chunk in stream
            if chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content
        ]
    assert streamed == entries
    assert speaking.whole("<think>hm", **fields)["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_several_choices_each_have_their_thought(speaking: Speaking) -> None:
    answer = speaking.whole("<think>a</think>b", n=3, seed=1)
    messages = [choice["message"] for choice in answer["choices"]]
    assert [(m["reasoning_content"], m["content"]) for m in messages] == [("a", "b")] * 3
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3 * len("<think>a</think>")


BEGUN = [USER, {"role": "assistant", "content": "One, two, "}]


def test_a_last_message_of_the_assistants_is_the_beginning_of_the_answer(speaking: Speaking) -> None:
    begun = speaking.prompt(messages=BEGUN)
    assert begun.endswith("<|im_start|>assistant\nOne, two, ")
    assert speaking.prompt(messages=BEGUN, continue_final_message=True) == begun
    same = speaking.prompt(messages=BEGUN, continue_final_message=True, add_generation_prompt=False)
    assert same == begun
    assert speaking.message("three.", messages=BEGUN) == (None, "three.", "stop")
    assert speaking.message("three. <think>", messages=BEGUN, **OFF) == (None, "three. ", "stop")


def test_a_new_answer_can_be_asked_for_behind_it(speaking: Speaking) -> None:
    ended = "<|im_start|>assistant\nOne, two, <|im_end|>\n"
    assert speaking.prompt(messages=BEGUN, add_generation_prompt=True).endswith(
        ended + "<|im_start|>assistant\n"
    )
    neither = {"add_generation_prompt": False, "continue_final_message": False}
    assert speaking.prompt(messages=BEGUN, **neither).endswith(ended)
    assert speaking.prompt(add_generation_prompt=False).endswith("hi<|im_end|>\n")


def test_templates_get_variables_efforts_and_documents(speaking: Speaking) -> None:
    assert speaking.prompt(**OFF).endswith("<think>\n\n</think>\n\n")
    assert speaking.prompt(reasoning_effort="none") == speaking.prompt(**OFF)
    assert speaking.prompt(reasoning_effort="low") == speaking.prompt()
    assert "Reasoning: low" in speaking.prompt(model="gpt-oss", reasoning_effort="minimal")
    assert "Reasoning: high" in speaking.prompt(model="gpt-oss", reasoning_effort="max")
    given = {"chat_template_kwargs": {"reasoning_effort": "utmost"}}
    assert "Reasoning: utmost" in speaking.prompt(model="gpt-oss", **given)
    documents = {"documents": [{"title": "Ulm", "text": "It rains."}]}
    assert speaking.prompt(model="rag", **documents) == "Ulm: It rains.\nhi"
    status, error = speaking.live.refusal(CHAT, {"messages": [USER]} | documents)
    assert (status, error["param"]) == (400, "documents")


def test_a_thought_of_the_past_is_taken_back(speaking: Speaking) -> None:
    past = [USER, {"role": "assistant", "content": "b", "reasoning_content": "a"}]
    assert "<think>\na\n</think>\n\nb" in speaking.prompt(messages=past, add_generation_prompt=True)
    renamed = [USER, {"role": "assistant", "content": "b", "reasoning": "a"}]
    assert speaking.prompt(messages=renamed) == speaking.prompt(messages=past)


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "So."}]}, "No.\nSo."),
        ({"content": "So.", "refusal": None}, "So."),
        ({"reasoning_content": "a"}, ""),
    ],
)
def test_an_answer_of_the_past_may_be_a_refusal_or_a_thought_alone(
    answer: dict[str, object], content: str
) -> None:
    given = [Message(**USER), msgspec.convert({"role": "assistant"} | answer, Message)]
    assert messages(given)[1]["content"] == content


@pytest.mark.parametrize("message", [{"role": "user", "refusal": "No."}, {"role": "assistant"}])
def test_a_message_without_text_is_refused(speaking: Speaking, message: dict[str, object]) -> None:
    status, error = speaking.live.refusal(CHAT, {"messages": [USER, message]})
    assert (status, error["param"]) == (400, "messages[1].content")


def test_a_grammar_holds_for_what_follows_the_thought(speaking: Speaking) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [12, 34]}}}
    said = "<think>anything at all</think>"
    thought, text, reason = speaking.message(said, response_format=format, temperature=0)
    assert (thought, reason) == (None, "stop") or thought == "anything at all"
    assert text in ("12", "34")
    assert speaking.message(said, response_format=format, temperature=0, **OFF)[1] in ("12", "34")
    said = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>No."
    thought, text, reason = speaking.message(said, model="gpt-oss", response_format=format, temperature=0)
    assert (thought, reason) == ("hm", "stop")
    assert text in ("12", "34")


def test_what_a_template_refuses_is_the_requests_fault(speaking: Speaking) -> None:
    with speaking.live.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="gemma", messages=[{"role": "system", "content": "x"}, USER])
    assert "System role not supported" in refused.value.message
