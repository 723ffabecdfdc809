"""The program that tries grammars before the daemon compiles them: nothing there could be broken off.

See `confined`. The first message says, besides, how many "tokens" the model has, and spells its "special"
ones by id; each later one is a source, "kind" and "text". The answer is the source in llguidance's notation,
once that was compiled, and asked what may come first, over a vocabulary of bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from tierd.chat.confined import Answers, serve
from tierd.chat.schema_closing import closed
from tierd.chat.schema_dates import with_real_dates

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# White space that JSON may have between its tokens: enough to be indented, and never without end.
_WHITE_SPACE = r" |\n[ \t]{0,20}"
_JSON: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": _WHITE_SPACE,
    "coerce_one_of": False,
    "lenient": False,
}
# Arguments are written for programs, as models are taught to: no white space that nobody needs.
_COMPACT: JsonCompileOptions = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
}
_OBJECT = '{"type": "object"}'
# What is wrong with a schema inside of a grammar, and in which line of that.
_WRONG_SCHEMA = re.compile(r"at (\d+)\(\d+\): failed to compile JSON schema: (.*)")


def limits() -> LLParserLimits:
    """Return what a grammar may take. A step's fuel lasts for 10 ms as a rule, for half a second at worst."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=50_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def notation(kind: str, text: str) -> str:
    """Return a source in llguidance's notation. Raises ValueError where it is none.

    kind, text: see grammar.Source.
    """
    match kind:
        case "json_object":
            return LLMatcher.grammar_from_json_schema(_OBJECT, overrides=_JSON)
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(_schema(text), overrides=_JSON)
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return LLMatcher.grammar_from_lark(_choice(json.loads(text)))
        case "lark":
            return LLMatcher.grammar_from_lark(text)
        case "calls":
            return LLMatcher.grammar_from_lark(_calls(json.loads(text)))
        case _:
            from llguidance.gbnf_to_lark import gbnf_to_lark

            return LLMatcher.grammar_from_lark(gbnf_to_lark(text))


def _schema(text: str) -> str:
    """Return a JSON schema that means what it says. Raises ValueError where it is no object."""
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("a schema must be an object")
    if "x-guidance" in schema:
        raise ValueError("the keyword x-guidance is not supported; leave it out")
    schema = closed(schema)
    return json.dumps(with_real_dates(schema) if '"date' in text else schema, ensure_ascii=False)


def _choice(choices: list[str], rule: str = "start") -> str:
    """Return a rule of these texts. One token of Lark's: as alternatives of a rule they are limited."""
    if not choices:
        raise ValueError("empty; there must be something to choose from")
    texts = [json.dumps(choice, ensure_ascii=False) for choice in choices if choice]
    optional = "?" if "" in choices else ""
    return f"{rule}: CHOICE{optional}\nCHOICE: {' | '.join(texts)}" if texts else f'{rule}: ""'


def _calls(given: dict[str, Any]) -> str:
    """Return a Lark grammar of calls: see call_grammar. Raises ValueError for a wrong schema of arguments."""
    rules = [given["rules"]]
    for index, (name, schema) in enumerate(given["arguments"]):
        try:
            rules.append(f"arguments{index}: {_json(json.dumps(schema), _COMPACT)}")
        except ValueError as error:
            raise ValueError(_of_tool(name, str(error))) from None
    match given["answer"]:
        case "json_object", _:
            rules.append(f"answer: {_json(_OBJECT, _JSON)}")
        case "json_schema", text:
            rules.append(f"answer: {_json(text, _JSON)}")
        case "choice", text:
            rules.append(_choice(json.loads(text), "answer"))
    return "\n".join(rules)


def _of_tool(name: str, wrong: str) -> str:
    return f'the parameters of "{name}": {wrong}'


def _complaint(kind: str, text: str, error: str) -> str:
    """Return what llguidance complains of in a source; where it is a tool's schema, of which tool."""
    found = _WRONG_SCHEMA.search(error)
    if not found:
        return error
    line, wrong = int(found[1]), found[2]
    if kind == "calls":
        given = json.loads(text)
        for index, (name, _) in enumerate(given["arguments"]):
            if _calls(given).splitlines()[line - 1].startswith(f"arguments{index}: "):
                return _of_tool(name, wrong)
    return wrong


def _json(text: str, options: JsonCompileOptions) -> str:
    """Return a JSON schema as the body of a rule. Raises ValueError where it is none."""
    schema = json.loads(_schema(text)) | {"x-guidance": options}
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


class _Bytes:
    """Every byte is a token, beside a model's special tokens; its others are none."""

    bos_token_id = None

    def __init__(self, count: int, special: Mapping[int, str]) -> None:
        self.tokens = [b""] * count
        free = (id for id in range(count) if id not in special)
        for byte, id in zip(range(256), free, strict=False):
            self.tokens[id] = bytes([byte])
        for id, spelling in special.items():
            self.tokens[id] = spelling.encode()
        self.special_token_ids = sorted(special)
        self.eos_token_id = self.special_token_ids[0]
        self._ids = {token: id for id, token in enumerate(self.tokens)}

    def __call__(self, text: bytes) -> list[int]:
        return [self._ids[bytes([byte])] for byte in text]


def prepare(setup: dict[str, Any]) -> tuple[Answers, str]:
    """Return what tries sources, and nothing to say."""
    special = {int(id): spelling for id, spelling in setup["special"].items()}
    vocabulary = LLTokenizer(TokenizerWrapper(_Bytes(setup["tokens"], special)), slices=[])

    def attempt(source: dict[str, Any]) -> str:
        kind, text = source["kind"], source["text"]
        found = notation(kind, text)
        matcher = LLMatcher(vocabulary, found, log_level=0, limits=limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(_complaint(kind, text, matcher.get_error()))
        return found

    return attempt, ""


if __name__ == "__main__":
    serve(prepare)
