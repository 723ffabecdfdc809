from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tierd.errors import InvalidRequestError
from tierd.http.responses.draft import names, response_of
from tierd.http.responses.input import messages, read_input, recall
from tierd.http.responses.requests import ItemGiven
from tierd.http.responses.shapes import OutputMessage, OutputText
from tierd.http.responses.store import Kept

OLD = OutputMessage(id="msg_old", content=[OutputText(text="old")])
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "dark"}


def read(items: Any) -> Any:
    given = msgspec.json.decode(msgspec.json.encode(items), type=str | list[ItemGiven])
    return read_input(given, names("q"), {"msg_old": OLD}.get)


def said(items: Any, instructions: str | None = None) -> list[dict[str, object]]:
    return messages(instructions, (), read(items))


def test_a_text_is_a_message_of_the_user() -> None:
    assert said("hi") == [{"role": "user", "content": "hi"}]


def test_system_messages_at_the_beginning_are_one() -> None:
    items = [
        {"role": "developer", "content": "Rhyme."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"type": "message", "role": "system", "content": "No more rhymes."},
    ]
    assert said(items, "Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nRhyme."},
        {"role": "user", "content": "a\nb"},
        {"role": "system", "content": "No more rhymes."},
    ]


def test_what_the_model_did_in_a_turn_is_one_message() -> None:
    items = [
        {"role": "user", "content": "look"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        CALL,
        CALL | {"call_id": "c2"},
        OUTPUT,
        OUTPUT | {"call_id": "c2", "output": [{"type": "input_text", "text": "light"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "encrypted_content": None},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "It is dark."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No more."}]},
    ]
    function = {"name": "look", "arguments": "{}"}
    assert said(items) == [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "content": "dark", "tool_call_id": "c1"},
        {"role": "tool", "content": "light", "tool_call_id": "c2"},
        {"role": "assistant", "content": "It is dark.", "reasoning_content": "so"},
        {"role": "assistant", "content": "No more."},
    ]


def test_an_empty_thought_says_nothing() -> None:
    user = {"role": "user", "content": "a"}
    assert said([user, {"type": "reasoning", "summary": [], "content": None}, user]) == [user, user]


def test_items_are_kept_as_they_were() -> None:
    items = read(
        [
            {"role": "user", "content": "look", "id": "msg_mine"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            CALL | {"status": "incomplete"},
            OUTPUT,
            {"role": "assistant", "content": "dark"},
        ]
    )
    assert [item.id for item in items] == ["msg_mine", "rs_q0000", "fc_q0001", "fco_q0002", "msg_q0003"]
    assert items[2].status == "incomplete"
    response = msgspec.json.encode({"output": items[3:]})
    assert recall(Kept("resp_a", response, msgspec.json.encode(items[:3]))) == items


def test_an_item_may_be_named() -> None:
    assert read([{"type": "item_reference", "id": "msg_old"}]) == [OLD]
    assert response_of(names("0" * 32)("msg")) == "resp_" + "0" * 32
    for other in ("msg_mine", "msg_" + "0" * 32, "resp_" + "x" * 36):
        assert response_of(other) is None


def test_an_output_follows_its_call() -> None:
    before = read([CALL])
    assert len(messages(None, before, read([OUTPUT]))) == 2
    with pytest.raises(InvalidRequestError) as caught:
        messages(None, before, read([CALL | {"call_id": "c2"}, OUTPUT | {"call_id": "c3"}]))
    assert caught.value.param == "input[1].call_id"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user"}, "input[0].content"),
        ({"content": "x"}, "input[0].role"),
        ({"role": "nobody", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "input[0].content[0].refusal"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].id"),
        ({"type": "item_reference"}, "input[0].id"),
        ({"type": "computer_call"}, "input[0].type"),
        (CALL | {"name": None}, "input[0].name"),
        (CALL | {"call_id": None}, "input[0].call_id"),
        (CALL | {"arguments": None}, "input[0].arguments"),
        (OUTPUT | {"output": None}, "input[0].output"),
        (OUTPUT | {"output": [{"type": "input_file"}]}, "input[0].output[0].type"),
    ],
)
def test_what_is_wrong_is_named(item: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        said([item])
    assert caught.value.param == param
    assert str(caught.value).startswith(param)
