"""Calls of tools found in answers, and what models are told of tools."""

from __future__ import annotations

import pytest

from chat.replies import call, harmony, read, tagged
from tierd.chat.calls import LLAMA3, MISTRAL, MISTRAL_LIST, CallSyntax
from tierd.chat.heads import UNSURE, Head, read_named, read_object
from tierd.chat.reply import Arguments, Piece, Said, Thought
from tierd.chat.tools import Tool, generic, is_shallow, native

NAMES = ("look", "clock")


def reads(text: str, calls: CallSyntax | None = None, **options: object) -> list[Piece]:
    """Return the pieces of an answer, the same whole and letter by letter."""
    syntax = {} if calls is None else {"calls": calls}

    def make() -> list[Piece]:
        return read(tagged(tools=NAMES, **syntax, **options), text)

    pieces = read(tagged(tools=NAMES, **syntax, **options), [text])
    assert make() == pieces
    return pieces


def test_a_call_and_what_is_around_it() -> None:
    me = '<tool_call>\n{"name": "look", "arguments": {"at": "me"}}\n</tool_call>'
    assert reads(me) == call(0, "look", '{"at": "me"}')
    assert reads(f"See: \n{me}\n") == [Said("See:"), *call(0, "look", '{"at": "me"}')]
    assert reads(f"<think>hm</think>\n{me}") == [Thought("hm"), *call(0, "look", '{"at": "me"}')]
    assert reads(f"{me}\nDone.") == [*call(0, "look", '{"at": "me"}'), Said("Done.")]
    second = me.replace('"me"', '"you"')
    both = [*call(0, "look", '{"at": "me"}'), *call(1, "look", '{"at": "you"}')]
    assert reads(f"{me}\n{second}") == reads(f"{me}{second}") == both
    assert reads(f"{me}\n{second}", parallel=False) == both[:2]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "look", "arguments": {}}', "{}"),
        ('{"name":"look","arguments":{"a":[1,{"b":"}"}]}}', '{"a":[1,{"b":"}"}]}'),
        ('{"name": "look", "parameters": {"a": "</tool_call>"}}', '{"a": "</tool_call>"}'),
        ('{"type": "function", "name": "look", "arguments": {"a": "\\"}"}}', '{"a": "\\"}"}'),
        ('{"arguments": {"a": 1}, "name": "look"}', '{"a": 1}'),
        (
            '{"arguments": {"a": "' + "x" * 3000 + '"}, "id": "7", "name": "look"}',
            '{"a": "' + "x" * 3000 + '"}',
        ),
        ('{"name": "look", "arguments": {"a": 1}, "id": "x", "more": {"b": []}}', '{"a": 1}'),
        ('{"name": "look"}', "{}"),
        ('{"name": "lo\\u006fk", "arguments": {}}', "{}"),
        # From its arguments on it is a call, whatever comes.
        ('{"name": "look", "arguments": {"a": nothing', '{"a": nothing\n'),
        ('{"name": "look", "arguments": {nonsense}}', "{nonsense}"),
    ],
)
def test_calls(body: str, arguments: str) -> None:
    assert reads(f"<tool_call>\n{body}\n</tool_call>") == call(0, "look", arguments)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "look at me",
        "{}",
        '{"name": "listen", "arguments": {}}',
        '{"name": "look", "arguments": "{}"}',
        '{"name": {}, "arguments": {}}',
        '{"name": "look" "arguments": {}}',
        '{"name": "look\n", "arguments": {}}',
        '{"arguments": {no}, "name": "look"}',
        '{"arguments": {}}',
        '["look"]',
        '{"name": look}',
    ],
)
def test_no_calls(body: str) -> None:
    text = f"So: <tool_call>{body}</tool_call> Well."
    assert reads(text) == [Said(text)]


def test_what_never_becomes_a_call_is_text() -> None:
    for text in (
        "<tool_call>",
        "<tool_call>\n{",
        '<tool_call>{"name": "look"',
        "a <tool_",
        " <tool_call> \n",
    ):
        assert reads(text) == [Said(text)]
    cut = '<tool_call>{"name": "look", "arguments": {"at": "m'
    assert reads(cut) == call(0, "look", '{"at": "m')


def test_llama_answers_with_json_alone() -> None:
    one = '{"name": "look", "parameters": {"at": "me"}}'
    two = '{"name": "clock", "parameters": {}}'
    assert reads(one, LLAMA3) == reads(f"\n <|python_tag|>{one}", LLAMA3) == call(0, "look", '{"at": "me"}')
    assert reads(f"{one}; {two}", LLAMA3) == [*call(0, "look", '{"at": "me"}'), *call(1, "clock", "{}")]
    assert reads(f"So: {one}", LLAMA3) == [Said(f"So: {one}")]
    for text in ('{"at": "me"}', "{", ' {"name": "listen", "parameters": {}}'):
        assert reads(text, LLAMA3) == [Said(text)]


def test_mistral_lists_calls_or_names_them() -> None:
    listed = (
        '[{"name": "look", "arguments": {"at": "me"}, "id": "123456789"}, {"name": "clock", "arguments": {}}]'
    )
    both = [*call(0, "look", '{"at": "me"}'), *call(1, "clock", "{}")]
    assert reads(f"See.\n[TOOL_CALLS]{listed}", MISTRAL_LIST) == [Said("See."), *both]
    named = '[TOOL_CALLS]look[ARGS]{"at": "me"}[TOOL_CALLS]clock[CALL_ID]a1[ARGS]{}'
    assert reads(named, MISTRAL) == both
    assert reads('[TOOL_CALLS]look{"at": "me"}', MISTRAL) == both[:2]
    for text in (
        "[TOOL_CALLS]",
        "[TOOL_CALLS]look at me",
        "[TOOL_CALLS]listen[ARGS]{}",
        "[TOOL_CALLS]look[ARGS]",
    ):
        assert reads(text, MISTRAL) == [Said(text)]


def test_harmony_calls_only_what_there_is() -> None:
    text = "<|channel|>commentary to=functions.listen<|message|>{}<|call|>"
    assert read(harmony(NAMES), text) == [Said("{}")]
    twice = text.replace("listen", "look") * 2
    assert read(harmony(NAMES), twice) == [*call(0, "look", "{}"), *call(1, "look", "{}")]
    assert read(harmony(NAMES, parallel=False), twice) == call(0, "look", "{}")


def test_heads_are_read_up_to_the_arguments() -> None:
    assert read_object('{"name": "f", "arguments": {') == Head("f", 27, 1)
    assert read_named('f[ARGS]{"a"') == Head("f", 7, 0)
    assert read_named('[{"name": "f", "arguments": {') == Head("f", 28, 1)
    for text in (
        "",
        " ",
        "{",
        '{"na',
        '{"name"',
        '{"name": ',
        '{"name": "f',
        '{"name": "f", ',
        '{"arguments": {"a": ',
    ):
        assert read_object(text) == UNSURE
    for text in ("", " f", "f[ARGS", "[", "f[CALL_ID]a"):
        assert read_named(text) == UNSURE


def test_arguments_come_as_they_are_written() -> None:
    parser = tagged(tools=NAMES)
    head = list(parser.push('<tool_call>{"name": "look", "arguments": {'))
    assert head == [*call(0, "look", "{")]
    assert parser.push('"at": ') == [Arguments(0, '"at": ')]
    assert parser.push('"me"}}</tool') == [Arguments(0, '"me"}')]
    assert parser.push("_call>") == []
    assert parser.finish() == []


LOOK = Tool(name="look", description="Looks.", parameters={"properties": {"at": {"type": "string"}}})
CALLS = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "me"}'}}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": "So:", "tool_calls": CALLS, "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "a face"},
    {"role": "tool", "tool_call_id": "c2", "content": "a nose"},
]


def test_a_tool_as_templates_take_it() -> None:
    assert LOOK.told() == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {"properties": {"at": {"type": "string"}}, "type": "object"},
        },
    }
    assert Tool(name="f").told()["function"] == {
        "name": "f",
        "parameters": {"type": "object", "properties": {}},
    }


def test_arguments_without_a_name_are_not_made_up() -> None:
    assert LOOK.closed_schema["additionalProperties"] is False
    open_ended = Tool(name="f", parameters={"additionalProperties": {"type": "string"}})
    assert open_ended.closed_schema == open_ended.schema
    assert "additionalProperties" not in Tool(name="f", parameters={"$ref": "#/x"}).closed_schema


def test_messages_of_a_template_that_knows_tools() -> None:
    told = native(TALK, objects=True, several=True, thoughts="thinking")
    assert told[2] == {
        "role": "assistant",
        "content": "So:",
        "thinking": "hm",
        "tool_calls": [{**CALLS[0], "function": {"name": "look", "arguments": {"at": "me"}}}],
    }
    assert told[3] == {"role": "tool", "tool_call_id": "c1", "content": "a face", "name": "look"}
    assert "name" not in told[4]
    as_text = native(TALK, objects=False, several=True, thoughts="")
    assert as_text[2] == {"role": "assistant", "content": "So:", "tool_calls": CALLS}
    assert TALK[2]["reasoning_content"] == "hm"


def called(*ids: str) -> dict[str, object]:
    calls = [{"id": id, "type": "function", "function": {"name": f"f{id}", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": "So:", "tool_calls": calls}


def result(id: str, content: str = "") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": id, "content": content or f"of {id}"}


def test_results_come_in_the_order_of_their_calls() -> None:
    user = {"role": "user", "content": "And?"}
    talk = [
        called("a", "b", "c"), result("c"), result("x"), result("a"), result("b"), user,
        called("b", "a"), result("a"), result("b"), result("b", "more"),
    ]  # fmt: skip
    told = native(talk, objects=True, several=True, thoughts="")
    order = ["a", "b", "c", "x", "b", "a"]
    assert [message["content"] for message in told if message["role"] == "tool"] == [
        *(f"of {id}" for id in order[:5]), "of a", "more"
    ]  # fmt: skip
    assert [message.get("name") for message in told[1:5]] == ["fa", "fb", "fc", None]
    first = generic(talk, [], parallel=True, system=True, thoughts="")[1]
    assert str(first["content"]).index("of a") < str(first["content"]).index("of c")


def test_calls_of_one_message_are_told_one_by_one_where_a_template_knows_no_several() -> None:
    talk = [called("a", "b", "c"), result("c"), result("a"), result("x"), called("d"), result("d")]
    told = native(talk, objects=True, several=False, thoughts="")
    assert [
        (message["content"], *(call["id"] for call in message.get("tool_calls", ())))  # type: ignore[attr-defined]
        for message in told
    ] == [("So:", "a"), ("of a",), ("", "b"), ("", "c"), ("of c",), ("of x",), ("So:", "d"), ("of d",)]
    assert [message.get("name") for message in told if message["role"] == "tool"] == ["fa", "fc", None, "fd"]


def test_arguments_that_are_no_json_are_told_as_they_are() -> None:
    for text, arguments in (
        ("", {}),
        ('{"at": "m', {"raw_arguments": '{"at": "m'}),
        ('["me"]', {"raw_arguments": '["me"]'}),
        ("[" * 100_000, {"raw_arguments": "[" * 100_000}),
        ('{"a": ' * 70 + "1" + "}" * 70, {"raw_arguments": '{"a": ' * 70 + "1" + "}" * 70}),
    ):
        call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": text}}
        talk = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        (told,) = native(talk, objects=True, several=True, thoughts="")
        assert told["tool_calls"] == [{**call, "function": {"name": "look", "arguments": arguments}}]
        assert native(talk, objects=False, several=True, thoughts="")[0]["tool_calls"] == [call]


def test_calls_alone_may_have_null_for_their_text() -> None:
    talk = [called("a"), called("a") | {"content": ""}]
    for nulls, silent in ((True, None), (False, "")):
        told = native(talk, objects=True, several=True, thoughts="", nulls=nulls)
        assert [message["content"] for message in told] == ["So:", silent]


def test_a_thought_gives_way_to_text_where_a_template_takes_one_of_them() -> None:
    thought = called("a") | {"reasoning_content": "hm"}
    silent = thought | {"content": ""}
    told = native([thought, silent], objects=True, several=True, thoughts="thinking", beside=False)
    assert ["thinking" in message for message in told] == [False, True]


def test_messages_of_one_that_does_not() -> None:
    told = generic(TALK, [LOOK], parallel=True, system=True, thoughts="")
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert str(told[0]["content"]).startswith("Be brief.\n\nYou may call functions.")
    assert '"description": "Looks."' in str(told[0]["content"])
    assert told[2]["content"] == (
        'So:\n<tool_call>\n{"name": "look", "arguments": {"at": "me"}}\n</tool_call>'
    )
    assert told[3]["content"] == (
        "<tool_response>\na face\n</tool_response>\n<tool_response>\na nose\n</tool_response>"
    )
    assert all(set(message) == {"role", "content"} for message in told)
    assert TALK[0]["content"] == "Be brief."


def test_what_the_user_says_behind_results_is_one_message_with_them() -> None:
    more = [*TALK, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Well."}]
    told = generic(more, [], parallel=True, system=True, thoughts="")
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user", "assistant"]
    assert str(told[3]["content"]).endswith("a nose\n</tool_response>\nAnd?")
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert generic(twice, [], parallel=True, system=True, thoughts="") == twice


def test_tools_are_told_where_a_template_lets_them_be() -> None:
    bare = [{"role": "user", "content": "Look."}]
    (first, _) = generic(bare, [LOOK], parallel=True, system=True, thoughts="")
    assert first["role"] == "system"
    (only,) = generic(bare, [LOOK], parallel=True, system=False, thoughts="")
    assert str(only["content"]).endswith("in plain words.\n\nLook.")
    (alone,) = generic([], [LOOK], parallel=True, system=False, thoughts="")
    assert alone["role"] == "user"
    assert generic(bare, [], parallel=True, system=True, thoughts="") == bare


def test_how_deep_json_is() -> None:
    def nested(levels: int) -> object:
        return [nested(levels - 1)] if levels else {"a": 1}

    assert is_shallow(nested(63))
    assert not is_shallow(nested(65))
    assert is_shallow("text")
