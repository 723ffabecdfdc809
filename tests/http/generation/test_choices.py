"""Several choices of one request: each is a stream of its own, and all of them begin and end together."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import replace

import openai
import pytest

from live import Gated, Live, serve, wait_until
from tierd.core import FinishedEvent, FinishReason, TextEvent, Usage
from tierd.http.generation import translate
from tierd.http.generation.choices import Choices, list_usage, total_usage
from tierd.http.generation.exchange import Exchange
from tierd.settings import ModelSettings

MESSAGES = [{"role": "user", "content": "Say something."}]
CHAT = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 7}
TEXT = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 20, "seed": 7}


def test_choices_differ_and_the_first_is_that_of_n_1(live: Live) -> None:
    with live.client() as client:
        alone = client.chat.completions.create(**CHAT)
        several = client.chat.completions.create(**CHAT, n=5)
        again = client.chat.completions.create(**CHAT, n=3)
    texts = [choice.message.content for choice in several.choices]
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3, 4]
    assert len(set(texts)) == 5
    assert texts[0] == alone.choices[0].message.content
    assert texts[:3] == [choice.message.content for choice in again.choices]


def test_a_choice_is_what_its_seed_says(live: Live) -> None:
    with live.client() as client:
        several = client.completions.create(**TEXT, n=4)
        for choice in several.choices:
            seed = translate.choice_seed(7, choice.index)
            signed = seed - 2**64 if seed >= 2**63 else seed
            alone = client.completions.create(**TEXT | {"seed": signed})
            assert alone.choices[0].text == choice.text


def test_seeds_of_choices_do_not_meet_those_of_neighbours() -> None:
    seeds = [translate.choice_seed(seed, index) for seed in range(1000) for index in range(16)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_greedy_choices_are_alike(live: Live) -> None:
    with live.client() as client:
        several = client.completions.create(**TEXT | {"temperature": 0}, n=3, best_of=3)
    assert len({choice.text for choice in several.choices}) == 1


def test_more_choices_than_streams_are_refused(tiny_model: ModelSettings) -> None:
    with serve([replace(tiny_model, streams=2)]) as server:
        status, error = server.refusal("/v1/completions", TEXT | {"n": 3})
        assert (status, error["param"]) == (400, "n")
        assert "'tiny' has 2 streams" in error["message"]
        with server.client() as client:
            assert len(client.completions.create(**TEXT, n=2).choices) == 2


def test_usage_counts_the_prompt_once(live: Live) -> None:
    with live.client() as client:
        answer = client.completions.create(**TEXT, n=3, extra_body={"ignore_eos": True})
        chunks = list(
            client.completions.create(
                **TEXT,
                n=3,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
        )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 60)
    assert answer.usage.total_tokens == 63
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 60)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_streamed_choices_say_what_whole_ones_do(live: Live) -> None:
    with live.client() as client:
        whole = client.chat.completions.create(**CHAT, n=4, logprobs=True, top_logprobs=2)
        chunks = list(client.chat.completions.create(**CHAT, n=4, logprobs=True, top_logprobs=2, stream=True))
    pieces: defaultdict[int, list[openai.types.chat.chat_completion_chunk.Choice]] = defaultdict(list)
    for chunk in chunks:
        (choice,) = chunk.choices
        pieces[choice.index].append(choice)
    assert sorted(pieces) == [0, 1, 2, 3]
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        mine = pieces[choice.index]
        assert mine[0].delta.role == "assistant"
        assert all(piece.delta.role is None for piece in mine[1:])
        assert "".join(piece.delta.content or "" for piece in mine) == choice.message.content
        assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        entries = [entry for piece in mine if piece.logprobs for entry in piece.logprobs.content or []]
        assert choice.logprobs is not None
        assert entries == choice.logprobs.content


def test_a_completions_choices_come_as_they_are_made(live: Live) -> None:
    body = TEXT | {"n": 3, "stream": True, "ignore_eos": True, "logprobs": 1}
    frames = live.post("/v1/completions", body).text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    choices = [json.loads(frame.removeprefix("data: "))["choices"][0] for frame in frames[:-2]]
    whole = live.post("/v1/completions", body | {"stream": False}).json()["choices"]
    assert [choice["index"] for choice in whole] == [0, 1, 2]
    for index in range(3):
        mine = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == whole[index]["text"]
        assert mine[-1]["finish_reason"] == whole[index]["finish_reason"] == "length"
        offsets = [o for choice in mine if choice["logprobs"] for o in choice["logprobs"]["text_offset"]]
        assert offsets == whole[index]["logprobs"]["text_offset"]
    # They run beside one another: none has to wait for the end of another one.
    first_end = next(i for i, choice in enumerate(choices) if choice["finish_reason"])
    assert {choice["index"] for choice in choices[:first_end]} == {0, 1, 2}


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_cancels_every_choice(gated: Gated, stream: bool) -> None:
    def running() -> int:
        state = gated.live.engine.snapshot.models["tiny"]
        return state.running + state.waiting

    body = CHAT | {"n": 5, "stream": stream, "ignore_eos": True}
    connection = gated.live.send("/v1/chat/completions", body)
    wait_until(lambda: running() == 5)
    gated.gate.step(3)
    connection.close()
    wait_until(lambda: running() == 0)
    metrics = gated.live.get("/metrics").text
    assert 'tierd_requests_total{model="tiny",outcome="cancelled"} 5.0' in metrics


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_ends_every_choice_with_one_error(gated: Gated, stream: bool) -> None:
    gated.gate.error = ValueError("out of smoke")
    gated.gate.open()
    status, error = gated.live.refusal("/v1/completions", TEXT | {"n": 3, "stream": stream})
    assert status == 500
    assert "out of smoke" in error["message"]


class Scripted:
    """Stands for an Exchange: its events come when the test says."""

    def __init__(self, *news: list[TextEvent | FinishedEvent] | Exception) -> None:
        self.news = list(news)
        self.ready = asyncio.Semaphore(0)
        self.entered = self.left = False
        self.period = 0.0

    async def __aenter__(self) -> Scripted:
        self.entered = True
        return self

    def remind(self, seconds: float) -> None:
        self.period = seconds

    async def __aexit__(self, *error: object) -> None:
        self.left = True

    async def take(self) -> list[TextEvent | FinishedEvent]:
        await self.ready.acquire()
        news = self.news.pop(0)
        if isinstance(news, Exception):
            raise news
        return news


def choices_of(*scripts: Scripted, at_once: int | None = None) -> Choices:
    exchanges: list[Exchange] = list(scripts)  # type: ignore[arg-type]
    return Choices(exchanges, at_once)


END = FinishedEvent(FinishReason.STOP, Usage(3, 4))


def test_events_are_taken_as_they_come_and_none_twice() -> None:
    async def run() -> None:
        a, b = Scripted([TextEvent("a1")], [TextEvent("a2"), END]), Scripted([TextEvent("b1")], [END])
        async with choices_of(a, b) as choices:
            b.ready.release()
            assert await choices.take() == [(1, TextEvent("b1"))]
            a.ready.release()
            a.ready.release()
            assert await choices.take() == [(0, TextEvent("a1"))]
            assert len(a.news) == 1  # what is not asked for stays where it is
            assert await choices.take() == [(0, TextEvent("a2")), (0, END)]
            assert not choices.ended
            b.ready.release()
            assert await choices.take() == [(1, END)]
            assert choices.ended
        assert a.left
        assert b.left

    asyncio.run(run())


def test_no_more_run_at_once_than_may() -> None:
    async def run() -> None:
        scripts = [Scripted([TextEvent(f"{n}"), END]) for n in range(5)]
        async with choices_of(*scripts, at_once=2) as choices:
            choices.remind(3.0)
            for script in scripts[1:]:
                script.ready.release()
            seen = []
            for n in range(1, 5):
                assert [script.entered for script in scripts] == [i < max(2, n) for i in range(5)]
                seen += await choices.take()
                assert not choices.ended
            scripts[0].ready.release()
            seen += await choices.take()
            assert choices.ended
        assert [index for index, event in seen if event == END] == [1, 2, 3, 4, 0]
        assert {script.period for script in scripts} == {3.0}
        assert all(script.left for script in scripts)

    asyncio.run(run())


def test_one_failure_is_raised_and_the_rest_are_left() -> None:
    async def run() -> None:
        scripts = [Scripted(ValueError(str(i))) for i in range(3)]
        for script in scripts:
            script.ready.release()

        async def take() -> None:
            async with choices_of(*scripts, Scripted()) as choices:
                await choices.take()

        with pytest.raises(ValueError, match="0"):
            await take()
        assert all(script.left for script in scripts)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_the_total_of_usages() -> None:
    assert total_usage([Usage(5, 2, 4), Usage(5, 3, 5)]) == Usage(5, 5, 4)


def test_the_usage_of_a_list_counts_each_prompt_once() -> None:
    one = [Usage(5, 2, 4, prompt_s=1.0, generation_s=3.0), Usage(5, 3, 5, prompt_s=0.5, generation_s=2.0)]
    two = [Usage(7, 1, 0, prompt_s=2.0, generation_s=1.0), Usage(7, 1, 6, prompt_s=0.1, generation_s=1.0)]
    found = list_usage([*one, *two], 2)
    assert found == Usage(12, 7, 4)
    assert (found.prompt_s, found.generation_s) == (3.0, 4.0)
    assert list_usage(one[:1], 1) == one[0]
