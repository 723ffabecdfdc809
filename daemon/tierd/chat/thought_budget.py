"""A bound on the tokens that a model may think in: once they are spent, the thought is ended for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from tierd.chat.reply import ReplyParser
from tierd.chat.stops import text_stream
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Constraint, Grammar, TokenMask


class ThoughtBudget:
    """See core.Grammar. Leaves answers as free as an inner grammar does, but for the end of a thought."""

    def __init__(
        self,
        inner: Grammar | None,
        tokenizer: Tokenizer,
        *,
        tokens: int,
        end: str,
        spelled: Collection[int],
        parser: Callable[[], ReplyParser],
    ) -> None:
        """tokens: of all thoughts, with the last one of the mark before each. end: the mark behind a thought.

        spelled: see text_stream. parser: makes one, which tells what is thought.
        """
        self._inner = inner
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._end = tokenizer.encode(end, add_special=False, parse_special=True)
        self._spelled = spelled
        self._parser = parser

    def begin(self) -> Constraint:
        """See core.Grammar."""
        return _Spending(
            self._inner.begin() if self._inner is not None else None,
            self._tokenizer,
            self._tokens,
            self._end,
            self._spelled,
            self._parser(),
        )


class _Spending:
    """left: tokens that may be thought in. closing: what is to come next, to end the thought.

    latest: the last tokens, as many as may be the beginning of the mark.
    """

    def __init__(
        self,
        inner: Constraint | None,
        tokenizer: Tokenizer,
        tokens: int,
        end: list[int],
        spelled: Collection[int],
        parser: ReplyParser,
    ) -> None:
        self._inner = inner
        self._vocabulary = tokenizer.vocabulary
        self._left = tokens
        self._end = end
        self._text = text_stream(tokenizer, (), spelled)
        self._parser = parser
        self._closing: deque[int] = deque()
        self._latest: deque[int] = deque(maxlen=len(end) - 1)

    @property
    def slow(self) -> bool:
        return self._inner is not None and self._inner.slow

    def allowed(self) -> TokenMask | None:
        mask = self._inner.allowed() if self._inner is not None else None
        if self._closing and (mask is None or self._closing[0] in mask):
            return TokenMask.of([self._closing[0]], self._vocabulary)
        return mask

    def advance(self, token: int) -> None:
        if self._inner is not None:
            self._inner.advance(token)
        if self._closing and self._closing.popleft() != token:
            self._closing.clear()
        self._latest.append(token)
        self._parser.push(self._text.push(token))
        if self._parser.thinking:
            self._left -= 1
            if self._left <= 0 and not self._closing:
                self._closing.extend(self._end[self._begun() :])

    def _begun(self) -> int:
        """Return how many tokens of the mark have come."""
        latest = list(self._latest)
        return next(n for n in range(len(latest), -1, -1) if latest[len(latest) - n :] == self._end[:n])
