"""How models of each family take chats, found out from templates in their style."""

from __future__ import annotations

import json
import mmap
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile, zip_longest
from pathlib import Path
from typing import Any

import pytest

from chat import templates
from chat.replies import read
from fixtures import unicode_vocabularies as vocabularies
from fixtures.unicode_vocabularies import CONTROL, USER_DEFINED
from schemas import COUNT, record
from tierd.chat.calls import (
    DEEPSEEK,
    DEEPSEEK_FENCED,
    GEMMA,
    GENERIC,
    GLM,
    HARMONY,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_LIST,
    QWEN_CODER,
)
from tierd.chat.formats import Chat, ReplyFormat
from tierd.chat.grammar import Grammars, Source
from tierd.chat.probing import find_format
from tierd.chat.reasoning import ThoughtMarks
from tierd.chat.renderer import build_renderer
from tierd.chat.reply import Arguments, Called, Said, Thought
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.chat.tools import Message, Tool
from tierd.core import Constraint
from tierd.errors import InvalidRequestError
from tierd.models.gguf import GGUFFile

FAMILIES = (
    "HERMES", "QWEN_CODER", "GLM", "GEMMA_CALLS", "DEEPSEEK", "DEEPSEEK_FENCED",
    "LLAMA3", "MISTRAL_LIST", "MISTRAL", "GPT_OSS", "GEMMA", "R1",
)  # fmt: skip
SPECIALS = {
    "<s>": CONTROL,
    "</s>": CONTROL,
    "<think>": USER_DEFINED,
    "</think>": USER_DEFINED,
    "[TOOL_CALLS]": CONTROL,
    "[ARGS]": CONTROL,
    "[THINK]": CONTROL,
    "[/THINK]": CONTROL,
    "<|python_tag|>": CONTROL,
    "<|channel|>": CONTROL,
    "<|message|>": CONTROL,
    "<|constrain|>": CONTROL,
    "<|start|>": CONTROL,
    "<|end|>": CONTROL,
    "<|return|>": CONTROL,
    "<|call|>": CONTROL,
    "<arg_key>": USER_DEFINED,
    "</arg_key>": USER_DEFINED,
    "<arg_value>": USER_DEFINED,
    "</arg_value>": USER_DEFINED,
    "<｜tool▁calls▁begin｜>": CONTROL,
    "<｜tool▁calls▁end｜>": CONTROL,
    "<｜tool▁call▁begin｜>": CONTROL,
    "<｜tool▁call▁end｜>": CONTROL,
    "<｜tool▁sep｜>": CONTROL,
    "<|channel>": CONTROL,
    "<channel|>": CONTROL,
    "<|tool_call>": CONTROL,
    "<tool_call|>": CONTROL,
    "<|tool_response>": CONTROL,
    '<|"|>': CONTROL,
}
GEMMA_MARKS = sorted(["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'])
DEEPSEEK_MARKS = sorted(text for text in SPECIALS if text.startswith("<｜"))
WEATHER = Tool(
    name="weather",
    description="What the sky does.",
    parameters={
        "type": "object",
        "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["place"],
        "additionalProperties": False,
    },
)
CLOCK = Tool(name="clock")
USER = {"role": "user", "content": "Will it rain in Ulm?"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"place": "Ulm"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "content": "no rain"}


def tokenizer_of(*specials: str) -> Tokenizer:
    """Return a tokenizer of bytes and these special tokens."""
    metadata = vocabularies.special_bytelevel({text: SPECIALS[text] for text in ("<s>", "</s>", *specials)})
    metadata |= {"tokenizer.ggml.bos_token_id": 257, "tokenizer.ggml.eos_token_id": 258}
    return build_tokenizer(GGUFFile(Path("made-up.gguf"), mmap.mmap(-1, 1), metadata, {}))


def format_of(template: str, tokenizer: Tokenizer) -> ReplyFormat:
    file = GGUFFile(Path("made-up.gguf"), mmap.mmap(-1, 1), {}, {})
    renderer = build_renderer(file, tokenizer, template.strip("\n"))
    assert renderer is not None
    return find_format(renderer, tokenizer)


@dataclass(frozen=True)
class Model:
    tokenizer: Tokenizer
    format: ReplyFormat
    grammars: Grammars

    def render(self, *messages: Message, **options: Any) -> str:
        return self.format.render(Chat(messages=messages, **options)).prompt


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Model]]:
    """A model of each family, whose vocabulary has the special tokens of its template."""
    found = {}
    for name in FAMILIES:
        template = getattr(templates, name) + ("<|python_tag|>" if name == "LLAMA3" else "")
        tokenizer = tokenizer_of(
            *(text for text in SPECIALS if text in template and text not in ("<s>", "</s>"))
        )
        format = format_of(getattr(templates, name), tokenizer)
        found[name] = Model(tokenizer, format, Grammars(tokenizer))
    yield found
    for model in found.values():
        model.format.renderer.close()


def test_what_each_family_can_do_is_found(models: dict[str, Model]) -> None:
    formats = {name: model.format for name, model in models.items()}
    calls = {name: format.calls for name, format in formats.items() if format.native}
    assert calls == {
        "HERMES": HERMES,
        "QWEN_CODER": QWEN_CODER,
        "GLM": GLM,
        "GEMMA_CALLS": GEMMA,
        "DEEPSEEK": DEEPSEEK,
        "DEEPSEEK_FENCED": DEEPSEEK_FENCED,
        "LLAMA3": LLAMA3,
        "MISTRAL_LIST": MISTRAL_LIST,
        "MISTRAL": MISTRAL,
        "GPT_OSS": HARMONY,
    }
    assert all(format.calls is GENERIC for name, format in formats.items() if name not in calls)
    assert all(format.lists and not format.nulls for format in formats.values())
    assert [name for name, format in formats.items() if not format.several] == ["LLAMA3", "GPT_OSS"]
    assert [name for name, format in formats.items() if not format.system] == ["GEMMA"]
    assert {name: format.thoughts for name, format in formats.items() if format.thoughts} == {
        "HERMES": "reasoning_content",
        "GLM": "reasoning_content",
        "MISTRAL": "reasoning_content",
        "GPT_OSS": "thinking",
    }
    assert {
        name: (format.marks.start, format.thinks) for name, format in formats.items() if format.marks
    } == {
        "HERMES": ("<think>", True),
        "GLM": ("<think>", True),
        "GEMMA_CALLS": ("<|channel>", True),
        "DEEPSEEK": ("<think>", True),
        "MISTRAL": ("[THINK]", True),
        "GPT_OSS": ("<|channel|>analysis<|message|>", True),
        "R1": ("<think>", True),
    }
    assert {name: sorted(format.specials) for name, format in formats.items() if format.specials} == {
        "GEMMA_CALLS": GEMMA_MARKS,
        "DEEPSEEK": DEEPSEEK_MARKS,
        "DEEPSEEK_FENCED": DEEPSEEK_MARKS,
        "LLAMA3": ["<|python_tag|>"],
        "MISTRAL_LIST": ["[TOOL_CALLS]"],
        "MISTRAL": ["[/THINK]", "[ARGS]", "[THINK]", "[TOOL_CALLS]"],
    }


def test_only_marks_that_matter_show(models: dict[str, Model]) -> None:
    format, tokenizer = models["MISTRAL"].format, models["MISTRAL"].tokenizer
    with_tools = {tokenizer.token_text(id) for id in format.spelled(tools=True)}
    assert with_tools == {"[/THINK]", "[ARGS]", "[THINK]", "[TOOL_CALLS]"}
    assert {tokenizer.token_text(id) for id in format.spelled(tools=False)} == {"[THINK]", "[/THINK]"}
    assert not models["GEMMA"].format.spelled(tools=True)


def test_marks_of_the_vocabulary_alone_are_known_and_not_expected() -> None:
    format = format_of(templates.GEMMA, tokenizer_of("<think>", "</think>"))
    assert format.marks == ThoughtMarks("<think>", "</think>")
    assert not format.thinks
    parser = format.parser(thinking=None)
    assert read(parser, "<think>a</think>b<think>") == [Thought("a"), Said("b")]
    assert parser.ended
    format.renderer.close()


NATIVE = tuple(name for name in FAMILIES if name not in ("GEMMA", "R1"))


@pytest.mark.parametrize("name", NATIVE)
def test_what_a_template_writes_of_calls_is_read_as_such(models: dict[str, Model], name: str) -> None:
    model = models[name]
    before, whole = model.render(USER, tools=[WEATHER]), model.render(USER, CALLING, RESULT, tools=[WEATHER])
    assert "What the sky does." in before or name == "GPT_OSS"
    assert "no rain" in whole
    written = "".join(
        after for _, after in dropwhile(lambda pair: pair[0] == pair[1], zip_longest(before, whole))
    )
    parser = model.format.parser(thinking=None, tools=[WEATHER], parallel=False)
    called, arguments = read(parser, written)
    assert isinstance(called, Called)
    assert isinstance(arguments, Arguments)
    assert (called.name, json.loads(arguments.text)) == ("weather", {"place": "Ulm"})
    assert re.fullmatch(r"\w{9}" if name.startswith("MISTRAL") else r"call_[0-9a-f]{24}", called.id)
    # What was called so can be told as it came.
    again = replace_call(CALLING, called.id, arguments.text)
    assert (
        called.id in model.render(USER, again, RESULT | {"tool_call_id": called.id}) or name != "MISTRAL_LIST"
    )


def replace_call(message: dict[str, Any], id: str, arguments: str) -> dict[str, Any]:
    call = message["tool_calls"][0]
    return {
        **message,
        "tool_calls": [{**call, "id": id, "function": {"name": "weather", "arguments": arguments}}],
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_that_were_cut_off_and_several_of_them_are_told(models: dict[str, Model], name: str) -> None:
    (first,) = CALLING["tool_calls"]
    cut = {**first, "id": "ghijkl456", "function": {"name": "clock", "arguments": '{"zone": "Eur'}}
    calling = CALLING | {"tool_calls": [first, cut], "reasoning_content": "hm", "content": "Let me see."}
    results = [RESULT | {"tool_call_id": "ghijkl456", "content": "noon"}, RESULT]
    prompt = models[name].render(USER, calling, *results, tools=[WEATHER, CLOCK])
    calls = prompt[prompt.index("Will it rain") :]
    assert calls.index("weather") < calls.index("no rain") < calls.index("noon")
    assert calls.index("weather") < calls.index("clock") < calls.index("Eur") < calls.index("noon")


@pytest.mark.parametrize("name", ["GEMMA", "R1"])
def test_a_template_without_tools_is_told_of_them_in_words(models: dict[str, Model], name: str) -> None:
    model = models[name]
    prompt = model.render(USER, CALLING, RESULT, RESULT, tools=[WEATHER, CLOCK])
    told = json.dumps(WEATHER.told()["function"])
    assert prompt.index(told) < prompt.index('{"name": "clock"')
    assert '<tool_call>\n{"name": "weather", "arguments": {"place": "Ulm"}}\n</tool_call>' in prompt
    assert "<tool_response>\nno rain\n</tool_response>\n<tool_response>\nno rain\n</tool_response>" in prompt
    assert "For several calls" in prompt
    assert "Write one call" in model.render(USER, tools=[CLOCK], parallel=False)
    with_system = (
        model.render({"role": "system", "content": "Be brief."}, USER, tools=[CLOCK]) if name == "R1" else ""
    )
    assert "Be brief.\n\nYou may call functions." in with_system or name == "GEMMA"
    parser = model.format.parser(thinking=None, tools=[WEATHER])
    text = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"place": "Ulm"}}\n</tool_call>'
    said, called, arguments = read(parser, ("</think>" if name == "R1" else "") + text)
    assert said == Said("Let me see.")
    assert isinstance(called, Called)
    assert arguments == Arguments(0, '{"place": "Ulm"}')


def test_a_template_that_knows_calls_may_leave_it_to_others_to_tell_of_tools() -> None:
    format = format_of(templates.DEEPSEEK_UNTOLD, tokenizer_of(*DEEPSEEK_MARKS))
    assert (format.native, format.lists, format.nulls, format.objects) == (True, False, True, False)
    chat = Chat(messages=[USER, CALLING, RESULT], tools=[WEATHER])
    prompt = format.render(chat).prompt
    assert json.dumps(WEATHER.told()["function"]) in prompt
    example = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{"PARAMETER": VALUE}\n```'
    assert example in prompt[: prompt.index("Will it rain")]
    called = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"place": "Ulm"}\n```'
    assert f"{called}<｜tool▁call▁end｜><｜tool▁calls▁end｜></s><｜tool▁output▁begin｜>no rain" in prompt
    assert "You may call" not in format.render(replace(chat, tools=())).prompt
    pieces = read(format.parser(thinking=None, tools=[WEATHER]), f"So: <｜tool▁calls▁begin｜>{called}")
    assert [type(piece) for piece in pieces] == [Said, Called, Arguments]
    format.renderer.close()


def test_thinking_is_switched_as_the_template_has_it(models: dict[str, Model]) -> None:
    hermes, r1 = models["HERMES"].format, models["R1"].format
    chat = Chat(messages=[USER])
    assert hermes.render(chat).opening == ""
    off = hermes.render(replace(chat, thinking=False))
    assert off.prompt.endswith(off.opening)
    assert off.opening == "<think>\n\n</think>\n\n"
    assert r1.render(chat).opening == "<think>\n"
    closed = r1.render(replace(chat, thinking=False))
    assert closed.prompt.endswith("<|Assistant|><think>\n</think>\n\n")
    assert closed.opening == "<think>\n</think>\n\n"
    assert read(r1.parser(thinking=None, opening="<think>\n"), "a</think>b") == [Thought("a"), Said("b")]
    for opening in (off.opening, closed.opening):
        parser = hermes.parser(thinking=None, opening=opening)
        assert read(parser, "a<think>b") == [Said("a")]
        assert parser.ended
    assert read(hermes.parser(thinking=None), "a<think>b") == [Said("a<think>b")]


def test_a_prompt_may_end_a_thought_that_it_has_not_begun(models: dict[str, Model]) -> None:
    format = models["DEEPSEEK"].format
    off = format.render(Chat(messages=[USER]))
    assert off.opening == "</think>"
    parser = format.parser(thinking=None, opening=off.opening)
    assert read(parser, "a<think>b") == [Said("a")]
    assert parser.ended
    on = format.render(Chat(messages=[USER], thinking=True))
    assert on.opening == "<think>"
    assert read(format.parser(thinking=True, opening=on.opening), "a</think>b") == [Thought("a"), Said("b")]


def test_an_effort_is_one_that_the_template_knows(models: dict[str, Model]) -> None:
    model = models["GPT_OSS"]
    efforts = {effort: model.render(USER, effort=effort) for effort in ("minimal", "low", "high", "xhigh")}
    shown = {effort: re.search(r"Reasoning: (\w+)", prompt) for effort, prompt in efforts.items()}
    assert {effort: found and found[1] for effort, found in shown.items()} == {
        "minimal": "low",
        "low": "low",
        "high": "high",
        "xhigh": "high",
    }
    assert "Reasoning: medium" in model.render(USER)
    assert models["HERMES"].render(USER, effort="high") == models["HERMES"].render(USER)


def test_thoughts_go_back_under_the_templates_own_name(models: dict[str, Model]) -> None:
    thinking = CALLING | {"reasoning_content": "The sky…"}
    for name in ("HERMES", "MISTRAL", "GPT_OSS"):
        assert "The sky…" in models[name].render(USER, thinking, RESULT, tools=[WEATHER])
    assert [name for name in ("HERMES", "GLM", "MISTRAL", "GPT_OSS") if not models[name].format.beside] == [
        "GPT_OSS"
    ]
    assert "The sky…" not in models["GEMMA"].render(USER, thinking, RESULT)


def test_more_variables_reach_the_template(models: dict[str, Model]) -> None:
    prompt = models["LLAMA3"].render(USER, variables={"date_string": "1 Jan 1970"})
    assert "Today Date: 1 Jan 1970" in prompt
    assert models["LLAMA3"].format.renderer.takes >= {"date_string", "tools", "messages"}
    assert "strftime_now" not in models["LLAMA3"].format.renderer.takes


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "MISTRAL_LIST"])
def test_an_answer_goes_on_from_what_it_has_begun_with(models: dict[str, Model], name: str) -> None:
    model = models[name]
    begun = {"role": "assistant", "content": "It will not "}
    rendered = model.format.render(Chat(messages=[USER, begun], continues=True))
    assert rendered.prompt.endswith("It will not ")
    assert rendered.opening == "It will not "
    assert rendered.prompt.count("It will not") == 1
    parser = model.format.parser(thinking=None, opening=rendered.opening)
    assert read(parser, " rain") == [Said(" rain")]


def test_an_answer_may_go_on_from_a_thought(models: dict[str, Model]) -> None:
    format = models["HERMES"].format
    begun = {"role": "assistant", "content": "", "reasoning_content": "Clouds."}
    rendered = format.render(Chat(messages=[USER, begun], continues=True))
    assert rendered.prompt.endswith("<think>\nClouds.\n</think>\n\n")
    assert rendered.opening == "</think>\n\n"
    inside = models["R1"].format.render(
        Chat(messages=[USER, {"role": "assistant", "content": "<think>Clouds"}], continues=True)
    )
    assert inside.prompt.endswith("<think>Clouds")
    for opening, text, pieces in (
        (rendered.opening, "It will.<think>no", [Said("It will.")]),
        ("It ", "will.<think>no", [Said("will.")]),
        (inside.opening, " come.</think>It will.", [Thought("come."), Said("It will.")]),
    ):
        assert read(format.parser(thinking=None, opening=opening), text) == pieces


def test_an_answer_can_only_go_on_from_what_the_template_writes() -> None:
    format = format_of("{% for m in messages %}{{ m.content | upper }}{% endfor %}", tokenizer_of())
    with pytest.raises(InvalidRequestError, match="does not write the last message as it is"):
        format.render(Chat(messages=[USER, {"role": "assistant", "content": "a"}], continues=True))
    format.renderer.close()


def test_a_template_that_fails_at_anything_is_plain() -> None:
    format = format_of("{{ raise_exception('no') }}<think></think>", tokenizer_of())
    assert (format.native, format.system, format.thoughts) == (False, True, "")
    assert format.marks == ThoughtMarks("<think>", "</think>")
    format.renderer.close()


def test_a_model_that_knows_no_marks_is_guarded_where_it_is_told_not_to_think(
    models: dict[str, Model],
) -> None:
    format, text = models["GEMMA"].format, "<think>a</think>b<think>c"
    assert read(format.parser(thinking=None), text) == [Thought("a"), Said("b<think>c")]
    parser = format.parser(thinking=False)
    assert read(parser, text) == [Thought("a"), Said("b")]
    assert parser.ended


def test_what_obeys_a_grammar_is_not_guarded(models: dict[str, Model]) -> None:
    for format in (models["HERMES"].format, models["GEMMA"].format):
        parser = format.parser(thinking=False, constrained=True)
        assert read(parser, '{"a": "<think>"}') == [Said('{"a": "<think>"}')]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forced_call_that_is_cut_off_leaves_no_text(models: dict[str, Model], name: str) -> None:
    model = models[name]
    source = model.format.grammar([BOUNDED], "required", parallel=True)
    assert source is not None
    text = walk(model, source, random.Random(name))
    for end in range(len(text)):
        parser = model.format.parser(thinking=False, tools=[BOUNDED], constrained=True, forced=True)
        assert not any(isinstance(piece, Said | Thought) for piece in read(parser, [text[:end]]))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_further_call_that_is_cut_off_leaves_no_text(models: dict[str, Model], name: str) -> None:
    model = models[name]
    source = model.format.grammar([BOUNDED], "required", parallel=True)
    assert source is not None
    text = walk(model, source, random.Random(name))
    for end in range(len(text)):
        pieces = read(model.format.parser(thinking=False, tools=[BOUNDED], strict=True), [text[:end]])
        kinds = [type(piece) for piece in pieces]
        assert Called not in kinds or Said not in kinds[kinds.index(Called) :]


@pytest.mark.parametrize("name", FAMILIES)
def test_behind_each_mark_of_a_call_its_schema_holds(models: dict[str, Model], name: str) -> None:
    model, dice = models[name], random.Random(name)
    format, tools = model.format, [replace(BOUNDED, strict=True)]
    assert format.may_call_strictly(tools, "auto", None)
    source = format.grammar(tools, "auto", parallel=False)
    assert source is not None
    marks = [*format.calls.leads, *([" to=functions."] if format.calls is HARMONY else [])]
    for mark in marks:
        constraint = format.calls_behind(model.grammars.compile(source), model.tokenizer).begin()
        begun = model.tokenizer.encode(mark, add_special=False, parse_special=True)
        for token in begun:
            allowed = constraint.allowed()
            assert allowed is None or token in allowed
            constraint.advance(token)
        text = mark + go_on(model, constraint, dice)
        call, *given = read(format.parser(thinking=False, tools=tools, strict=True), [text])
        assert isinstance(call, Called)
        arguments = "".join(piece.text for piece in given if isinstance(piece, Arguments))
        assert json.loads(arguments)["colour"] in ("red", "blue")


def test_what_a_prompt_has_begun_of_a_call_is_held_to_the_schema_too(models: dict[str, Model]) -> None:
    model = models["HERMES"]
    source = model.format.grammar([replace(BOUNDED, strict=True)], "auto", parallel=False)
    assert source is not None
    call = '<tool_call>\n{"name": "pick", "arguments": {"colour": "red"}}\n</tool_call>'
    for opening, held in (
        ("So.", False),
        ("<think>\nA <tool_call>", False),
        ("<think>\n<tool_call>\n</think>\n\nSo", False),
        ("<tool_call>,", False),
        ("So. " + call[:11], True),
        ("So. " + call[:30], True),
        ("So. " + call[: call.index("lour")], True),
        ("<think>\n\n</think>\n\n" + call[:11], True),
    ):
        grammar = model.grammars.compile(source)
        constraint = model.format.calls_behind(grammar, model.tokenizer, opening).begin()
        allowed = constraint.allowed()
        (free,) = model.tokenizer.encode_part("?")
        assert (allowed is not None and free not in allowed) == held
        if held:
            assert go_on(model, constraint, random.Random(1)).endswith("\n</tool_call>")


def walk(model: Model, source: Source, dice: random.Random) -> str:
    """Return a text of a grammar, each token drawn from those that may come."""
    return go_on(model, model.grammars.compile(source).begin(), dice)


def go_on(model: Model, constraint: Constraint, dice: random.Random) -> str:
    """Return what a text ends with, each token drawn from those that may come."""
    tokenizer = model.tokenizer
    raw = b""
    for _ in range(2000):
        allowed = constraint.allowed()
        assert allowed is not None
        ids = [id for id in range(tokenizer.vocabulary) if id in allowed]
        token = dice.choice(ids)
        if token in tokenizer.end_ids:
            return raw.decode()
        constraint.advance(token)
        raw += tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()
    raise AssertionError("it does not end")


BOUNDED = Tool(
    name="pick",
    parameters={
        "properties": {
            "colour": {"enum": ["red", "blue"]},
            "sizes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["colour"],
    },
)
EMPTY = Tool(name="clock")


@pytest.mark.parametrize("name", FAMILIES)
def test_whatever_a_grammar_of_calls_allows_is_read_as_calls(models: dict[str, Model], name: str) -> None:
    model, dice = models[name], random.Random(name)
    tools = [BOUNDED, EMPTY]
    names = set()
    for choice in ("required", "required", "clock", "pick"):
        source = model.format.grammar(tools, choice, parallel=True)
        assert source is not None
        text = walk(model, source, dice)
        pieces = read(model.format.parser(thinking=False, tools=tools), [text])
        calls = [piece for piece in pieces if isinstance(piece, Called)]
        arguments = [json.loads(piece.text) for piece in pieces if isinstance(piece, Arguments)]
        assert len(calls) + len(arguments) == len(pieces)
        assert len(calls) == len(arguments) >= 1
        if choice != "required":
            assert [call.name for call in calls] == [choice]
        names |= {call.name for call in calls}
        for call, given in zip(calls, arguments, strict=True):
            assert given.get("colour") in ("red", "blue") if call.name == "pick" else given == {}
    assert names == {"pick", "clock"}


def test_an_answer_in_a_format_may_be_a_call_instead(models: dict[str, Model]) -> None:
    model, dice = models["HERMES"], random.Random(1)
    for answer, texts in (
        (Source("choice", '["yes", "no"]'), {"yes", "no"}),
        (Source("choice", '["👩‍👩‍👧", "é\\n"]'), {"👩‍👩‍👧", "é\n"}),
        (Source("json_schema", '{"enum": [1, 2]}'), {"1", "2"}),
    ):
        source = model.format.grammar([EMPTY], "auto", parallel=False, answer=answer)
        assert source is not None
        found = {walk(model, source, dice) for _ in range(30)}
        assert found == texts | {'<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'}


def obeys(model: Model, source: Source, text: str) -> bool:
    """Whether a text may be written under a grammar, to its end."""
    constraint = model.grammars.compile(source).begin()
    for token in [*model.tokenizer.encode_part(text), min(model.tokenizer.end_ids)]:
        allowed = constraint.allowed()
        assert allowed is not None
        if token not in allowed:
            return False
        constraint.advance(token)
    return True


def test_arguments_are_compact_and_their_dates_exist(models: dict[str, Model]) -> None:
    model = models["HERMES"]
    day = Tool(name="day", parameters=record(day={"type": "string", "format": "date"}, count=COUNT))
    source = model.format.grammar([day], "required", parallel=False)
    assert source is not None

    def may_be(arguments: str) -> bool:
        call = f'<tool_call>\n{{"name": "day", "arguments": {arguments}}}\n</tool_call>'
        return obeys(model, source, call)

    assert may_be('{"day": "2024-02-29", "count": 1}')
    assert not may_be('{"day": "2023-02-29", "count": 1}')
    assert not may_be('{"day": "2024-02-29",  "count": 1}')
    assert not may_be('{"day": "2024-02-29", "count": 101}')
    assert not may_be('{"day": "2024-02-29"}')


def test_an_answer_beside_tools_is_written_as_it_is_without_them(models: dict[str, Model]) -> None:
    model = models["HERMES"]
    answer = Source("json_schema", json.dumps(record(day={"type": "string", "format": "date"})))
    source = model.format.grammar([EMPTY], "auto", parallel=False, answer=answer)
    assert source is not None
    for text, right in (
        ('{"day": "2024-02-29"}', True),
        ('{\n  "day":"2024-02-29"\n}', True),
        ('{"day": "2023-02-29"}', False),
        ('{"day":\n\n"2024-02-29"}', False),
    ):
        assert [obeys(model, each, text) for each in (answer, source)] == [right, right]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"uniqueItems": True}, "keywords that are not supported: uniqueItems; leave them out"),
        ({"type": "string", "format": "foo"}, "Unknown format: foo"),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable schema"),
    ],
    ids=str,
)
def test_schemas_of_tools_are_refused_as_those_of_answers_are(
    models: dict[str, Model], schema: dict[str, object], complaint: str
) -> None:
    model = models["HERMES"]
    source = model.format.grammar(
        [EMPTY, Tool(name="f", parameters=record(a=schema))], "required", parallel=True
    )
    for refused in (source, Source("json_schema", json.dumps(record(a=schema)), "tools")):
        assert refused is not None
        with pytest.raises(InvalidRequestError, match=f"^tools: .*{complaint}") as caught:
            model.grammars.compile(refused)
        assert "%json" not in str(caught.value)


def test_tools_do_not_choose_options_of_the_library(models: dict[str, Model]) -> None:
    model, lenient = models["HERMES"], {"x-guidance": {"lenient": True}}
    source = model.format.grammar([Tool(name="f", parameters=lenient)], "required", parallel=True)
    assert source is not None
    with pytest.raises(InvalidRequestError, match="x-guidance is not supported"):
        model.grammars.compile(source)


def test_an_answer_that_may_be_free_has_no_grammar(models: dict[str, Model]) -> None:
    format, answer = models["HERMES"].format, Source("regex", "a+", "guided_regex")
    assert format.grammar([CLOCK], "auto", parallel=True) is None
    assert format.grammar([], "auto", parallel=True, answer=answer) == answer
    assert format.grammar([CLOCK], "none", parallel=True, answer=answer) == answer
    with pytest.raises(InvalidRequestError, match=r"tools: not together with guided_regex"):
        format.grammar([CLOCK], "auto", parallel=True, answer=answer)


@pytest.mark.parametrize("name", ["HERMES", "MISTRAL"])
def test_a_thought_is_free_and_then_the_grammar_holds(models: dict[str, Model], name: str) -> None:
    format, tokenizer = models[name].format, models[name].tokenizer
    marks = format.marks
    assert marks is not None
    inner = models[name].grammars.compile(Source("regex", "ab"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=True)

    def allowed(constraint: Constraint) -> set[str] | None:
        mask = constraint.allowed()
        if mask is None:
            return None
        return {tokenizer.token_text(id) for id in range(tokenizer.vocabulary) if id in mask}

    constraint = format.thought_first(inner, tokenizer, thinking=None).begin()
    assert allowed(constraint) == {"ab", marks.start}
    for token in ids(f"{marks.start}zzz"):
        constraint.advance(token)
        assert allowed(constraint) is None
    for token in ids(marks.end):
        constraint.advance(token)
    assert allowed(constraint) == {"ab"}
    (both,) = ids("ab")
    constraint.advance(both)
    assert allowed(constraint) == {"</s>"}
    begun = format.thought_first(inner, tokenizer, thinking=None, opening=marks.start).begin()
    assert allowed(begun) is None
    for thinking, opening in ((False, ""), (None, f"{marks.start}{marks.end}")):
        assert format.thought_first(inner, tokenizer, thinking=thinking, opening=opening) is inner


def test_a_grammar_holds_for_the_final_message(models: dict[str, Model]) -> None:
    format, tokenizer = models["GPT_OSS"].format, models["GPT_OSS"].tokenizer
    inner = models["GPT_OSS"].grammars.compile(Source("regex", "ab"))
    constraint = format.thought_first(inner, tokenizer, thinking=None).begin()
    text = "<|channel|>analysis<|message|>zz<|end|><|start|>assistant<|channel|>final<|message|>"
    for token in tokenizer.encode(text, add_special=False, parse_special=True):
        assert constraint.allowed() is None
        constraint.advance(token)
    (both,) = tokenizer.encode("ab", add_special=False, parse_special=True)
    mask = constraint.allowed()
    assert mask is not None
    assert both in mask
    assert sum(int(word).bit_count() for word in mask.words) == 1
    for options in ({"calls": True}, {"opening": "It "}):
        assert format.thought_first(inner, tokenizer, thinking=None, **options) is inner
