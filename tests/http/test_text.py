from __future__ import annotations

import pytest

from live import Live


def test_a_text_becomes_tokens_and_returns(live: Live) -> None:
    text = "Grüße, the world!\n  \U0001f600"
    tokens = live.post("/tokenize", {"content": text}).json()["tokens"]
    assert len(tokens) > 5
    assert live.post("/detokenize", {"tokens": tokens}).json() == {"content": text}


def test_special_tokens_are_added_and_parsed_as_asked(live: Live) -> None:
    def count(**options: object) -> int:
        return len(live.post("/tokenize", {"content": "<|im_start|>", **options}).json()["tokens"])

    assert count() == count(parse_special=True) == 1
    assert count(parse_special=False) > 1
    assert count(model="plain", add_special=True) == 1 + count(model="plain", add_special=False)


def test_a_long_text_is_tokenised_as_a_short_one_is(live: Live) -> None:
    few, many = (live.post("/tokenize", {"content": "the of\n" * n}).json()["tokens"] for n in (1, 2000))
    assert many == few * 2000


def test_a_template_is_applied(live: Live) -> None:
    body = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}
    assert live.post("/apply-template", body).json() == {
        "prompt": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 1}, "content"),
        ("/tokenize", {"content": "a", "with_pieces": True}, "with_pieces"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 10**9]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": "a"}], "model": "plain"}, "model"),
        ("/apply-template", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, "tools[0].type"),
    ],
)
def test_faults_are_named(live: Live, path: str, body: object, param: str) -> None:
    status, error = live.refusal(path, body)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template"])
def test_an_unknown_model_is_a_404(live: Live, path: str) -> None:
    body = {"model": "x", "content": "a", "tokens": [1], "messages": [{"role": "user", "content": "a"}]}
    status, error = live.refusal(path, body)
    assert (status, error["code"]) == (404, "model_not_found")
