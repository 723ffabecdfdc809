"""What the body of a message asks for, and what of it is refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tierd.chat.grammar import Source
from tierd.errors import InvalidRequestError
from tierd.http.body import decode
from tierd.http.messages.requests import ConversationBody, MessagesBody
from tierd.http.messages.turn import read_conversation, read_turn
from tierd.http.turns.turn import Turn

DECODER = msgspec.json.Decoder(MessagesBody)
USER = {"role": "user", "content": "hi"}
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"at": {}}}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "é", "n": [1]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a face"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


def assistant(*blocks: dict[str, Any]) -> dict[str, object]:
    return {"role": "assistant", "content": [*blocks]}


def user(*blocks: dict[str, Any]) -> dict[str, object]:
    return {"role": "user", "content": [*blocks]}


def deep(levels: int) -> dict[str, object]:
    return {"a": deep(levels - 1)} if levels else {}


def turn_of(**fields: Any) -> Turn:
    body = {"model": "m", "max_tokens": 2000, "messages": [USER]} | fields
    return read_turn(decode(json.dumps(body).encode(), DECODER))


def messages_of(*messages: dict[str, object], **fields: Any) -> list[Any]:
    return [*turn_of(messages=[*messages], **fields).messages]


def test_a_plain_message_is_a_plain_turn() -> None:
    turn = turn_of()
    assert turn.messages == [USER]
    assert turn.generation.model == "m"
    assert (turn.max_tokens, turn.tokens_field) == (2000, "max_tokens")
    assert (turn.tools, turn.tool_choice, turn.parallel_tool_calls) == ((), "auto", True)
    assert (turn.format, turn.thinking, turn.effort, turn.continues) == (None, None, None, False)
    assert turn.thought_tokens is None


def test_how_to_sample_is_handed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "ignore_eos": True}
    generation = turn_of(stop_sequences=["a", " "], priority=4, **fields).generation
    assert {name: getattr(generation, name) for name in fields} == fields
    assert (generation.stop, generation.priority) == (["a", " "], 4)


def test_what_is_about_other_things_passes() -> None:
    turn = turn_of(
        system=[text("Be.") | {"cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "me"},
        service_tier="auto",
        speed="fast",
        inference_geo="here",
        cache_control={"type": "ephemeral"},
        diagnostics={"previous_message_id": None},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        tools=[LOOK | {"cache_control": None, "eager_input_streaming": True, "strict": True}],
        unheard_of=1,
    )
    assert turn.messages == [{"role": "system", "content": "Be."}, USER]


def test_the_system_prompt_comes_first() -> None:
    first = {"role": "system", "content": "Be brief."}
    assert messages_of(USER, system="Be brief.") == [first, USER]
    blocks = [text("Be brief."), text("Be kind.")]
    assert messages_of(USER, system=blocks)[0] == {"role": "system", "content": "Be brief.\nBe kind."}
    assert messages_of(USER, system="") == messages_of(USER, system=[]) == [USER]
    assert messages_of(USER, {"role": "system", "content": "Hush."})[1]["role"] == "system"


def test_neighbours_of_a_role_are_one_message() -> None:
    assert messages_of(
        USER, user(text("you"), text("there")), assistant(text("a")), assistant(text("b"))
    ) == [
        {"role": "user", "content": "hi\nyou\nthere"},
        {"role": "assistant", "content": "a\nb"},
    ]
    assert messages_of(user()) == [{"role": "user", "content": ""}]


def test_calls_thoughts_and_results_become_openais() -> None:
    asked = assistant({"type": "thinking", "thinking": "hm", "signature": "x"}, text("Let me."), CALL)
    other = CALL | {"id": "toolu_2", "input": {}}
    failed = {
        "type": "tool_result",
        "tool_use_id": "toolu_2",
        "is_error": True,
        "content": [text("no"), text("go")],
    }
    found = messages_of(USER, asked, assistant(other), user(RESULT, failed, text("And?")))
    assert found[1:] == [
        {
            "role": "assistant",
            "content": "Let me.",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": "é", "n": [1]}'},
                },
                {"id": "toolu_2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "a face"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no\ngo"},
        {"role": "user", "content": "And?"},
    ]


def test_a_result_may_be_empty() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    assert messages_of(USER, assistant(CALL), user(result))[2]["content"] == ""


def test_thoughts_without_text_are_left_out() -> None:
    omitted = {"type": "thinking", "thinking": "", "signature": "x"}
    encrypted = {"type": "redacted_thinking", "data": "x"}
    for thought in (omitted, encrypted):
        assert messages_of(USER, assistant(thought, text("a")))[1] == {"role": "assistant", "content": "a"}


def test_the_answer_goes_on_from_a_last_message_of_the_assistant() -> None:
    turn = turn_of(messages=[USER, assistant(text("It is "))])
    assert turn.continues
    assert turn.messages[-1] == {"role": "assistant", "content": "It is "}


def test_tools_and_the_choice_among_them() -> None:
    turn = turn_of(
        tools=[LOOK | {"type": "custom", "input_examples": [{"at": 1}]}, LOOK | {"name": "L" * 128}]
    )
    look, _ = turn.tools
    assert (look.name, look.description) == ("look", "Looks.")
    assert look.parameters == LOOK["input_schema"] | {"examples": [{"at": 1}]}  # type: ignore[operator]
    for choice, expected in {"auto": "auto", "any": "required", "none": "none"}.items():
        assert turn_of(tools=[LOOK], tool_choice={"type": choice}).tool_choice == expected
    named = turn_of(
        tools=[LOOK], tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    )
    assert (named.tool_choice, named.parallel_tool_calls) == ("look", False)


def test_thinking_is_asked_for_left_open_or_off() -> None:
    enabled = turn_of(thinking={"type": "enabled", "budget_tokens": 1024})
    assert (enabled.thinking, enabled.thought_tokens) == (True, 1024)
    assert turn_of(thinking={"type": "adaptive", "display": "summarized"}).thinking is None
    assert turn_of(thinking={"type": "disabled"}, messages=[USER, assistant(text("a"))]).thinking is False


def test_what_the_answer_must_obey() -> None:
    config = {"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}}
    turn = turn_of(output_config=config)
    assert turn.format == Source("json_schema", json.dumps(SCHEMA), "output_config.format.schema")
    assert turn.effort == "max"


def test_counting_needs_no_max_tokens() -> None:
    body = json.dumps({"model": "m", "messages": [USER], "tools": [LOOK]}).encode()
    turn = read_conversation(decode(body, msgspec.json.Decoder(ConversationBody)))
    assert turn.messages == [USER]
    assert [tool.name for tool in turn.tools] == ["look"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 7}]}, "messages[1].content"),
        ({"messages": [user({"text": "hi"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user(text("a"), {"type": "image", "source": {}})]}, "messages[0].content[1].type"),
        ({"messages": [user({"type": "document", "source": {}})]}, "messages[0].content[0].type"),
        ({"messages": [user(CALL)]}, "messages[0].content[0].type"),
        ({"messages": [assistant(RESULT), USER]}, "messages[0].content[0].type"),
        (
            {"messages": [user({"type": "redacted_thinking", "data": "x"})]},
            "messages[0].content[0].type",
        ),
        ({"messages": [assistant({"type": "thinking"})]}, "messages[0].content[0].thinking"),
        ({"messages": [assistant(CALL | {"id": None}), USER]}, "messages[0].content[0].id"),
        ({"messages": [assistant(CALL | {"name": None}), USER]}, "messages[0].content[0].name"),
        ({"messages": [assistant(CALL | {"input": None}), USER]}, "messages[0].content[0].input"),
        ({"messages": [assistant(CALL | {"input": "{}"}), USER]}, "messages[0].content[0].input"),
        ({"messages": [assistant(CALL | {"input": deep(70)}), USER]}, "messages[0].content[0].input"),
        ({"messages": [USER, assistant(text("a"), CALL)]}, "messages[1]"),
        ({"messages": [user(RESULT | {"tool_use_id": None})]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user(RESULT | {"content": 1})]}, "messages[0].content[0].content"),
        (
            {"messages": [user(RESULT | {"content": [text("a"), {"type": "image"}]})]},
            "messages[0].content[0].content[1].type",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": 1}, "system"),
        ({"model": 7}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": 1.1}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_k": "few"}, "top_k"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"stop": ["a"]}, "stop"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name"),
        ({"tools": [LOOK | {"name": "look at"}]}, "tools[0].name"),
        ({"tools": [LOOK | {"name": "L" * 129}]}, "tools[0].name"),
        ({"tools": [LOOK] * 129}, "tools"),
        ({"tools": [LOOK | {"input_schema": deep(70)}]}, "tools[0].input_schema"),
        ({"tools": [LOOK | {"input_examples": [deep(70)]}]}, "tools[0].input_examples"),
        ({"tools": [LOOK | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "see"}}, "tool_choice.name"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}, "ignore_eos": True}, "ignore_eos"),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "messages": [USER, assistant(text("a"))],
            },
            "thinking",
        ),
        ({"output_config": {"effort": "much"}}, "output_config.effort"),
        ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
                "messages": [USER, assistant(text("{"))],
            },
            "output_config.format",
        ),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
        ({"container": "x"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        turn_of(**fields)
    assert refused.value.param == param
    assert str(refused.value).startswith(param)
