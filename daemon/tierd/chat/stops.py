"""Turns a stream of token ids into text that is safe to send: whole characters, nothing of a stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from tierd.chat.tokenizer import Tokenizer
from tierd.core import TextStream
from tierd.errors import InvalidRequestError


def text_stream(tokenizer: Tokenizer, stop: Sequence[str] = ()) -> TextStream:
    """Return a TextStream over the tokens of one answer.

    The pieces joined are the bytes of the tokens decoded as a whole, bad UTF-8 replaced by U+FFFD, cut
    before the stop string that is completed first (the longest, where several end together). The tokens
    follow a prompt, so a space that a first token begins with is kept. Raises InvalidRequestError for an
    empty stop string.
    """
    if "" in stop:
        raise InvalidRequestError("a stop string must not be empty", param="stop")
    return _Stream(tokenizer, tuple(stop))


class _Stream:
    """held: decoded text that may be the beginning of a stop string.

    returned: characters handed out. starts: where the text of each token that is not shown yet begins.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._stopped = False
        self._returned = 0
        self._starts: deque[int] = deque()
        self._shown = 0

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def shown(self) -> int:
        return self._shown

    def push(self, token: int) -> str:
        self._starts.append(self._returned + len(self._held))
        text = self._release(self._decoder.decode(self._tokenizer.token_bytes(token)))
        self._returned += len(text)
        while self._starts and self._starts[0] < self._returned:
            self._starts.popleft()
            self._shown += 1
        return text

    def finish(self) -> str:
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        self._shown += len(self._starts)
        self._starts.clear()
        return text + held

    def _release(self, text: str) -> str:
        """Take in new text and return what can no longer become part of a stop string."""
        if self._stopped:
            return ""
        text = self._held + text
        matches = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stop if stop in text]
        if matches:
            end, length = min(matches)
            self._stopped = True
            self._held = ""
            return text[: end + length]
        sure = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[sure:]
        return text[:sure]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`, short of the whole of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
