"""What an answer must obey: JSON schemas, regular expressions, choices and grammars, over a model's tokens.

`llguidance` does the work (https://github.com/guidance-ai/llguidance): it compiles them, follows a text token
by token, and tells which tokens may come next.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tierd.chat.confined import Confined, ConfinedError
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Constraint, Grammar, TokenMask
from tierd.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_CHARACTERS = 1 << 17
MOST_SECONDS = 1.0
MOST_MEMORY = 1 << 30
# Of processor time, to take a token in or tell which may come next; a tenth of a millisecond is usual. A
# grammar that has taken longer than the first is slow from then on.
SLOW_SECONDS = 0.005
MOST_MASK_SECONDS = 0.2
# Compiled sources that a model keeps.
KEPT = 32

_WORKER = "tierd.chat.grammar_worker"
# Of a mask that has many tokens most are inside of strings: those of so many characters have it made once.
_SLICES = [r'[^"\\\x00-\x1F\x7F]{1,30}']
_MOST_COMPLAINT = 300
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: (\[.*\])")


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar as it was asked for.

    text: a JSON schema, a regular expression, a grammar in Lark's or llama.cpp's notation, a JSON list of
    strings to choose from, or what call_grammar makes; "" for json_object. field: of the request, named where
    there is something wrong.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark", "gbnf", "choice", "calls"]
    text: str = ""
    field: str = dataclasses.field(default="grammar", compare=False)


class Grammars:
    """The grammars of one model's answers; thread-safe. What it takes is made when the first is asked for.

    A source is tried by a process of its own before it is compiled here, since that cannot be broken off.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kept: OrderedDict[tuple[str, Source], _Compiled] = OrderedDict()  # by owner
        self._lock = threading.Lock()  # of what is kept
        self._turn = threading.Lock()  # to try and compile
        self._vocabulary: LLTokenizer | None = None
        self._worker: Confined | None = None
        self._closed = False

    def compile(self, source: Source, owner: str = "") -> Grammar:
        """Return what a source describes. Blocks, for milliseconds as a rule, for some ten seconds at worst.

        owner: who asks; see core.Request. What others have had compiled is compiled again, so that the time
        it takes tells nobody what they ask for.
        The first one holds the interpreter, for half a second with 262,144 tokens. Raises
        InvalidRequestError, which names the source's field, for what is wrong with it; UnavailableError once
        it is closed.
        """
        try:
            return _Grammar(self._find(owner, source) or self._make(owner, source), source.field)
        except (ConfinedError, InvalidRequestError) as error:
            if self._closed:
                raise UnavailableError(
                    "the model is being unloaded; try again later, or ask for another"
                ) from None
            raise InvalidRequestError(f"{source.field}: {error}", param=source.field) from None

    def close(self) -> None:
        """End its process, and what it is trying. Idempotent."""
        self._closed = True
        if (worker := self._worker) is not None:
            worker.kill()

    def _find(self, owner: str, source: Source) -> _Compiled | None:
        with self._lock:
            if (owner, source) in self._kept:
                self._kept.move_to_end((owner, source))
            return self._kept.get((owner, source))

    def _make(self, owner: str, source: Source) -> _Compiled:
        """Compile a source and keep it. Raises ConfinedError, InvalidRequestError."""
        with self._turn:
            compiled = self._find(owner, source) or self._compile(source)
        with self._lock:
            self._kept[owner, source] = compiled
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return compiled

    def _compile(self, source: Source) -> _Compiled:
        """Compile a source. Raises ConfinedError, InvalidRequestError."""
        if len(source.text) > MOST_CHARACTERS:
            raise InvalidRequestError(f"{len(source.text)} characters; at most {MOST_CHARACTERS}")
        if not self._tokenizer.end_ids:
            raise InvalidRequestError(
                "the model has no token that ends a text, so it cannot follow a grammar"
            )
        notation = self._try(source)
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer)
        return _Compiled(self._vocabulary, notation, self._tokenizer.vocabulary)

    def _try(self, source: Source) -> str:
        """Return a source in llguidance's notation that takes no longer to compile than it may."""
        if self._worker is None or not self._worker.alive:
            if self._closed:
                raise ConfinedError
            self._worker = Confined(_WORKER, _setup(self._tokenizer))
        try:
            return self._worker.ask({"kind": source.kind, "text": source.text})
        except ConfinedError as error:
            raise InvalidRequestError(_complaint(str(error))) from None


@dataclass(frozen=True, slots=True)
class _Grammar:
    """See core.Grammar. field: of the request that it came in."""

    compiled: _Compiled
    field: str = dataclasses.field(compare=False)

    def begin(self) -> Constraint:
        return _Text(self.compiled, self.field)


class _Compiled:
    """A grammar over a vocabulary of so many tokens. Its matcher is only ever copied.

    Copies share what they find out, and what they fail at: then another one takes the matcher's place.

    slow: see core.Constraint.
    """

    def __init__(self, vocabulary: LLTokenizer, notation: str, tokens: int) -> None:
        """Raises InvalidRequestError for one that cannot even begin."""
        self.words = -(-tokens // 32)
        self._vocabulary = vocabulary
        self._notation = notation
        self._matcher = self._match()
        if self._matcher.is_error():
            raise InvalidRequestError(_complaint(self._matcher.get_error()))
        _Text(self).allowed()
        self.slow = False  # the first one finds out what the others share

    def copy(self) -> LLMatcher:
        """Return a matcher of a text that has not begun."""
        return self._matcher.deep_copy()

    def renew(self) -> None:
        """Let matchers that are copied from now on share nothing with the earlier ones."""
        self._matcher = self._match()

    def _match(self) -> LLMatcher:
        from llguidance import LLMatcher

        from tierd.chat.grammar_worker import limits

        return LLMatcher(self._vocabulary, self._notation, log_level=0, limits=limits())


class _Text:
    """A text, as far as it has come. Where its matcher has failed that may be another text's fault."""

    def __init__(self, grammar: _Compiled, field: str | None = None) -> None:
        self._grammar = grammar
        self._field = field
        self._matcher = grammar.copy()
        self._tokens: list[int] = []

    @property
    def slow(self) -> bool:
        return self._grammar.slow

    def allowed(self) -> TokenMask:
        started = time.thread_time()
        mask = self._matcher.compute_bitmask()
        took = self._note(started)
        if self._matcher.is_error():
            self._start_over()
            mask = self._matcher.compute_bitmask()
            self._check()
        if took > MOST_MASK_SECONDS:
            raise self._refusal("it takes too long to tell what may come next; simplify the grammar")
        return TokenMask(np.frombuffer(mask, np.uint32)[: self._grammar.words])

    def advance(self, token: int) -> None:
        self._tokens.append(token)
        started = time.thread_time()
        self._matcher.consume_token(token)
        self._note(started)
        if self._matcher.is_error():
            self._start_over()

    def _note(self, started: float) -> float:
        """Return how much of the thread's time was taken since then."""
        took = time.thread_time() - started
        if took > SLOW_SECONDS:
            self._grammar.slow = True
        return took

    def _start_over(self) -> None:
        self._grammar.slow = True
        self._grammar.renew()
        self._matcher = self._grammar.copy()
        self._matcher.consume_tokens(self._tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._grammar.renew()
            raise self._refusal(f"the grammar cannot go on: {_complaint(self._matcher.get_error())}")

    def _refusal(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(why, param=self._field)


class _Tokens:
    """What llguidance asks of a tokenizer. Tokens that end a text are no text, whatever they spell."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = special_tokens(tokenizer)
        self.eos_token_id = min(tokenizer.end_ids)
        self.special_token_ids = sorted(special)
        self.tokens = [
            special[id].encode() if id in special else tokenizer.token_bytes(id)
            for id in range(tokenizer.vocabulary)
        ]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode_part(text.decode("utf-8", "replace"))


def special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the spellings of the tokens that a grammar has to name, by id: those that are no text."""
    ids = range(tokenizer.vocabulary)
    return {id: tokenizer.token_text(id) for id in ids if id in tokenizer.end_ids or tokenizer.is_control(id)}


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = sorted(tokenizer.end_ids)
    return LLTokenizer(TokenizerWrapper(_Tokens(tokenizer)), eos_token=ends, slices=_SLICES)


def _setup(tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "memory": MOST_MEMORY,
        "seconds": MOST_SECONDS,
        "tokens": tokenizer.vocabulary,
        "special": special_tokens(tokenizer),
    }


def _complaint(text: str) -> str:
    """Return what llguidance complains of, in one line that is not too long."""
    if text.startswith("NoExtension"):
        return "no text obeys it"
    keywords = _UNKNOWN_KEYWORDS.search(text)
    if keywords:
        names = ", ".join(sorted(json.loads(keywords[1])))
        where = text[: keywords.start()]
        return f"{where}keywords that are not supported: {names}; leave them out"
    line = " ".join(text.removesuffix("<non-verbose/>").split())
    return line if len(line) <= _MOST_COMPLAINT else line[:_MOST_COMPLAINT] + "…"
