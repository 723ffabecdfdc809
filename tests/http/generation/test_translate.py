from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.null_slot import null_slot
from tierd.core import SamplingParams
from tierd.engine import CatalogueEntry
from tierd.engine.catalogue import describe
from tierd.errors import ContextLengthExceededError, InvalidRequestError
from tierd.http.generation import translate
from tierd.http.requests import ChatBody, CompletionBody
from tierd.settings import LimitsSettings, ModelSettings

DEFAULTS = SamplingParams(
    repeat_penalty=1.1,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    penalty_window=64,
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
)


def entry(**limits: int) -> CatalogueEntry:
    slot = null_slot(
        ModelSettings(id="m", path=Path("m.gguf")), limits=LimitsSettings(**limits), pages=25, context=100
    )
    return describe(slot)


MODEL = replace(entry(), sampling=DEFAULTS)


def body(**fields: object) -> CompletionBody:
    return CompletionBody(prompt="a", **fields)


def test_a_silent_request_gets_the_models_defaults() -> None:
    assert replace(translate.sampling(body(), MODEL), seed=0) == DEFAULTS


def test_a_request_has_the_last_word() -> None:
    off = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repeat_last_n": -1}
    asked = body(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=3, **off)
    assert translate.sampling(asked, MODEL) == SamplingParams(temperature=0.0, seed=3)


def test_choices_are_at_most_the_models_streams() -> None:
    two = replace(MODEL, streams=2)
    assert [translate.choices(body(n=n), two) for n in (None, 1, 2)] == [1, 1, 2]
    with pytest.raises(InvalidRequestError, match=r"^n: 3; 'm' has 2 streams, so at most that many") as fault:
        translate.choices(body(n=3), two)
    assert fault.value.param == "n"


def test_top_k_of_minus_one_keeps_all() -> None:
    assert translate.sampling(body(top_k=-1), MODEL).top_k == 0


def test_the_window_is_llama_cpps() -> None:
    assert translate.sampling(body(repeat_last_n=5), MODEL).penalty_window == 5
    assert translate.sampling(body(repeat_last_n=5), MODEL).repeat_penalty == 1.1
    assert translate.sampling(body(repeat_last_n=-1), MODEL).penalty_window == 0
    assert not translate.sampling(body(repeat_last_n=0, repeat_penalty=2.0), MODEL).penalises


def test_a_bias_is_by_ids_in_order() -> None:
    assert translate.sampling(body(logit_bias={"25": -100, "3": 0.5}), MODEL).logit_bias == (
        (3, 0.5),
        (25, -100),
    )
    assert translate.sampling(body(logit_bias={}), MODEL).logit_bias == ()


@pytest.mark.parametrize(
    "key", ["258", "-1", "+1", " 1", "1 ", "01", "1.0", "1e1", "", "x", "\u0661", "9" * 11]
)
def test_what_is_no_token_has_no_bias(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="0 to 257") as refused:
        translate.sampling(body(logit_bias={"0": 1, key: 1}), MODEL)
    assert refused.value.param == "logit_bias"


def test_what_is_allowed_is_a_bit_for_each_token() -> None:
    mask = translate.sampling(body(allowed_token_ids=[257, 3, 32, 3]), MODEL).allowed
    assert mask is not None
    assert [id for id in range(258) if id in mask] == [3, 32, 257]
    assert mask.words.size == 9
    assert translate.sampling(body(), MODEL).allowed is None


@pytest.mark.parametrize(
    ("ids", "param", "message"),
    [
        ([], "allowed_token_ids", "empty; allow at least one, or leave it out"),
        ([0, 258], "allowed_token_ids[1]", "258 is not a token; this model's run from 0 to 257"),
        ([-1], "allowed_token_ids[0]", "-1 is not a token"),
        ([10**30], "allowed_token_ids[0]", "is not a token"),
        ([1] * 259, "allowed_token_ids", "259 tokens; this model has 258"),
    ],
)
def test_what_is_no_token_cannot_be_allowed(ids: list[int], param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        translate.sampling(body(allowed_token_ids=ids), MODEL)
    assert refused.value.param == param


def test_log_probabilities_are_asked_for_in_two_ways() -> None:
    assert translate.top_logprobs(body()) is None
    assert translate.top_logprobs(body(logprobs=0)) == 0
    assert translate.top_logprobs(body(logprobs=5)) == 5
    assert translate.top_logprobs(ChatBody(messages=[])) is None
    assert translate.top_logprobs(ChatBody(messages=[], logprobs=True)) == 0
    assert translate.top_logprobs(ChatBody(messages=[], logprobs=True, top_logprobs=4)) == 4
    assert translate.top_logprobs(ChatBody(messages=[], logprobs=False, top_logprobs=0)) is None


@pytest.mark.parametrize(
    ("seed", "bits"), [(0, 0), (-1, 2**64 - 1), (-(2**63), 2**63), (2**63 - 1, 2**63 - 1)]
)
def test_a_signed_seed_is_64_bits(seed: int, bits: int) -> None:
    assert translate.sampling(body(seed=seed), MODEL).seed == bits


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_of_more_bits_is_refused(seed: int) -> None:
    with pytest.raises(InvalidRequestError, match="64-bit") as refused:
        translate.sampling(body(seed=seed), MODEL)
    assert refused.value.param == "seed"


def test_a_silent_seed_differs_from_call_to_call() -> None:
    assert translate.sampling(body(), MODEL).seed != translate.sampling(body(), MODEL).seed


@pytest.mark.parametrize(
    ("prompt", "asked", "limits", "tokens"),
    [
        (10, None, {}, 90),
        (99, None, {}, 1),
        (10, 90, {}, 90),
        (10, None, {"max_output_tokens": 20}, 20),
        (90, None, {"max_output_tokens": 20}, 10),
        (10, 20, {"max_output_tokens": 20}, 20),
        (50, 1, {"max_prompt_tokens": 50}, 1),
    ],
)
def test_the_budget_is_what_was_asked_for_or_what_is_left(
    prompt: int, asked: int | None, limits: dict[str, int], tokens: int
) -> None:
    assert translate.budget(entry(**limits), prompt, (asked, "max_tokens"), "prompt") == tokens


@pytest.mark.parametrize(
    ("prompt", "asked", "numbers"),
    [(10, 91, ("100", "101")), (100, None, ("100", "101")), (500, 7, ("100", "507"))],
)
def test_what_does_not_fit_is_refused_with_both_numbers(
    prompt: int, asked: int | None, numbers: tuple[str, str]
) -> None:
    with pytest.raises(ContextLengthExceededError) as refused:
        translate.budget(entry(max_output_tokens=100), prompt, (asked, "max_tokens"), "prompt")
    assert all(re.search(rf"\b{number}\b", str(refused.value)) for number in numbers)


def test_the_operators_caps_are_named() -> None:
    with pytest.raises(ContextLengthExceededError, match=r"51 tokens.* 50"):
        translate.budget(entry(max_prompt_tokens=50), 51, (None, "max_tokens"), "messages")
    with pytest.raises(InvalidRequestError, match=r"max_tokens: 21; .* 20") as refused:
        translate.budget(entry(max_output_tokens=20), 1, (21, "max_tokens"), "messages")
    assert refused.value.param == "max_tokens"


def test_both_names_of_the_budget_are_understood() -> None:
    assert translate.asked_tokens(ChatBody(messages=[])) == (None, "max_tokens")
    assert translate.asked_tokens(ChatBody(messages=[], max_tokens=3)) == (3, "max_tokens")
    both = ChatBody(messages=[], max_completion_tokens=3, max_tokens=3)
    assert translate.asked_tokens(both) == (3, "max_completion_tokens")
    with pytest.raises(InvalidRequestError, match="max_completion_tokens"):
        translate.asked_tokens(ChatBody(messages=[], max_completion_tokens=3, max_tokens=4))
