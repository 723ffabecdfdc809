from __future__ import annotations

import json
import mmap
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fixtures import unicode_vocabularies as vocabularies
from schemas import record
from tierd.chat import grammar
from tierd.chat.call_grammar import call_grammar
from tierd.chat.calls import GENERIC
from tierd.chat.grammar import KEPT, MOST_CHARACTERS, Grammars, Source
from tierd.chat.schema_dates import PATTERNS, with_real_dates
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.chat.tools import Tool
from tierd.core import Constraint, Grammar, TokenMask
from tierd.errors import InvalidRequestError, UnavailableError
from tierd.models.gguf import GGUFFile, Value

CONTROL = vocabularies.CONTROL
EMOJI = ["😀", "👩‍👩‍👧", "é", "好ab"]
CHAIN = "\n".join(f'r{i}: "k{i}" r{(i + 1) % 3000}?' for i in range(3000))

DOUBLING = "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(25))


def tokenizer_of(metadata: dict[str, Value]) -> Tokenizer:
    return build_tokenizer(GGUFFile(Path("made-up.gguf"), mmap.mmap(-1, 1), metadata, {}))


TOKENIZERS = {
    "bytes": tokenizer_of(vocabularies.special_bytelevel({"<|im_end|>": CONTROL, "<tool>": CONTROL})),
    "pieces": tokenizer_of(vocabularies.small_sentencepiece("small")),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    found = Grammars(tokenizer)
    yield found
    found.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[Grammars]:
    found = Grammars(TOKENIZERS["bytes"])
    yield found
    found.close()


def ids(mask: TokenMask | None) -> list[int]:
    assert mask is not None
    return [int(id) for id in np.flatnonzero(np.unpackbits(mask.words.view(np.uint8), bitorder="little"))]


def text_of(grammar: Grammar, tokenizer: Tokenizer, seed: int = 0, most: int = 400) -> bytes:
    """Return a text that takes any way through a grammar, the end of it where that may come."""
    rng = random.Random(seed)
    constraint = grammar.begin()
    text = b""
    for _ in range(most):
        allowed = ids(constraint.allowed())
        ends = tokenizer.end_ids & set(allowed)
        assert ends in (set(), tokenizer.end_ids)
        assert max(allowed) < tokenizer.vocabulary
        if ends:
            return text
        token = rng.choice(allowed)
        assert tokenizer.token_bytes(token)
        text += tokenizer.token_bytes(token)
        constraint.advance(token)
    raise AssertionError(f"no end after {text!r}")


SOURCES = {
    "json_object": (Source("json_object"), lambda text: isinstance(json.loads(text), dict)),
    "json_schema": (
        Source("json_schema", '{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}'),
        lambda text: all(isinstance(item, bool) for item in json.loads(text)),
    ),
    "regex": (Source("regex", "[a-c]{2,4}(好|\U0001f600)x?"), re.compile("[a-c]{2,4}(好|😀)x?").fullmatch),
    "choice with none": (Source("choice", '["", "a", "ab"]'), lambda text: text in ("", "a", "ab")),
    "choice": (Source("choice", json.dumps([*EMOJI, 'a"\\\n'])), lambda text: text in [*EMOJI, 'a"\\\n']),
    "lark": (Source("lark", 'start: "x" item{2}\nitem: /[0-9]/ | "é"'), re.compile("x[0-9é]{2}").fullmatch),
    "gbnf": (
        Source("gbnf", 'root ::= "x" item item\nitem ::= [0-9] | "é"'),
        re.compile("x[0-9é]{2}").fullmatch,
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_way_through_a_grammar_ends_in_a_text_of_it(
    grammars: Grammars, tokenizer: Tokenizer, kind: str
) -> None:
    source, obeys = SOURCES[kind]
    compiled = grammars.compile(source)
    for seed in range(8):
        text = text_of(compiled, tokenizer, seed).decode()
        assert obeys(text), text


@pytest.mark.parametrize(
    "source",
    [
        Source("choice", json.dumps(EMOJI)),
        Source("json_schema", json.dumps({"enum": EMOJI})),
        Source("regex", "[\u4e00-\u9fa5]{1,6}"),
        Source("regex", "[\U0001f300-\U0001faff]{1,4}"),
        Source("json_schema", json.dumps({"type": "string", "pattern": "^\\p{Han}{1,3}$"})),
        Source("json_schema", json.dumps({"type": "string", "maxLength": 3})),
    ],
    ids=repr,
)
def test_no_text_ends_inside_of_a_character(grammars: Grammars, tokenizer: Tokenizer, source: Source) -> None:
    compiled = grammars.compile(source)
    texts = {text_of(compiled, tokenizer, seed).decode() for seed in range(12)}
    assert any(len(text.encode()) > len(text) for text in texts)


def test_white_space_between_json_tokens_is_bounded(plain: Grammars) -> None:
    tokenizer = TOKENIZERS["bytes"]
    constraint = plain.compile(Source("json_object")).begin()
    for byte in b'{\n  "a":':
        constraint.advance(tokenizer.encode_part(chr(byte))[0])
    for count in range(100):
        allowed = {tokenizer.token_bytes(id) for id in ids(constraint.allowed())}
        if not allowed & {b" ", b"\n", b"\t"}:
            break
        constraint.advance(tokenizer.encode_part("\n" if count == 0 else " ")[0])
    assert 1 < count < 30


@pytest.mark.parametrize(
    "schema", [{"format": "date"}, {"type": ["string", "null"], "format": "date-time"}], ids=str
)
def test_dates_exist(plain: Grammars, schema: dict[str, object]) -> None:
    compiled = plain.compile(Source("json_schema", json.dumps(record(day=schema))))

    def obeys(day: str) -> bool:
        constraint = compiled.begin()
        try:
            write(constraint, f'{{"day": "{day}{"T10:20:30Z" * ("time" in str(schema))}"}}'.encode())
        except InvalidRequestError:
            return False
        return True

    assert all(map(obeys, ("2024-02-29", "2000-02-29", "1999-12-31", "0004-02-29", "2023-04-30")))
    assert not any(
        map(obeys, ("2023-02-29", "1900-02-29", "2024-02-30", "2023-04-31", "2023-13-01", "0000-01-01"))
    )


def test_dates_in_values_are_left_alone() -> None:
    schema = {
        "const": {"format": "date"},
        "enum": [{"format": "date"}],
        "properties": {"format": {"type": "string"}, "const": {"format": "date"}},
        "items": [{"format": "date", "allOf": [{"maxLength": 3}]}, True],
    }
    dated = {"pattern": PATTERNS["date"]}
    assert with_real_dates(schema) == schema | {
        "properties": {"format": {"type": "string"}, "const": {"format": "date", "allOf": [dated]}},
        "items": [{"format": "date", "allOf": [{"maxLength": 3}, dated]}, True],
    }


def test_a_token_that_ends_texts_is_no_text_whatever_it_spells() -> None:
    metadata = vocabularies.special_bytelevel({"stop": vocabularies.NORMAL})
    tokenizer = tokenizer_of(metadata | {"tokenizer.ggml.eos_token_id": 257})
    found = Grammars(tokenizer)
    constraint = found.compile(Source("regex", "stopstop")).begin()
    for byte in b"stopstop":
        assert 257 not in ids(constraint.allowed())
        constraint.advance(byte if tokenizer.token_bytes(byte) == bytes([byte]) else _id(tokenizer, byte))
    assert ids(constraint.allowed()) == [257]
    found.close()


def _id(tokenizer: Tokenizer, byte: int) -> int:
    return next(id for id in range(tokenizer.vocabulary) if tokenizer.token_bytes(id) == bytes([byte]))


def test_a_grammar_may_name_control_tokens(plain: Grammars) -> None:
    tokenizer = TOKENIZERS["bytes"]
    tool = tokenizer.encode("<tool>", add_special=False, parse_special=True)
    constraint = plain.compile(Source("lark", 'start: <tool> "a"')).begin()
    assert ids(constraint.allowed()) == tool
    constraint.advance(tool[0])
    assert [tokenizer.token_bytes(id) for id in ids(constraint.allowed())] == [b"a"]


def test_a_source_is_compiled_once(plain: Grammars) -> None:
    first = plain.compile(Source("regex", "once", "guided_regex"))
    assert plain.compile(Source("regex", "once", "structured_outputs.regex")) == first
    assert plain.compile(Source("choice", '["once"]')) != first
    for n in range(KEPT):
        plain.compile(Source("regex", f"n{n}"))
        plain.compile(Source("regex", f"n{KEPT - 1}" if n > 0 else "n0"))
    assert plain.compile(Source("regex", "once")) != first


def test_each_owner_has_sources_compiled_again(plain: Grammars) -> None:
    """The time that it takes tells nobody what others ask for."""
    source = Source("regex", "owned")
    alices, bobs = (plain.compile(source, name) for name in ("alice", "bob"))
    assert alices != bobs
    assert (plain.compile(source, "alice"), plain.compile(source, "bob")) == (alices, bobs)
    assert plain.compile(source) not in (alices, bobs)


REFUSED = {
    "no regular expression": (Source("regex", "(", "guided_regex"), "unclosed group"),
    "look-ahead": (Source("regex", "a(?=b)"), "look-around"),
    "no JSON": (Source("json_schema", "{"), "Expecting property name"),
    "no schema": (Source("json_schema", "3"), "must be an object"),
    "options of the library": (Source("json_schema", '{"x-guidance": {"lenient": true}}'), "x-guidance"),
    "no type": (Source("json_schema", '{"type": "strin"}'), "Invalid type: strin"),
    "keywords": (Source("json_schema", '{"not": {}, "if": 1}'), "keywords that are not supported: if, not;"),
    "a keyword inside": (
        Source("json_schema", '{"properties": {"a": {"uniqueItems": true}}}'),
        "keywords that are not supported: uniqueItems;",
    ),
    "a format": (Source("json_schema", '{"type": "string", "format": "foo"}'), "Unknown format: foo"),
    "one of what overlaps": (
        Source("json_schema", '{"oneOf": [{"type": "number"}, {"type": "integer"}]}'),
        "oneOf constraints are not supported",
    ),
    "a reference elsewhere": (Source("json_schema", '{"$ref": "https://example.org/s"}'), "does not fetch"),
    "a reference to nothing": (Source("json_schema", '{"$ref": "#/$defs/a"}'), "does not exist"),
    "a reference to itself": (Source("json_schema", '{"$ref": "#"}'), "no text obeys it"),
    "what nothing satisfies": (
        Source("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}'),
        "Unsatisfiable schema",
    ),
    "nothing to choose from": (Source("choice", "[]"), "empty"),
    "no grammar": (Source("lark", "foo bar"), "Expected token"),
    "no rule of that name": (Source("gbnf", "root ::= nothing"), "not found"),
    "no root": (Source("gbnf", 'leaf ::= "a"'), "No 'root' rule found"),
    "a control token that is none": (Source("lark", "start: <|nothing|>"), "nknown special token"),
    "long": (Source("regex", "a" * (MOST_CHARACTERS + 1)), f"at most {MOST_CHARACTERS}"),
    "lists in lists": (Source("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000), "nested too deeply"),
    "groups in groups": (Source("regex", "(" * 20_000 + "a" + ")" * 20_000), "regex"),
    "parentheses": (Source("lark", "start: " + "(" * 3000 + '"a"' + ")" * 3000), "nested"),
    "a long chain of rules": (Source("lark", f"start: r0\n{CHAIN}"), "nested too deeply"),
    "alternatives of alternatives": (
        Source("json_schema", json.dumps({"allOf": [{"anyOf": [{"required": [j]} for j in "abcdef"]}] * 8})),
        "schema too large",
    ),
}  # fmt: skip


SLOW = {
    "a multiple of a large number": Source("json_schema", '{"type": "integer", "multipleOf": 1000003}'),
    "doubling": Source("lark", f'start: A0\n{DOUBLING}A25: "x"'),
    "repetitions in repetitions": Source("regex", "(a{1000}){1000}"),
    "many patterns of properties": Source(
        "json_schema", json.dumps({"patternProperties": {f"^a{i}[a-z]*$": {} for i in range(300)}})
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SLOW)
def test_what_takes_long_is_broken_off(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(grammar, "MOST_SECONDS", 0.2)
    found = Grammars(TOKENIZERS["bytes"])
    with pytest.raises(InvalidRequestError, match=r"grammar: it takes too (much time|long to tell)"):
        found.compile(SLOW[case])
    assert text_of(found.compile(Source("choice", '["fine"]')), TOKENIZERS["bytes"]) == b"fine"
    found.close()


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(plain: Grammars, case: str) -> None:
    source, complaint = REFUSED[case]
    with pytest.raises(InvalidRequestError) as caught:
        plain.compile(source)
    message = str(caught.value)
    assert message.startswith(f"{source.field}: ")
    assert caught.value.param == source.field
    assert complaint in message
    assert "\n" not in message
    assert len(message) < 400
    assert text_of(plain.compile(Source("choice", '["fine"]')), TOKENIZERS["bytes"]) == b"fine"


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"type": "strin"}, "Invalid type: strin"),
        ({"properties": {"a": {"not": {}}}}, "keywords that are not supported: not; leave them out"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "Pointer '/x' does not exist"),
        ({"x-guidance": {}}, "the keyword x-guidance is not supported; leave it out"),
    ],
)
def test_a_wrong_schema_of_a_tool_is_refused_by_the_name_of_the_tool(
    plain: Grammars, parameters: dict[str, object], complaint: str
) -> None:
    tools = [Tool(name="right"), Tool(name="wrong", parameters=parameters)]
    with pytest.raises(InvalidRequestError) as caught:
        plain.compile(call_grammar(GENERIC, {}, tools, several=True))
    assert str(caught.value) == f'tools: the parameters of "wrong": {complaint}'
    assert caught.value.param == "tools"


LARGE = {
    "nested quantifiers": Source("regex", "((a+)+)+b"),
    "any text before": Source("regex", "(.*a){30}"),
    "a long repetition": Source("regex", "[a-z]{0,50000}b"),
    "five thousand choices": Source("choice", json.dumps([f"item {n}" for n in range(5000)])),
    "sixty deep": Source("json_schema", '{"type":"array","items":' * 60 + "{}" + "}" * 60),
    "a billion items": Source("json_schema", '{"type": "array", "items": {}, "maxItems": 1000000000}'),
    "alternatives in alternatives": Source(
        "json_schema",
        json.dumps(
            {"$ref": "#/$defs/d0", "$defs": {"d25": {"type": "string"}}
             | {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(25)}}
        ),
    ),
    "ambiguous": Source("lark", 'start: a\na: a a | "x" | ""'),
}  # fmt: skip


@pytest.mark.parametrize("case", LARGE)
def test_what_is_large_and_served(plain: Grammars, case: str) -> None:
    constraint = plain.compile(LARGE[case]).begin()
    for _ in range(5):
        allowed = ids(constraint.allowed())
        if TOKENIZERS["bytes"].end_ids & set(allowed):
            break
        constraint.advance(allowed[0])


def test_a_text_that_fails_spoils_no_other(plain: Grammars) -> None:
    """Matchers of one grammar share what they find out, also that they cannot go on."""
    tokenizer = TOKENIZERS["bytes"]
    compiled = plain.compile(Source("regex", r"ab(x|(\p{L}{1,9}\s?){1,5000}!)", "guided_regex"))
    held = compiled.begin()
    (ab,) = tokenizer.encode_part("ab")
    held.advance(ab)
    failing = compiled.begin()
    failing.advance(ab)
    with pytest.raises(InvalidRequestError, match=r"cannot go on|too long") as caught:
        write(failing, b"abcdefghi " * 200)
    assert caught.value.param == "guided_regex"
    assert failing.slow
    assert not plain.compile(Source("regex", "ab")).begin().slow
    for constraint in (held, compiled.begin()):
        if constraint is not held:
            constraint.advance(ab)
        assert _id(tokenizer, ord("x")) in ids(constraint.allowed())


def write(constraint: Constraint, text: bytes) -> None:
    for byte in text:
        constraint.allowed()
        constraint.advance(_id(TOKENIZERS["bytes"], byte))


def test_a_token_that_is_not_allowed(plain: Grammars) -> None:
    constraint = plain.compile(Source("regex", "a")).begin()
    with pytest.raises(InvalidRequestError, match="the grammar cannot go on"):
        constraint.advance(_id(TOKENIZERS["bytes"], ord("b")))


def test_a_model_whose_texts_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(vocabularies.special_bytelevel({}))
    monkeypatch.setattr(tokenizer, "end_ids", frozenset())
    with pytest.raises(InvalidRequestError, match="no token that ends a text"):
        Grammars(tokenizer).compile(Source("json_object"))


def test_a_mask_that_takes_too_long(plain: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = plain.compile(Source("regex", "[a-z]+", "guided_regex")).begin()
    monkeypatch.setattr(grammar, "MOST_MASK_SECONDS", 0.0)
    with pytest.raises(InvalidRequestError, match="takes too long") as caught:
        constraint.allowed()
    assert caught.value.param == "guided_regex"


def test_a_grammar_that_was_slow_once_is_slow_for_all_of_its_texts(
    plain: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = plain.compile(Source("regex", "[slow]+"))
    one, other = compiled.begin(), compiled.begin()
    one.allowed()
    assert not one.slow
    assert not other.slow
    monkeypatch.setattr(grammar, "SLOW_SECONDS", 0.0)
    one.allowed()
    assert one.slow
    assert other.slow


def test_closed_grammars() -> None:
    found = Grammars(TOKENIZERS["bytes"])
    found.compile(Source("regex", "a"))
    found.close()
    found.close()
    assert text_of(found.compile(Source("regex", "a")), TOKENIZERS["bytes"]) == b"a"
    with pytest.raises(UnavailableError, match="being unloaded"):
        found.compile(Source("regex", "b"))
