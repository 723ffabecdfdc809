"""Answers that obey what a request's fields say, on a live server, and what is refused of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from live import Live
from schemas import COUNT, record

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = record(größe=COUNT, mood={"enum": ["😀", "😡"]})
NAMED = {"name": "answer"}
CHOICES = ["yes", "no", "vielleicht ü"]
GBNF = 'root ::= "a" tail\ntail ::= [b-d] | "é"'
LARK = 'start: "a" tail\ntail: /[b-d]/ | "é"'


def _is_answer(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"größe", "mood"} and 0 <= value["größe"] <= 100 and value["mood"] in ("😀", "😡")


def _is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


Obeys = Callable[[str], object]
IS_TAIL = re.compile("a[b-dé]").fullmatch
IS_WORD = re.compile("[a-c]{3}!").fullmatch
IS_CHOICE: Obeys = CHOICES.__contains__
FIELDS: dict[str, tuple[dict[str, Any], Obeys]] = {
    "a schema": (
        {"response_format": {"type": "json_schema", "json_schema": NAMED | {"schema": SCHEMA}}},
        _is_answer,
    ),
    "a schema beside its type": ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, _is_answer),
    "an object of a schema": ({"response_format": {"type": "json_object", "schema": SCHEMA}}, _is_answer),
    "llama.cpp's schema": ({"json_schema": SCHEMA}, _is_answer),
    "llama.cpp's grammar": ({"grammar": GBNF}, IS_TAIL),
    "llama.cpp's grammar in Lark": ({"grammar": LARK}, IS_TAIL),
    "guided by a schema": ({"guided_json": SCHEMA}, _is_answer),
    "guided by a spelled schema": ({"guided_json": json.dumps(SCHEMA)}, _is_answer),
    "guided by an expression": ({"guided_regex": "[a-c]{3}!"}, IS_WORD),
    "guided by choices": ({"guided_choice": CHOICES}, IS_CHOICE),
    "guided by a grammar": ({"guided_grammar": LARK}, IS_TAIL),
    "guided by llama.cpp's grammar": ({"guided_grammar": GBNF}, IS_TAIL),
    "structured: schema": ({"structured_outputs": {"json": SCHEMA}}, _is_answer),
    "structured: spelled schema": ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, _is_answer),
    "structured: expression": ({"structured_outputs": {"regex": "[a-c]{3}!"}}, IS_WORD),
    "structured: choices": ({"structured_outputs": {"choice": CHOICES, "regex": None}}, IS_CHOICE),
    "structured: grammar": ({"structured_outputs": {"grammar": GBNF}}, IS_TAIL),
}  # fmt: skip
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    TEXT: {"prompt": "hello"},
}


def texts(live: Live, path: str, **fields: object) -> list[tuple[str, str]]:
    """Return each choice's text and why it has ended."""
    body = PROMPTS[path] | {"temperature": 1.0, "seed": 3, "max_tokens": 200} | fields
    response = live.post(path, body)
    assert response.status_code == 200, response.text
    return [
        (choice["message"]["content"] if path == CHAT else choice["text"], choice["finish_reason"])
        for choice in response.json()["choices"]
    ]


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("case", FIELDS)
def test_answers_obey(live: Live, path: str, case: str) -> None:
    fields, obeys = FIELDS[case]
    found = texts(live, path, n=3, ignore_eos=case.startswith("guided"), **fields)
    assert [reason for _, reason in found] == ["stop"] * 3
    for text, _ in found:
        assert obeys(text), text


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None, "grammar": "", "json_schema": None, "guided_json": None},
        {"structured_outputs": {"json_object": False, "whitespace_pattern": None}},
    ],
    ids=str,
)
def test_what_leaves_the_answer_free(live: Live, fields: dict[str, object]) -> None:
    given = {"max_tokens": 20, "ignore_eos": True, "temperature": 0}
    assert texts(live, TEXT, **given, **fields) == texts(live, TEXT, **given)


def test_an_object_that_is_cut_off(live: Live) -> None:
    ((text, reason),) = texts(live, CHAT, response_format={"type": "json_object"}, max_tokens=2)
    assert (text[0], reason) == ("{", "length")
    ((text, reason),) = texts(
        live, TEXT, structured_outputs={"json_object": True}, logit_bias={}, max_tokens=250
    )
    assert reason == "length" or _is_object(text)


def test_a_stream_of_choices(live: Live) -> None:
    stream = live.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        stream=True,
        n=4,
        temperature=1,
        seed=5,
        extra_body={"guided_choice": CHOICES},
    )
    found = dict.fromkeys(range(4), "")
    for chunk in stream:
        for choice in chunk.choices:
            found[choice.index] += choice.delta.content or ""
    assert set(found.values()) <= set(CHOICES)
    assert len(set(found.values())) > 1


def test_the_official_client_parses_what_it_asks_for(live: Live) -> None:
    class Pet(BaseModel):
        lives: int
        kind: bool | None

    with live.client() as client:
        answer = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            response_format=Pet,
            temperature=1,
            seed=2,
            logit_bias={},
            max_tokens=200,
            extra_body={"top_k": 3},
        )
    assert isinstance(answer.choices[0].message.parsed, Pet)


OPENAI = "response_format.json_schema"


def of_schema(wanted: object, **fields: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": wanted} | fields}


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize(
    ("fields", "param", "complaint"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "use text, json_object, json_schema"),
        ({"response_format": {}}, "response_format.type", "missing"),
        ({"response_format": "json"}, "response_format", "expected `object"),
        (of_schema(None), "response_format.json_schema", "missing"),
        (of_schema(NAMED), f"{OPENAI}.schema", "missing"),
        (of_schema({"schema": 3}), f"{OPENAI}.schema", "must be an object"),
        (of_schema({"schema": {"not": {}}}), f"{OPENAI}.schema", "not supported: not"),
        (of_schema(None, schema={"type": "strin"}), "response_format.schema", "Invalid type"),
        ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json", "does not exist"),
        ({"guided_json": "{"}, "guided_json", "Expecting"),
        ({"guided_json": True}, "guided_json", "must be an object"),
        ({"json_schema": []}, "json_schema", "must be an object"),
        ({"guided_regex": "("}, "guided_regex", "unclosed group"),
        ({"guided_regex": 3}, "guided_regex", "expected `str"),
        ({"guided_choice": []}, "guided_choice", "empty"),
        ({"guided_choice": "yes"}, "guided_choice", "expected `array"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "not found"),
        ({"grammar": "nonsense here"}, "grammar", "Expected token"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"structural_tag": ""}}, "structured_outputs.structural_tag", "not"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "not together with"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "not together with guided_json"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
        ({"guided_choice": ["a"], "allowed_token_ids": [5]}, "allowed_token_ids", "leaves none"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_refusals(live: Live, path: str, fields: dict[str, object], param: str, complaint: str) -> None:
    status, error = live.refusal(path, PROMPTS[path] | fields)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert complaint in error["message"]
    assert error["message"].startswith(param)


def test_a_refusal_by_the_official_client(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match=r"guided_regex: .*unclosed group"):
        live.client().completions.create(model="tiny", prompt="a", extra_body={"guided_regex": "("})
