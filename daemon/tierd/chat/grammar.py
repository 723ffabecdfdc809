"""What an answer must obey: JSON schemas, regular expressions, choices and grammars, over a model's tokens.

`llguidance` does the work (https://github.com/guidance-ai/llguidance): it compiles them, follows a text token
by token, and tells which tokens may come next.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tierd.chat.tokenizer import Tokenizer
from tierd.core import Constraint, Grammar, TokenMask
from tierd.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_CHARACTERS = 1 << 18
# Compiled sources that a model keeps.
KEPT = 64

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


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar as it was asked for.

    text: a JSON schema, a regular expression, a grammar in Lark's or llama.cpp's notation, or a JSON list of
    strings to choose from; "" for json_object. field: of the request, named where there is something wrong.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark", "gbnf", "choice"]
    text: str = ""
    field: str = dataclasses.field(default="grammar", compare=False)


class Grammars:
    """The grammars of one model's answers; thread-safe. What it takes is made when the first is asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Source, Grammar] = OrderedDict()

    def compile(self, source: Source) -> Grammar:
        """Return what a source describes. May take a second, and several the first time.

        Raises InvalidRequestError, which names the source's field, for what is wrong with it.
        """
        try:
            return self._find(source)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{source.field}: {error}", param=source.field) from error

    def _find(self, source: Source) -> Grammar:
        """Return what is kept of a source, or compile it."""
        with self._lock:
            if source in self._compiled:
                self._compiled.move_to_end(source)
                return self._compiled[source]
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer)
            vocabulary = self._vocabulary
        grammar = _Compiled(vocabulary, source, self._tokenizer.vocabulary)
        with self._lock:
            self._compiled[source] = grammar
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return grammar


class _Compiled:
    """A grammar over a vocabulary. Its matcher is only ever copied."""

    def __init__(self, vocabulary: LLTokenizer, source: Source, size: int) -> None:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        self._matcher = LLMatcher(vocabulary, _grammar(source), log_level=0, limits=limits)
        self._words = -(-size // 32)
        if self._matcher.is_error():
            raise InvalidRequestError(_line(self._matcher.get_error()))

    def begin(self) -> Constraint:
        return _Following(self._matcher.deep_copy(), self._words)


class _Following:
    """A text that a matcher follows. words: of a mask."""

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher = matcher
        self._words = words

    def allowed(self) -> TokenMask:
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        self._check()
        return TokenMask(words)

    def advance(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequestError(f"the grammar cannot go on: {_line(self._matcher.get_error())}")


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """Return the tokens as llguidance wants them. It holds the interpreter for all of the time that takes."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.end_ids:
        raise InvalidRequestError("the model has no token that ends a text, so it cannot follow a grammar")
    return LLTokenizer(TokenizerWrapper(_Tokens(tokenizer)), eos_token=sorted(tokenizer.end_ids))


class _Tokens:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocabulary)
        self.eos_token_id = min(tokenizer.end_ids)
        self.special_token_ids = [id for id in ids if id in tokenizer.end_ids or tokenizer.is_control(id)]
        self.tokens = [tokenizer.token_bytes(id) for id in ids]
        for id in self.special_token_ids:
            self.tokens[id] = tokenizer.token_text(id).encode()
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode_part(text.decode())


def _grammar(source: Source) -> str:
    """Return a source in llguidance's notation."""
    from llguidance import LLMatcher

    match source.kind:
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON)
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(source.text, overrides=_JSON)
        case "regex":
            return LLMatcher.grammar_from_regex(source.text)
        case "choice":
            choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(source.text))
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case "lark":
            return LLMatcher.grammar_from_lark(source.text)
        case "gbnf":
            from llguidance.gbnf_to_lark import gbnf_to_lark

            return LLMatcher.grammar_from_lark(gbnf_to_lark(source.text))


def _line(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())
