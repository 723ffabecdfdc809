"""Answers taken apart: thoughts, text, and what they are when they come in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat.replies import THINK, call, harmony, read, tagged
from tierd.chat import calls
from tierd.chat.calls import DEEPSEEK_FENCED, GLM, LLAMA3, MISTRAL, MISTRAL_LIST, QWEN_CODER
from tierd.chat.reasoning import FAMILIES, HARMONY, ThoughtMarks, find_marks
from tierd.chat.reply import Piece, ReplyParser, Said, Thought
from tierd.chat.scanning import Marks, ValueEnd
from tierd.chat.tools import Tool

PICK = Tool(
    name="f", parameters={"properties": {"text": {"type": "string"}, "count": {"type": ["integer", "null"]}}}
)
GEMMA = ThoughtMarks("<|channel>", "<channel|>", title="thought")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("Hello", [Said("Hello")]),
        (" \nHello \n", [Said(" \nHello \n")]),
        ("  ", [Said("  ")]),
        ("<think>\nWhy?\n</think>\n\nSo.", [Thought("Why?"), Said("So.")]),
        ("\n <think>Why?</think>So.", [Thought("Why?"), Said("So.")]),
        ("<think>\n\n</think>\n\nSo.", [Said("So.")]),
        ("<think>a</think>\n<think>b</think>c", [Thought("ab"), Said("c")]),
        ("<think>never ended \n", [Thought("never ended \n")]),
        ("<think>cut </thi", [Thought("cut </thi")]),
        ("</think>So.", [Said("So.")]),
        ("<thin", [Said("<thin")]),
        ("<thing>", [Said("<thing>")]),
        ("a < b <thi", [Said("a < b <thi")]),
        ("<think>a</think> \n", [Thought("a")]),
    ],
)
def test_a_leading_thought_is_split_off(text: str, pieces: list[Piece]) -> None:
    for guarded in (True, False):
        assert read(tagged(guarded=guarded), [text]) == pieces
        assert read(tagged(guarded=guarded), text) == pieces


@pytest.mark.parametrize("mark", ["<think>", "</think>"])
def test_a_mark_behind_text_ends_an_answer_that_was_not_to_think(mark: str) -> None:
    text = f"Well. {mark}no more"
    parser = tagged()
    assert read(parser, text) == [Said("Well. ")]
    assert parser.ended
    asked = tagged(guarded=False)
    assert read(asked, text) == [Said(text)]
    assert not asked.ended


def test_a_mark_behind_a_thought_and_text_ends_it_too() -> None:
    parser = tagged()
    assert read(parser, ["<think>a</think>b<think>c</think>d"]) == [Thought("a"), Said("b")]
    assert parser.ended


def test_an_answer_may_begin_in_the_prompt() -> None:
    assert read(tagged(stage="thought"), "hm\n</think>\nSo.") == [Thought("hm"), Said("So.")]
    assert read(tagged(stage="behind"), "\n\nSo.") == [Said("So.")]
    assert read(tagged(stage="behind"), "\n<think>x</think>So.") == [Thought("x"), Said("So.")]
    parser = tagged(stage="content")
    assert read(parser, "\n and on<think>") == [Said("\n and on")]
    assert parser.ended


def test_a_thoughts_title_is_no_part_of_it() -> None:
    for text, thought in (
        ("<|channel>thought\nWhy?<channel|>So.", "Why?"),
        ("<|channel>\n thought Why?<channel|>So.", "Why?"),
        ("<|channel>thoughtless<channel|>So.", "less"),
        ("<|channel>through<channel|>So.", "through"),
    ):
        assert read(tagged(GEMMA), [text]) == read(tagged(GEMMA), text) == [Thought(thought), Said("So.")]
    assert read(tagged(GEMMA), ["<|channel>thou"]) == [Thought("thou")]
    assert read(tagged(GEMMA), ["<|channel>thought<channel|>So."]) == [Said("So.")]


@pytest.mark.parametrize("rest", ["\n<", "\n</tool_cal", "\n</tool_call>", "\n</tool_call>\n"])
def test_what_closes_a_call_is_no_text_where_it_is_cut_off(rest: str) -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {"at": "me"}}'
    for texts in ([text + rest], text + rest):
        assert read(tagged(tools=["look"]), texts) == call(0, "look", '{"at": "me"}')
    assert read(tagged(tools=["look"]), f"{text}\n</tool") != read(tagged(tools=["look"]), f"{text}\n</b")
    assert read(tagged(), "So </tool_cal") == [Said("So </tool_cal")]


def test_the_parser_knows_whether_it_thinks() -> None:
    parser, states = tagged(), []
    for piece in ("<thi", "nk>", "a", "b</th", "ink>", "c"):
        parser.push(piece)
        states.append(parser.thinking)
    assert states == [False, True, True, True, False, False]


def test_what_is_sure_is_not_held_back() -> None:
    parser = tagged(tools=["look"])
    assert parser.push("Let me see.") == [Said("Let me see.")]
    assert parser.push(" ") == []
    assert parser.push("<tool") == []
    assert parser.push("s>") == [Said(" <tools>", at=11)]
    assert tagged().push("white space ") == [Said("white space ")]


def test_harmony() -> None:
    text = (
        "<|channel|>analysis<|message|>Why?<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
        '{"at": "me"}<|call|>'
    )
    expected = [Thought("Why?"), Said("Let me see."), *call(0, "look", '{"at": "me"}')]
    for texts in ([text], text):
        assert read(harmony(["look"]), texts) == expected
        assert read(harmony(["look"], guarded=True), texts) == expected
    final = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
    assert read(harmony(), final) == [Thought("a"), Said("b")]
    assert read(harmony(), final.replace("final", "commentary to=functions.x")) == [Thought("a"), Said("b")]
    assert read(harmony(stage="content"), "and so on") == [Said("and so on")]
    assert read(harmony(stage="thought"), "hm<|end|><|start|>assistant<|channel|>final<|message|>So.") == [
        Thought("hm"),
        Said("So."),
    ]


def test_harmony_without_marks_is_text() -> None:
    assert read(harmony(), "Hello.") == [Said("Hello.")]
    assert read(harmony(), "<|channel|>fin") == []
    assert read(harmony(), "") == []


def test_what_is_too_long_for_a_heading_is_text() -> None:
    text = "<|channel|>" + "on and " * 50 + "<|message|>on<|end|>"
    expected = [Said(text.removesuffix("<|end|>"))]
    assert read(harmony(), [text]) == read(harmony(), text) == expected


def test_harmony_thinks_again_only_where_it_was_asked_to() -> None:
    text = (
        "<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>c"
    )
    assert read(harmony(), text) == [Said("a"), Thought("b\n\nc")]
    parser = harmony(guarded=True)
    assert read(parser, text) == [Said("a")]
    assert parser.ended


def test_a_recipient_may_follow_the_prompt_at_once() -> None:
    text = " to=functions.look<|channel|>commentary json<|message|>{}<|call|>"
    assert read(harmony(["look"]), text) == call(0, "look", "{}")


PARSERS: dict[str, tuple[Callable[[], ReplyParser], Sequence[str]]] = {
    "think": (tagged, ("<think>", "</think>", "a", " ", "\n", "<", "think>", "é")),
    "asked": (lambda: tagged(guarded=False), ("<think>", "</think>", "a", " ", "\n")),
    "titled": (lambda: tagged(GEMMA), ("<|channel>", "thought", "<channel|>", "th", "\n", "a", "<")),
    "hermes": (
        lambda: tagged(tools=["f", "g"]),
        (
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            '{"name": "f", "arguments": ',
            '{"arguments": {"a": 1}, "name": "g"}',
            '{"a": "}<{"}',
            "}",
            "\n",
            " ",
            "a",
            "<",
            "{",
            '"',
            "\\",
        ),
    ),
    "one call": (
        lambda: tagged(tools=["f"], parallel=False),
        ("<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", "\n", "a"),
    ),
    "qwen's coder": (
        lambda: tagged(calls=QWEN_CODER, tools=[PICK]),
        (
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "</function>",
            "<parameter=text>\n",
            "<parameter=count>",
            "<parameter=any>",
            "\n</parameter>\n",
            "</parameter>",
            '{"name": "f", "arguments": {"a": 1}}',
            "\n",
            "7",
            "a",
            "<",
            '"',
            "é",
        ),
    ),
    "glm": (
        lambda: tagged(calls=GLM, tools=[PICK]),
        (
            "<tool_call>f",
            "</tool_call>",
            "<arg_key>text</arg_key>",
            "<arg_key>count</arg_key>",
            "\n",
            "<arg_value>",
            "</arg_value>",
            "<think>",
            "7",
            "</",
        ),
    ),
    "gemma": (
        lambda: tagged(GEMMA, calls.GEMMA, ["f"]),
        (
            "<|tool_call>call:f{",
            "a:",
            '<|"|>',
            "7",
            ",",
            "b:[",
            "]",
            "{",
            "}",
            '"',
            "\\",
            " x",
            "<tool_call|>",
            "<|tool_response>",
            "<|channel>thought",
            "<",
        ),
    ),
    "deepseek": (
        lambda: tagged(calls=DEEPSEEK_FENCED, tools=["f"]),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "function<｜tool▁sep｜>f\n```json\n",
            "f<｜tool▁sep｜>",
            '{"a": 1}',
            "\n```",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "a",
        ),
    ),
    "llama": (
        lambda: tagged(calls=LLAMA3, tools=["f"]),
        ('{"name": "f", "parameters": {"a": 1}}', ";", " ", "a", "<|python_tag|>", '{"name": "g"}', "{"),
    ),
    "mistral": (
        lambda: tagged(calls=MISTRAL, tools=["f"]),
        ("[TOOL_CALLS]", "f", "[ARGS]", "[CALL_ID]a1", '{"a": [1]}', "x", " ", "{", "["),
    ),
    "mistral's list": (
        lambda: tagged(ThoughtMarks("[THINK]", "[/THINK]"), MISTRAL_LIST, ["f"]),
        ("[TOOL_CALLS]", "[", '{"name": "f", "arguments": {"a": 1}}', ", ", "]", "[THINK]", "[/THINK]", "x"),
    ),
    "harmony": (
        lambda: harmony(["f"]),
        (
            "<|channel|>",
            "analysis",
            "final",
            "commentary",
            "<|message|>",
            "<|end|>",
            "<|start|>assistant",
            " to=functions.f",
            "<|call|>",
            "<|constrain|>json",
            "a",
            " ",
            "{}",
            "<",
        ),
    ),
}


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60)
@given(data=st.data())
def test_however_a_text_is_cut_its_pieces_are_the_same(name: str, data: st.DataObject) -> None:
    make, words = PARSERS[name]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, letters = make(), make()
    expected = read(whole, [text])
    assert read(make(), texts) == expected
    assert read(letters, text) == expected
    assert letters.ended == whole.ended


@pytest.mark.parametrize("name", ["think", "hermes", "llama", "mistral", "harmony"])
@settings(max_examples=30)
@given(data=st.data())
def test_a_text_says_where_it_stood(name: str, data: st.DataObject) -> None:
    make, words = PARSERS[name]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    parser = make()
    pieces: list[Piece] = []
    for letter in text:
        if not parser.ended:
            pieces += parser.push(letter)
    for piece in [*pieces, *([] if parser.ended else parser.finish())]:
        if isinstance(piece, Said):
            assert text[piece.at : piece.at + len(piece.text)] == piece.text


def test_marks_are_found_in_a_template_or_else_in_the_vocabulary() -> None:
    assert find_marks("{{ '<think>' }} x.split('</think>')", lambda text: False) == (THINK, True)
    assert find_marks("nothing", lambda text: text == "<think>") == (THINK, False)
    assert find_marks("nothing", lambda text: False) == (None, False)
    assert find_marks("<|start|>assistant<|channel|>final<|message|>…<|end|>", lambda text: False) == (
        HARMONY,
        True,
    )
    assert find_marks("<|channel>thought\n<channel|>", lambda text: False) == (GEMMA, True)
    assert len({marks.start for marks in FAMILIES}) == len(FAMILIES)


def test_where_an_answer_has_begun() -> None:
    assert THINK.opening("<|im_start|>assistant\n<think>\n") == "<think>\n"
    assert THINK.opening("<|im_start|>assistant\n<think>\n\n</think>\n\n") == "<think>\n\n</think>\n\n"
    assert THINK.opening("<｜Assistant｜></think>") == "</think>"
    assert THINK.opening("user: what is <think>?\nassistant:") == ""
    assert GEMMA.opening("model\n<|channel>thought\n<channel|>") == "<|channel>thought\n<channel|>"
    stages = {
        "": "opening",
        "\n": "opening",
        "<think>\n": "thought",
        "<think>a</think>\n": "behind",
        "<think>a</think>b": "content",
        "b": "content",
        "</think>": "behind",
    }
    assert {text: THINK.stage(text) for text in stages} == stages


def test_what_may_begin_a_mark_is_held() -> None:
    marks = Marks(("<think>", "<tool_call>"))
    held = {"": 0, "a": 0, "<": 1, "a<t": 2, "<th<": 1, "<think": 6, "<think>": 0, "<x<tool_cal": 9}
    assert {text: marks.held(text) for text in held} == held
    assert Marks(()).held("<") == 0
    assert Marks(()).search("<") is None
    assert marks.match("<think>a") == "<think>"
    assert marks.match("<t") == ""
    assert marks.match("a") is None


@settings(max_examples=40)
@given(
    value=st.recursive(
        st.one_of(st.text(max_size=6), st.integers(), st.none()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
        ),
    ).filter(lambda value: isinstance(value, list | dict)),
    behind=st.text(max_size=5),
    cut=st.integers(0, 200),
)
def test_the_end_of_a_value_is_found_wherever_it_is_cut(value: object, behind: str, cut: int) -> None:
    written = json.dumps(value, ensure_ascii=False)
    text = written + behind
    assert ValueEnd().feed(text) == len(written)
    scan = ValueEnd()
    first = scan.feed(text[:cut])
    if cut < len(written):
        assert first == -1
        assert scan.feed(text[cut:]) == len(written) - cut
    else:
        assert first == len(written)
