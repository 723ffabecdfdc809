"""Log-probabilities in OpenAI's two shapes: that of chats and the older one of completions."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from tierd.chat.tokenizer import Tokenizer
from tierd.core import TokenLogprobs
from tierd.http.shapes import ChatLogprobs, TextLogprobs, TokenLogprob, TopLogprob

# JSON has no minus infinity; OpenAI documents this number for what is too unlikely.
LEAST = -9999.0
# What it takes to spell one token's log-probability, in characters of a text to be encoded.
CHARACTERS_PER_LOGPROB = 8


class ChatScribe:
    """Writes down the tokens of one choice of a chat."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def write(self, logprobs: Iterable[TokenLogprobs]) -> ChatLogprobs:
        """Return the object for these tokens."""
        return ChatLogprobs([self._token(entry) for entry in logprobs])

    def _token(self, entry: TokenLogprobs) -> TokenLogprob:
        top = [TopLogprob(*self._spell(id, logprob)) for id, logprob in entry.top]
        return TokenLogprob(*self._spell(entry.token, entry.logprob), top)

    def _spell(self, token: int, logprob: float) -> tuple[str, float, list[int] | None]:
        raw = self._tokenizer.token_bytes(token)
        if not raw:
            return self._tokenizer.token_text(token), finite(logprob), None
        return raw.decode("utf-8", "replace"), finite(logprob), list(raw)


class TextScribe:
    """Writes down the tokens of one choice of a completion, from its first to its last.

    with_top: whether the most likely tokens are asked for as well. offset: characters of the text before it.
    """

    def __init__(self, tokenizer: Tokenizer, *, with_top: bool, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._with_top = with_top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = offset

    def write(self, logprobs: Sequence[TokenLogprobs]) -> TextLogprobs:
        """Return the object for the next tokens."""
        return self.write_prompt([self._step(entry.token) for entry in logprobs], logprobs)

    def write_prompt(
        self, starts: Sequence[int], logprobs: Sequence[TokenLogprobs], first: int | None = None
    ) -> TextLogprobs:
        """Return the object for tokens that begin at these characters of the text.

        first: one before the others, of which nothing is known, as it is the first of all.
        """
        unknown = [] if first is None else [first]
        nothing = [None] * len(unknown)
        return TextLogprobs(
            tokens=[*map(self._spell, unknown), *(self._spell(entry.token) for entry in logprobs)],
            token_logprobs=[*nothing, *(finite(entry.logprob) for entry in logprobs)],
            top_logprobs=[*nothing, *map(self._top, logprobs)] if self._with_top else None,
            text_offset=list(starts),
        )

    def _step(self, token: int) -> int:
        start = self._offset
        self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return start

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """Return the likely tokens and the drawn one; of tokens that are spelled alike, the likeliest."""
        top: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            top.setdefault(self._spell(token), finite(logprob))
        return top

    def _spell(self, token: int) -> str:
        """Return a token's text; part of a character as OpenAI writes it, with its bytes in hexadecimal."""
        raw = self._tokenizer.token_bytes(token) or self._tokenizer.token_text(token).encode()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    """Return a number that JSON can hold; LEAST stands for what is broken or impossible."""
    return logprob if logprob > LEAST else LEAST
