from __future__ import annotations

import gc
import json
import mmap
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fixtures import unicode_vocabularies as vocabularies
from fixtures.unicode_vocabularies import CONTROL
from processes import children
from tierd.chat import renderer, template_worker
from tierd.chat.renderer import Renderer, build_renderer, encode_prompt
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.errors import InvalidRequestError, ModelFileError, SettingsError, UnavailableError
from tierd.models.gguf import GGUFFile, Value

Messages = list[dict[str, Any]]
Render = Callable[..., str]


def made_up(**changes: Value) -> GGUFFile:
    metadata = vocabularies.special_bytelevel({"<s>": CONTROL, "</s>": CONTROL})
    metadata |= {"tokenizer.ggml.bos_token_id": 257, "tokenizer.ggml.eos_token_id": 258}
    metadata |= {f"tokenizer.{name}": value for name, value in changes.items()}
    return GGUFFile(Path("made-up.gguf"), mmap.mmap(-1, 1), metadata, {})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(made_up())


@pytest.fixture
def render(tokenizer: Tokenizer) -> Render:
    """Render a template given as text."""

    def call(template: str, messages: Messages | None = None, *, add_generation_prompt: bool = True) -> str:
        built = build_renderer(made_up(), tokenizer, template)
        assert built is not None
        return built.render(messages or [], add_generation_prompt=add_generation_prompt)

    return call


def test_oracle_chat(files: dict[str, GGUFFile], tokenizers: dict[str, Tokenizer], oracle_dir: Path) -> None:
    rows = json.loads((oracle_dir / "smollm2-135m-q4_1.json").read_text())["chat"]
    built = build_renderer(files["smollm2"], tokenizers["smollm2"])
    assert built is not None
    assert len(rows) == 3
    assert [built.render(row["messages"]) for row in rows] == [row["prompt"] for row in rows]


def test_a_base_model_has_none(files: dict[str, GGUFFile], tokenizers: dict[str, Tokenizer]) -> None:
    assert build_renderer(files["gemma3"], tokenizers["gemma3"]) is None


def test_a_given_template_wins(tokenizer: Tokenizer) -> None:
    file = made_up(chat_template="file's")
    own, given = build_renderer(file, tokenizer), build_renderer(file, tokenizer, "given")
    assert own is not None
    assert given is not None
    assert (own.render([]), given.render([])) == ("file's", "given")


HELPERS: list[tuple[str, str]] = [
    ("{{ bos_token }}|{{ eos_token }}|{{ unheard_of }}", "<s>|</s>|"),
    ("{{ tools is none }} {{ documents is none }} {{ tools is defined }}", "True True True"),
    # Blocks take the rest of their line and the indentation before them with them.
    ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
    ("{%- if true -%}\n  x\n{%- endif -%}\n y", "xy"),
    ("{% for n in range(9) %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% endfor %}", "02345678"),
    ("{% for n in range(9) %}{% if n > 3 %}{% break %}{% endif %}{{ n }}{% endfor %}", "0123"),
    (
        "{% for n in 'ab' %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }} {% endfor %}",
        "0TrueFalse 1FalseTrue ",
    ),
    ("{% set s = namespace(n=0) %}{% for i in [1, 2] %}{% set s.n = s.n + i %}{% endfor %}{{ s.n }}", "3"),
    ("{% macro m(a, b='-') %}<{{ a }}>{{ b }}{% endmacro %}{{ m('a') }}{{ m('b', 'c') }}", "<a>-<b>c"),
    ("{% generation %}said{% endgeneration %}", "said"),
    ("{% set x %}captured{% endset %}{{ x | upper }}", "CAPTURED"),
    # Python's own methods.
    ("{{ ' Ab '.strip().lower() }}{{ 'a,b'.split(',')[-1] }}{{ 'x'.startswith(('x', 'y')) }}", "abbTrue"),
    ("{{ 'aXb'.replace('X', '').title() }}{{ '-'.join(['p', 'q']) }}", "Abp-q"),
    ("{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ [1, 2, 3][:-1] }}", "cbabc[1, 2]"),
    ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1}.get('b', 2) }}", "a12"),
    ("{{ 'a</t>b'.split('</t>')[-1].lstrip('\\n') }}{{ 'x' in 'xyz' }}{{ 'é'.upper() }}", "bTrueÉ"),
    # Filters and tests.
    ("{{ [3, 1] | sort | join(',') }} {{ ' a ' | trim }} {{ 'ab' | length }}", "1,3 a 2"),
    ("{{ {'b': 1} | items | list }} {{ [1, 2] | first }}{{ [1, 2] | last }}", "[('b', 1)] 12"),
    ("{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | map(attribute='a') | list }}", "[2]"),
    ("{{ 'x' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ none is none }}", "TrueTrueTrueTrue"),
    ("{{ 'a\nb' | indent(2) }}{{ x | default('d') }}{{ 'q' ~ 1 }}{{ 7 // 2 }}{{ 2 if false }}", "a\n  bdq13"),
    # tojson is json.dumps, without escapes for HTML.
    ("{{ {'b': '<é\"', 'a': [1, none, true]} | tojson }}", '{"b": "<é\\"", "a": [1, null, true]}'),
    ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": "\\u00e9", "b": 1}'),
    ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
    ("{{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }}", '{"a":1,"b":2}'),
]


@pytest.mark.parametrize(("template", "expected"), HELPERS, ids=[template[:30] for template, _ in HELPERS])
def test_helpers(template: str, expected: str) -> None:
    compiled = template_worker.compile_template(template, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template_worker.render(compiled, {"tools": None, "documents": None}, 1_000) == expected


def test_variables(render: Render) -> None:
    assert (
        render("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}")
        == "<s></s>TrueTrue"
    )


def test_messages_and_generation_prompt(render: Render) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}={{ m['content'] }};{% endfor %}"
        "{% if add_generation_prompt %}assistant={% endif %}"
    )
    messages = [{"role": "user", "content": "é<b>\n"}, {"role": "assistant", "content": "\ud800"}]
    assert render(template, messages) == "user=é<b>\n;assistant=\ud800;assistant="
    assert render(template, messages, add_generation_prompt=False) == "user=é<b>\n;assistant=\ud800;"


def test_tools_documents_and_more_variables(tokenizer: Tokenizer) -> None:
    template = (
        "{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}{{ documents[0].text }}{{ mood }}"
        "{{ messages | length }}{{ add_generation_prompt }}{% set local = 1 %}{{ local }}{{ bos_token }}"
    )
    built = build_renderer(made_up(), tokenizer, template)
    assert built is not None
    tools = [{"type": "function", "function": {"name": "é", "parameters": {"a": [1.5, None, True]}}}]
    more = {"documents": [{"text": "D"}], "mood": "glad", "messages": "not these", "add_generation_prompt": 7}
    text = built.render([{"role": "user"}], tools=tools, variables=more)
    assert text == '{"name": "é", "parameters": {"a": [1.5, null, true]}}Dglad1True1<s>'
    assert built.takes == {"tools", "documents", "mood", "messages", "add_generation_prompt", "bos_token"}


def test_variables_have_the_bounds_that_messages_have(tokenizer: Tokenizer) -> None:
    built = build_renderer(made_up(), tokenizer, "{{ x | tojson }}")
    assert built is not None
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        built.render([], variables={"x": deep})
    with pytest.raises(InvalidRequestError, match="the text it makes is too long"):
        built.render([], variables={"x": "é" * renderer.MOST_CHARACTERS})
    assert built.render([], variables={"x": [1]}) == "[1]"
    while deep:  # a list of that depth cannot be freed at once
        deep = deep[0]


def test_strftime_now_is_now(render: Render) -> None:
    before = datetime.now().replace(microsecond=0)
    shown = datetime.strptime(render("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}"), "%Y-%m-%d %H:%M:%S")
    assert before <= shown <= before + timedelta(seconds=30)


FAILURES: list[tuple[str, str]] = [
    ("{{ raise_exception('Roles must\n alternate') }}", "Roles must alternate"),
    ("{{ messages[0].content.nothing.at_all }}", "has no attribute 'nothing'"),
    ("{{ messages + 1 }}", "can only concatenate list"),
    ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{% include 'other' %}", "no loader"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "it calls itself too deeply"),
    ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "the text it makes is too long"),
    ("{% for i in range(9999999) %}{% endfor %}", "Range too big"),
    ("{% set x = 'ab' * messages[0].n %}{{ x | length }}", "it needs too much memory"),
]


@pytest.mark.parametrize(("template", "message"), FAILURES, ids=[template[:30] for template, _ in FAILURES])
def test_failures_are_the_request_s(template: str, message: str, render: Render) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(template, [{"role": "user", "content": "hi", "n": 10**10}])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.param == "messages"


def test_a_template_that_runs_too_long_is_killed_and_comes_back(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderer, "MOST_SECONDS", 0.3)
    template = (
        "{% set n = messages[0].n %}{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}ok"
    )
    built = build_renderer(made_up(), tokenizer, template)
    assert built is not None
    began = time.monotonic()
    with pytest.raises(InvalidRequestError, match="takes too much time"):
        built.render([{"n": 99_999}])
    assert time.monotonic() - began < renderer.MOST_SECONDS + 5
    assert built.render([{"n": 1}]) == "ok"


def test_templates_that_do_not_compile(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        ModelFileError, match=r"key tokenizer\.chat_template does not compile: line 2: .*'if'"
    ):
        build_renderer(made_up(chat_template="a\n{% if true %}"), tokenizer)
    with pytest.raises(
        SettingsError, match=r"chat template given for made-up\.gguf is wrong: line 1: .*unknown"
    ):
        build_renderer(made_up(), tokenizer, "{% nonsense %}")
    with pytest.raises(ModelFileError, match=r"key tokenizer\.chat_template should be a string"):
        build_renderer(made_up(chat_template=3), tokenizer)


def test_renderings_from_many_threads(tokenizer: Tokenizer) -> None:
    built = build_renderer(made_up(), tokenizer, "{{ messages[0].content }}")
    assert built is not None
    wrong: list[str] = []

    def work(name: str) -> None:
        for count in range(20):
            text = f"{name}{count}"
            if built.render([{"role": "user", "content": text}]) != text:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_process_goes_with_the_renderer() -> None:
    gc.collect()
    before = children()
    built = Renderer("x", {})
    assert built.render([]) == "x"
    assert len(children() - before) == 1
    del built
    gc.collect()
    assert not children() - before


def test_what_is_closed_renders_no_more() -> None:
    many = "{% for n in range(99999) %}"
    built = Renderer(many * 2 + "{% endfor %}{% endfor %}", {})
    refused = threading.Event()

    def work() -> None:
        with pytest.raises(UnavailableError, match="unloaded"):
            built.render([])
        refused.set()

    gc.collect()
    before = children()
    thread = threading.Thread(target=work)
    thread.start()
    built.close()
    thread.join()
    assert refused.is_set()
    assert len(before - children()) == 1
    built.close()
    with pytest.raises(UnavailableError):
        built.render([])


def test_encode_prompt_begins_once(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["gemma3"]
    with_bos = encode_prompt(tokenizer, "<bos><start_of_turn>user\nhi")
    assert with_bos == encode_prompt(tokenizer, "<start_of_turn>user\nhi")
    assert [tokenizer.token_text(token) for token in with_bos[:3]] == ["<bos>", "<start_of_turn>", "user"]
    assert encode_prompt(tokenizer, "") == [tokenizer.bos_id]


def test_encode_prompt_adds_nothing_unasked(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["smollm2"]
    ids = encode_prompt(tokenizer, "<|im_start|>user\nhi<|im_end|>\n")
    assert [tokenizer.token_text(token) for token in ids] == [
        "<|im_start|>",
        "user",
        "Ċ",
        "hi",
        "<|im_end|>",
        "Ċ",
    ]
    assert encode_prompt(tokenizer, "<|im_start|>" * 2) == [tokenizer.bos_id] * 2
