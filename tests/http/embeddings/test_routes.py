"""POST /v1/embeddings, by the official client and by hand."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import openai
import pytest

from engine.embedded import pooled
from live import LONG_WAIT_S, Gated, Live, error_of, serve, wait_until
from reference.forward import hidden_states
from tierd.backends.host import HostBackend
from tierd.backends.null import NullBackend
from tierd.core import Pooling
from tierd.settings import KVSettings, LimitsSettings, ModelSettings, QueueSettings
from tiny import write_gemma3, write_llama

WIDTH = 96
IDS = [72, 101, 108, 108, 111]


def embed(live: Live, **body: object) -> list[list[float]]:
    """Return the vectors of a request, checked for their shape."""
    response = live.post("/v1/embeddings", body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert list(answer) == ["object", "data", "model", "usage"]
    assert answer["object"] == "list"
    assert [list(each) for each in answer["data"]] == [["object", "index", "embedding"]] * len(answer["data"])
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    assert list(answer["usage"]) == ["prompt_tokens", "total_tokens"]
    return [each["embedding"] for each in answer["data"]]


def test_the_client_gets_vectors_in_the_order_of_its_texts(live: Live) -> None:
    texts = [f"the text number {n}" for n in range(40)]  # more than there are streams
    with live.client() as client:
        answer = client.embeddings.create(model="tiny", input=texts)
        alone = client.embeddings.create(model="tiny", input=texts[33], encoding_format="float", user="me")
    assert answer.model == "tiny"
    assert [each.index for each in answer.data] == list(range(40))
    assert len({tuple(each.embedding) for each in answer.data}) == 40
    assert answer.data[33].embedding == alone.data[0].embedding
    assert len(alone.data[0].embedding) == WIDTH
    assert np.linalg.norm(alone.data[0].embedding) == pytest.approx(1, abs=1e-6)
    counts = [len(live.post("/tokenize", {"content": text}).json()["tokens"]) for text in texts]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(counts)
    assert alone.usage.prompt_tokens == counts[33]


def test_base64_says_the_same_as_floats(live: Live) -> None:
    (floats,), (encoded,) = (
        embed(live, input="the", encoding_format=format) for format in ("float", "base64")
    )
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == floats
    assert embed(live, input="the") == [floats]
    assert embed(live, input="the", encoding_format=None, dimensions=WIDTH) == [floats]


def test_ids_stand_for_their_text(live: Live) -> None:
    ids = live.post("/tokenize", {"content": "the of"}).json()["tokens"]
    (of_text,) = embed(live, input="the of")
    assert embed(live, input=ids) == embed(live, input=[ids]) == embed(live, input=["the of"]) == [of_text]
    assert embed(live, input=[ids, "the of", IDS]) == [of_text, of_text, *embed(live, input=IDS)]


def test_a_text_gets_the_tokens_its_model_begins_with(live: Live) -> None:
    ids = live.post("/tokenize", {"content": "the", "model": "plain", "add_special": True}).json()["tokens"]
    assert embed(live, input="the", model="plain") == embed(live, input=ids, model="plain")
    assert embed(live, input="the", model="plain") != embed(live, input=ids[1:], model="plain")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": 1}, "input"),
        ({"input": {}}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", "b", "c", ""]}, "input[3]"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": ["a", 1.5]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [1, "a"]}, "input[0]"),
        ({"input": [1, [2]]}, "input[0]"),
        ({"input": [["a"]]}, "input[0][0]"),
        ({"input": [1, True]}, "input[1]"),
        ({"input": [1, -1]}, "input[1]"),
        ({"input": [1, 10**9]}, "input[1]"),
        ({"input": [[1], [1, 301]]}, "input[1][1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": ["a" * 2000] * 530}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "encoding_format": 1}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "dimensions": WIDTH + 1}, "dimensions"),
        ({"input": "a", "priority": "high"}, "priority"),
        ({"input": "a", "truncate": True}, "truncate"),
        ({"input": "a", "normalize": False}, "normalize"),
        ({"input": "a", "input_type": "query"}, "input_type"),
        ({"input": "a", "pooling": "mean"}, "pooling"),
    ],
)
def test_damaged_requests_are_refused_by_name(live: Live, body: object, param: str | None) -> None:
    status, error = live.refusal("/v1/embeddings", body)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")


def test_nothing_is_cut_in_silence(live: Live) -> None:
    assert len(embed(live, input=IDS[:1] * 256)) == 1  # the whole context
    for input, param in ((IDS[:1] * 257, "input"), (["a", "the of " * 400], "input[1]")):
        status, error = live.refusal("/v1/embeddings", {"input": input})
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
        assert "256" in error["message"]
    status, error = live.refusal("/v1/embeddings", {"input": "a" * 100_000})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


def test_harmless_fields_pass(live: Live) -> None:
    harmless = {
        "user": "me",
        "priority": 3,
        "truncate": None,
        "normalize": True,
        "input_type": None,
        "whatever": {"a": 1},
    }
    assert embed(live, input="the", **harmless) == embed(live, input="the")


def test_an_unknown_model_is_a_404(live: Live) -> None:
    status, error = live.refusal("/v1/embeddings", {"input": "a", "model": "x"})
    assert (status, error["code"]) == (404, "model_not_found")
    response = live.get("/v1/embeddings")
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")


def test_a_client_that_hangs_up_ends_all_its_texts(gated: Gated) -> None:
    live = gated.live
    connection = live.send("/v1/embeddings", {"input": ["the of"] * 40})
    wait_until(lambda: live.engine.snapshot.models["tiny"].running > 0)
    connection.close()
    wait_until(lambda: not live.engine.snapshot.models["tiny"].running)
    cancelled = 'tierd_requests_total{model="tiny",outcome="cancelled"}'
    wait_until(lambda: cancelled in live.get("/metrics").text)
    counts = [line for line in live.get("/metrics").text.splitlines() if line.startswith("tierd_requests_t")]
    assert sum(float(line.split()[-1]) for line in counts) < 40


def test_what_fails_one_text_fails_the_request(gated: Gated) -> None:
    gated.gate.error = ValueError("the device caught fire")
    gated.gate.open()
    with gated.live.client() as client, pytest.raises(openai.InternalServerError, match="caught fire"):
        client.embeddings.create(model="tiny", input=["a", "b", "c"])


def test_a_full_queue_answers_429(tiny_model: ModelSettings) -> None:
    one = replace(tiny_model, streams=1)
    hold = threading.Event()
    gate = _Held(hold)
    with serve([one], backend=gate.backend(), queue=QueueSettings(capacity=1)) as live:
        try:
            waiting = [live.send("/v1/embeddings", {"input": ["a", "b", "c"]}) for _ in range(2)]
            wait_until(lambda: live.engine.snapshot.models["tiny"].waiting == 1)
            response = live.post("/v1/embeddings", {"input": "a"})
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert error_of(response)["code"] == "queue_full"
        finally:
            hold.set()
        for connection in waiting:  # three texts each, in turns
            connection.settimeout(LONG_WAIT_S)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()


class _Held:
    """Holds all steps until it is told to let them go."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def backend(self) -> NullBackend:
        return NullBackend(before_step=lambda batch: self._event.wait(LONG_WAIT_S))


# ---- Of real models ------------------------------------------------------------------------------------

FILES = {
    "silent": {},
    "mean": {"llama.pooling_type": 1},
    "cls": {"llama.pooling_type": 2},
    "last": {"llama.pooling_type": 3},
    "none": {"llama.pooling_type": 0},
    "rank": {"llama.pooling_type": 4},
}
MEANT = {"silent": Pooling.LAST, "mean": Pooling.MEAN, "cls": Pooling.CLS, "last": Pooling.LAST}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("embeddings")
    paths = {
        name: write_llama(folder / f"{name}.gguf", context=128, extra=extra) for name, extra in FILES.items()
    }
    return paths | {"gemma": write_gemma3(folder / "gemma.gguf", context=128)}


@pytest.fixture(scope="module")
def host(paths: dict[str, Path]) -> Iterator[Live]:
    """A server that computes. What the files of "set", "gemma" and "off" say the settings say otherwise."""
    models = [ModelSettings(id=name, path=path, kv_dtype="f32") for name, path in paths.items()]
    models[0] = replace(models[0], default=True)
    models[-1] = replace(models[-1], pooling="mean")
    models.append(replace(models[0], id="set", default=False, path=paths["mean"], pooling="cls"))
    models.append(replace(models[0], id="cut", default=False, path=paths["mean"], matryoshka=True))
    models.append(replace(models[0], id="off", default=False, pooling="none"))
    backend = HostBackend(1)
    limits = LimitsSettings(max_prompt_tokens=100)
    with serve(models, backend=backend, limits=limits, kv=KVSettings(memory_mb=64)) as live:
        yield live
    backend.close()


@pytest.mark.parametrize("model", [*MEANT, "gemma", "set"])
def test_vectors_equal_a_plain_forwards(model: str, host: Live, paths: dict[str, Path]) -> None:
    meant = {**MEANT, "gemma": Pooling.MEAN, "set": Pooling.CLS}[model]
    path = paths["mean" if model == "set" else model]
    ids = np.random.default_rng(0).integers(0, 300, 90).tolist()
    found = embed(host, model=model, input=[ids, ids[:7]])
    for vector, prompt in zip(found, (ids, ids[:7]), strict=True):
        np.testing.assert_allclose(vector, pooled(hidden_states(path, prompt), meant), atol=2e-5, rtol=0)


def test_vectors_are_cut_where_the_model_may_be(host: Live, paths: dict[str, Path]) -> None:
    (whole,), (cut,), (full,) = (
        embed(host, model="cut", input=IDS, dimensions=dimensions) for dimensions in (None, 10, WIDTH)
    )
    assert whole == full
    np.testing.assert_allclose(cut, np.array(whole[:10]) / np.linalg.norm(whole[:10]), rtol=1e-6)
    with host.client() as client:
        answer = client.embeddings.create(model="cut", input=[IDS], dimensions=10)
    assert answer.data[0].embedding == cut


@pytest.mark.parametrize(("model", "pooling"), [("none", "none"), ("rank", "rank"), ("off", "none")])
def test_models_that_give_no_vectors_say_so(model: str, pooling: str, host: Live) -> None:
    status, error = host.refusal("/v1/embeddings", {"model": model, "input": "a"})
    assert (status, error["param"]) == (400, "model")
    assert f"its pooling is {pooling}" in error["message"]


def test_the_operators_cap_holds(host: Live) -> None:
    status, error = host.refusal("/v1/embeddings", {"input": [[1] * 100, [1] * 101]})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input[1]")
    assert "at most 100" in error["message"]
