"""Arguments that stand between marks, made JSON by the schema of their tool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat.replies import call, read, tagged
from tierd.chat.calls import FUNCTION_GEMMA, GEMMA, GLM, QWEN_CODER, SEED, CallSyntax
from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.chat.schema_types import as_json, types_of
from tierd.chat.tools import Tool

WRITE = Tool(
    name="write",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "mode": {"$ref": "#/$defs/mode"},
            "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "force": {"type": "boolean"},
        },
        "$defs": {"mode": {"enum": ["append", "replace"]}},
    },
)


def reads(text: str, syntax: CallSyntax = QWEN_CODER, **options: Any) -> list[Piece]:
    """Return the pieces of an answer, the same whole and letter by letter."""

    def parser() -> Any:
        return tagged(calls=syntax, tools=[WRITE, "clock"], **options)

    pieces = read(parser(), [text])
    assert read(parser(), text) == pieces
    return pieces


def written(**arguments: str) -> str:
    """Return a call as Qwen's coders write it."""
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function=write>\n{given}</function>\n</tool_call>"


def test_values_are_what_the_schema_says() -> None:
    text = written(
        path='5 "é"\n\tand <b>', lines="[1, 2]", mode="append", size="7", force="True", more='{"a": null}'
    )
    arguments = (
        r'{"path": "5 \"é\"\n\tand <b>", "lines": [1, 2], "mode": "append", "size": 7, "force": true, '
        '"more": {"a": null}}'
    )
    json.loads(arguments)
    expected = call(0, "write", arguments)
    assert reads(text) == expected
    assert reads(f"So:\n{text}\nDone.") == [Said("So:"), *expected, Said("Done.")]
    seed = text.replace("tool_call>", "seed:tool_call>").replace(">\n", ">")
    assert reads(f"<think>hm</think>{seed}", SEED) == [Thought("hm"), *expected]


def test_marks_may_stand_without_line_breaks_and_without_the_first_of_them() -> None:
    text = "<function=write><parameter=path>a\n\nb</parameter><parameter=size>null</parameter></function>"
    expected = call(0, "write", r'{"path": "a\n\nb", "size": null}')
    assert reads(text) == reads(f"<tool_call>{text}</tool_call>") == expected
    unclosed = text.removesuffix("</function>")
    second = call(1, "clock", "{}")
    assert reads(f"<tool_call>{unclosed}</tool_call>\n<function=clock>\n</function>") == [*expected, *second]


def test_glm_writes_keys_and_values() -> None:
    text = (
        "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value> a </arg_value>\n"
        "<arg_key>lines</arg_key>\n<arg_value>[]</arg_value>\n</tool_call>"
    )
    expected = call(0, "write", '{"path": " a ", "lines": []}')
    assert reads(text, GLM) == expected
    assert reads(f"{text}\n<tool_call>clock</tool_call>", GLM) == [*expected, *call(1, "clock", "{}")]


GEMMAS = [
    (GEMMA, '<|"|>', "<|tool_call>", "<tool_call|>", "<|tool_response>"),
    (FUNCTION_GEMMA, "<escape>", "<start_function_call>", "<end_function_call>", "<start_function_response>"),
]


@pytest.mark.parametrize(("syntax", "quote", "begin", "end", "response"), GEMMAS, ids=["4", "function"])
def test_gemma_writes_json_without_its_quotation_marks(
    syntax: CallSyntax, quote: str, begin: str, end: str, response: str
) -> None:
    body = r'{path:QaQ,lines:[1, -2.5],more:{a b:Q{"é\}Q,"c":"\"d"},size:null,mode:add it}'
    text = f"{begin}call:write{body}{end}".replace("Q", quote)
    arguments = (
        r'{"path": "a", "lines": [1, -2.5], "more": {"a b": "{\"é\\}", "c": "\"d"}, "size": null, '
        '"mode": "add it"}'
    )
    json.loads(arguments)
    both = [*call(0, "write", arguments), *call(1, "clock", "{}")]
    assert reads(f"{text}{begin}call:clock{{}}{end}", syntax) == both
    # What the model would make up as a result is nobody's.
    assert reads(f"So: {text}{response}response:write{{}}", syntax) == [Said("So:"), *both[:2]]
    for letters in ("é", "mo", '"c": "'):
        cut = text[: text.index(letters.replace(" ", "")) + len(letters.replace(" ", ""))]
        assert reads(cut, syntax) == call(0, "write", arguments[: arguments.index(letters) + len(letters)])


@pytest.mark.parametrize("syntax", [QWEN_CODER, GLM], ids=["qwen", "glm"])
def test_a_call_may_be_an_object_all_the_same(syntax: CallSyntax) -> None:
    text = '<tool_call>\n{"name": "write", "arguments": {"path": "a"}}\n</tool_call>'
    assert reads(text, syntax) == call(0, "write", '{"path": "a"}')


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ("<tool_call>\n<function=read>\n</function>\n</tool_call>", QWEN_CODER),
        ("<tool_call> what is this? </tool_call>", QWEN_CODER),
        ("<tool_call>\n<function=write", QWEN_CODER),
        ("<tool_call>" + "on and " * 50 + "write></tool_call>", QWEN_CODER),
        ("<tool_call>read\n<arg_key>path</arg_key>", GLM),
        ("<tool_call>write\n<arg_", GLM),
    ],
)
def test_what_never_becomes_a_call_is_text(text: str, syntax: CallSyntax) -> None:
    assert reads(f"So: {text}", syntax) == [Said(f"So: {text}")]


def test_what_was_cut_off_is_a_call_as_far_as_it_came() -> None:
    whole = written(path="a\n</b>", size="77")
    for end, arguments in (
        ("<function=write>", "{"),
        ("path>\na", '{"path": "a'),
        ("path>\na\n</b", r'{"path": "a\n</b'),
        ("a\n</b>\n</para", r'{"path": "a\n</b>\n</para'),
        ("size>\n7", r'{"path": "a\n</b>", "size": 7'),
    ):
        text = whole[: whole.index(end) + len(end)]
        assert reads(text) == call(0, "write", arguments)


def test_texts_come_as_they_are_written() -> None:
    parser = tagged(calls=QWEN_CODER, tools=[WRITE])
    assert parser.push("<tool_call>\n<function=write>\n") == [*call(0, "write", "{")]
    assert parser.push("<parameter=path>\nIt ") == [Arguments(0, '"path": "It ')]
    assert parser.push("is\n") == [Arguments(0, "is")]
    assert parser.push("</param") == []
    assert parser.push("eters>") == [Arguments(0, "\\n</parameters>")]
    assert parser.push("\n</parameter>\n<parameter=size>4") == [Arguments(0, '"')]
    assert parser.push("2</parameter></function>") == [Arguments(0, ', "size": 42}')]
    assert parser.finish() == []


def test_the_first_call_ends_an_answer_of_one() -> None:
    parser = tagged(calls=QWEN_CODER, tools=[WRITE], parallel=False)
    assert [type(piece) for piece in read(parser, [written(path="a") * 2])] == [Called, Arguments]
    assert parser.ended


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"const": 1}, {"integer"}),
        ({"enum": ["a", None, 1.5]}, {"string", "null", "number"}),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, {"string", "object"}),
        ({"oneOf": [{"type": "string"}, {}]}, None),
        ({"allOf": [{"description": "x"}, {"type": "array"}]}, {"array"}),
        ({"$ref": "#/$defs/a~1b"}, {"boolean"}),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": "elsewhere"}, None),
        ({}, None),
        (True, None),
    ],
    ids=str,
)
def test_types_of_a_property(schema: object, types: set[str] | None) -> None:
    whole = {
        "properties": {"p": schema},
        "$defs": {"a/b": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}},
    }
    assert types_of(whole, "p") == types
    assert types_of({"additionalProperties": schema, "$defs": whole["$defs"]}, "q") == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"string"}, "5"),
        ("5", {"integer"}, 5),
        ("5", {"string", "number"}, 5),
        ("5", {"string", "null"}, "5"),
        ("null", {"string", "null"}, None),
        (" [1]\n", {"array"}, [1]),
        ("[1", {"array"}, "[1"),
        ("False", {"boolean"}, False),
        ("False", {"string"}, "False"),
        ("NaN", {"number"}, "NaN"),
        ("[" * 100_000, {"array"}, "[" * 100_000),
        ('"a"', {"string", "null"}, '"a"'),
        ("5", None, 5),
        ("five", None, "five"),
        ("", None, ""),
    ],
)
def test_a_value_is_of_a_type_that_it_may_be_or_a_text(
    text: str, types: set[str] | None, value: object
) -> None:
    assert json.loads(as_json(text, None if types is None else frozenset(types))) == value
