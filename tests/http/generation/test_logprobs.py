"""Log-probabilities as the official client sees them, and as bytes."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from engine.null_slot import ByteTokenizer
from live import Live, serve
from tierd.backends.host import HostBackend
from tierd.backends.protocol import Executor
from tierd.chat.reply import Said
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Batch, Chunk, TextEvent, TokenLogprobs
from tierd.http.chat.frames import ChatFrames
from tierd.http.completions.frames import CompletionFrames
from tierd.http.generation.logprobs import LEAST, ChatScribe, TextScribe
from tierd.http.shapes import Heading
from tierd.settings import KVSettings, ModelSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

MESSAGES = [{"role": "user", "content": "Say something."}]
BYTES: Tokenizer = ByteTokenizer()  # type: ignore[assignment]
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def host_model(tmp_path_factory: pytest.TempPathFactory) -> ModelSettings:
    path = write_llama(tmp_path_factory.mktemp("logprobs") / "tiny.gguf", context=256)
    return ModelSettings(id="tiny", path=path, default=True)


@pytest.fixture(scope="module")
def host(host_model: ModelSettings) -> Iterator[Live]:
    """A server that computes."""
    backend = HostBackend(1)
    with serve([host_model], backend=backend) as live:
        yield live
    backend.close()


@pytest.fixture(scope="module")
def executor(host_model: ModelSettings) -> Iterator[Executor]:
    """The same model, to be asked directly."""
    backend = HostBackend(1)
    slot = open_slot(host_model, Settings(kv=KVSettings(memory_mb=16)), HostSite(backend))
    yield slot.executor
    slot.close()
    backend.close()


def log_softmax(executor: Executor, tokens: list[int]) -> np.ndarray:
    """Return what the model says after each of the tokens."""
    pages = tuple(range(executor.pages))
    rows = tuple(range(len(tokens)))
    exact = executor.run(Batch((Chunk(tokens, 0, pages, rows),))).astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))


def ids_of(live: Live, text: str) -> list[int]:
    return live.post("/tokenize", {"content": text, "parse_special": True}).json()["tokens"]


def test_chat_logprobs_are_those_of_the_model(host: Live, executor: Executor) -> None:
    body = {"messages": MESSAGES, "max_tokens": 16, "seed": 4, "ignore_eos": True, "temperature": 1.0}
    prompt = host.post("/apply-template", {"messages": MESSAGES}).json()["prompt"]
    answer = host.post(
        "/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 20, "logit_bias": {"300": -100}}
    ).json()
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert len(content) == 16
    raw = b"".join(bytes(entry["bytes"] or []) for entry in content)
    assert raw.decode("utf-8", "replace") == choice["message"]["content"]
    plain = host.post("/v1/chat/completions", body | {"logit_bias": {"300": -100}}).json()
    assert plain["choices"][0]["message"] == choice["message"]
    assert plain["choices"][0]["logprobs"] is None

    tokens = ids_of(host, prompt)
    for entry in content:
        expected = log_softmax(executor, tokens)[-1]
        top = entry["top_logprobs"]
        best = np.lexsort((np.arange(expected.size), -expected))[:20]
        assert [other["logprob"] for other in top] == pytest.approx(expected[best], abs=2e-6)
        (token,) = [id for id in np.flatnonzero(np.abs(expected - entry["logprob"]) < 2e-6).tolist()
                    if token_of(host, id) == (entry["token"], entry["bytes"])]  # fmt: skip
        tokens.append(token)


def token_of(live: Live, token: int) -> tuple[str, list[int] | None]:
    tokenizer = live.engine.catalogue.resolve().tokenizer
    raw = tokenizer.token_bytes(token)
    return (raw.decode("utf-8", "replace"), list(raw)) if raw else (tokenizer.token_text(token), None)


def test_the_client_reads_chat_logprobs_streamed_and_whole(live: Live) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 1, "logprobs": True}
    with live.client() as client:
        whole = client.chat.completions.create(**asked, top_logprobs=3)
        chunks = list(client.chat.completions.create(**asked, top_logprobs=3, stream=True))
        bare = client.chat.completions.create(**asked)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)
    assert all(entry.top_logprobs[0].logprob >= entry.logprob for entry in logprobs.content)
    streamed = [chunk.choices[0] for chunk in chunks]
    entries = [entry for choice in streamed if choice.logprobs for entry in choice.logprobs.content or []]
    assert entries == logprobs.content
    assert "".join(choice.delta.content or "" for choice in streamed) == whole.choices[0].message.content
    assert streamed[0].logprobs is None
    assert streamed[-1].logprobs is None
    assert bare.choices[0].logprobs is not None
    assert [entry.logprob for entry in bare.choices[0].logprobs.content or []] == [
        entry.logprob for entry in logprobs.content
    ]
    assert all(entry.top_logprobs == [] for entry in bare.choices[0].logprobs.content or [])


def test_completion_logprobs_are_those_of_the_model(host: Live, executor: Executor) -> None:
    with host.client() as client:
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        whole = client.completions.create(**asked, logprobs=2, extra_body={"ignore_eos": True})
        chunks = list(
            client.completions.create(**asked, logprobs=2, stream=True, extra_body={"ignore_eos": True})
        )
    choice = whole.choices[0]
    assert choice.logprobs is not None
    tokens = list(PROMPT)
    for logprob, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        expected = log_softmax(executor, tokens)[-1]
        tokens.append(int(np.argmax(expected)))
        assert logprob == pytest.approx(expected.max(), abs=2e-6)
        assert max(top.values()) == logprob
        assert list(top.values()) == pytest.approx(np.sort(expected)[:-3:-1][: len(top)], abs=2e-6)
    assert choice.text == host.post("/detokenize", {"tokens": tokens[3:]}).json()["content"]
    offsets = choice.logprobs.text_offset
    assert offsets[0] == 0
    for token, start, end in zip(choice.logprobs.tokens, offsets, offsets[1:], strict=False):
        if not token.startswith(("bytes:", "<|")):
            assert choice.text[start:end] == token
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        pieces = [getattr(chunk.choices[0].logprobs, field) for chunk in chunks if chunk.choices[0].logprobs]
        assert [item for piece in pieces for item in piece] == getattr(choice.logprobs, field)
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text


def test_logprobs_0_tells_the_drawn_tokens_alone(live: Live) -> None:
    with live.client() as client:
        none, zero, one = (
            client.completions.create(model="tiny", prompt=PROMPT, max_tokens=6, seed=1, logprobs=asked)
            for asked in (None, 0, 1)
        )
    assert none.choices[0].text == zero.choices[0].text
    assert none.choices[0].logprobs is None
    assert zero.choices[0].logprobs is not None
    assert zero.choices[0].logprobs.top_logprobs is None
    assert one.choices[0].logprobs is not None
    assert zero.choices[0].logprobs.token_logprobs == one.choices[0].logprobs.token_logprobs
    # The drawn token is told even where it is not the most likely one.
    for token, top in zip(one.choices[0].logprobs.tokens, one.choices[0].logprobs.top_logprobs, strict=True):
        assert token in top
        assert len(top) <= 2


def test_a_stop_string_takes_its_tokens_logprobs_along(live: Live) -> None:
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 0}
    with live.client() as client:
        free = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0]
        assert free.logprobs is not None
        tokens, offsets = free.logprobs.tokens, free.logprobs.text_offset
        at = next(
            i
            for i in range(8, 24)
            if not tokens[i].startswith(("bytes:", "<|")) and free.text.find(tokens[i]) == offsets[i]
        )
        cut = client.completions.create(**asked, stop=tokens[at], extra_body={"ignore_eos": True}).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == free.text[: offsets[at]]
    assert cut.logprobs is not None
    assert cut.logprobs.tokens == [tokens[i] for i in range(at) if offsets[i] < offsets[at]]


def test_penalties_and_bias_reach_the_sampler(host: Live) -> None:
    def said(**fields: object) -> list[int]:
        body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 0, "ignore_eos": True}
        answer = host.post("/v1/completions", body | fields).json()
        return answer["choices"][0]["logprobs"]["tokens"]

    plain = said()
    assert len(set(said(presence_penalty=2, frequency_penalty=2))) > len(set(plain))
    assert len(set(said(repeat_penalty=50))) == 24
    assert said(repeat_penalty=50, repeat_last_n=0) == plain
    assert said(repeat_penalty=50, repeat_last_n=-1) == said(repeat_penalty=50)
    assert said(repeat_penalty=50, repeat_last_n=2) != said(repeat_penalty=50)
    assert said(presence_penalty=-2, frequency_penalty=-2) != plain
    assert set(said(logit_bias={"70": 100})) == {token_of(host, 70)[0]}


def test_a_models_own_penalties_hold_where_a_request_is_silent(host_model: ModelSettings) -> None:
    backend = HostBackend(1)
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    strict = replace(host_model, repeat_penalty=50.0, penalty_window=8)
    with serve([strict], backend=backend) as live:
        silent = live.post("/v1/completions", body).json()["choices"]
        said = live.post("/v1/completions", body | {"repeat_penalty": 50, "repeat_last_n": 8}).json()[
            "choices"
        ]
        off = live.post("/v1/completions", body | {"repeat_penalty": 1}).json()["choices"]
    backend.close()
    assert silent == said
    assert silent != off


def test_frames_with_logprobs_are_these_bytes() -> None:
    heading = Heading(id="chatcmpl-1", created=7, model="m", system_fingerprint="fp_0")
    frames = ChatFrames(heading, include_usage=False, scribes=[ChatScribe(BYTES)])
    entry = TokenLogprobs(0x41, -0.5, ((0x41, -0.5), (ByteTokenizer.eos_id, -1.5)))
    assert frames.encode([(0, Said("A", (entry,)))]) == (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m",'
        b'"system_fingerprint":"fp_0","choices":[{"index":0,"delta":{"content":"A"},'
        b'"logprobs":{"content":[{"token":"A","logprob":-0.5,"bytes":[65],"top_logprobs":['
        b'{"token":"A","logprob":-0.5,"bytes":[65]},{"token":"</s>","logprob":-1.5,"bytes":null}]}],'
        b'"refusal":null},"finish_reason":null}]}\n\n'
    )


def test_no_token_breaks_a_line_of_a_stream() -> None:
    heading = Heading(id="cmpl-1", created=7, model="m", system_fingerprint="fp_0")
    frames = CompletionFrames(heading, include_usage=False, scribes=[TextScribe(BYTES, with_top=True)])
    entries = tuple(TokenLogprobs(byte, -1.0) for byte in b"\n\r\xc2\x85")
    encoded = frames.encode([(0, TextEvent("\n\r\x85\u2028", entries))])
    assert len(encoded.decode().splitlines()) == 2
    (choice,) = json.loads(encoded.removeprefix(b"data: "))["choices"]
    assert choice["text"] == "\n\r\x85\u2028"
    assert choice["logprobs"]["tokens"] == ["\n", "\r", "bytes:\\xc2", "bytes:\\x85"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2]


def test_numbers_that_json_cannot_hold_become_the_least() -> None:
    for broken in (-math.inf, math.nan, -1e300):
        entry = TokenLogprobs(0x41, broken, ((0x42, broken),))
        (token,) = ChatScribe(BYTES).write([entry]).content
        assert (token.logprob, token.top_logprobs[0].logprob) == (LEAST, LEAST)
        assert TextScribe(BYTES, with_top=True).write([entry]).token_logprobs == [LEAST]


def test_of_tokens_spelled_alike_the_likeliest_is_told() -> None:
    class Alike(ByteTokenizer):
        def token_bytes(self, token: int) -> bytes:
            return b"x"

    tokenizer: Tokenizer = Alike()  # type: ignore[assignment]
    entry = TokenLogprobs(3, -2.0, ((1, -0.5), (2, -1.0)))
    assert TextScribe(tokenizer, with_top=True).write([entry]).top_logprobs == [{"x": -0.5}]


@pytest.mark.parametrize(("tokens", "in_thread"), [(2, False), (120, True)])
def test_a_long_answer_is_written_down_beside_the_loop(
    live: Live, monkeypatch: pytest.MonkeyPatch, tokens: int, in_thread: bool
) -> None:
    threads: list[str] = []
    for scribe in (ChatScribe, TextScribe):
        write = scribe.write

        def written(self: object, logprobs: object, write: Callable[..., object] = write) -> object:
            threads.append(threading.current_thread().name)
            return write(self, logprobs)

        monkeypatch.setattr(scribe, "write", written)
    body = {"max_tokens": tokens, "ignore_eos": True, "n": 2}
    chat = body | {"messages": MESSAGES, "logprobs": True, "top_logprobs": 5}
    assert live.post("/v1/completions", body | {"prompt": PROMPT, "logprobs": 5}).status_code == 200
    assert live.post("/v1/chat/completions", chat).status_code == 200
    assert len(threads) == 4
    assert all(name.startswith("tierd-encode") == in_thread for name in threads)
