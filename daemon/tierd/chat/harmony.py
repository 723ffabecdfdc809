"""Reads answers in the Harmony format: messages, each for a channel, of which one may be for a tool.

Source of the format: https://github.com/openai/harmony, docs/format.md.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Literal

from tierd.chat.calls import HARMONY
from tierd.chat.reasoning import Stage
from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.chat.scanning import Marks, Scanner

_MESSAGE = "<|message|>"
_HEADING = ("<|start|>", "<|channel|>", "<|constrain|>", _MESSAGE)
# The prompt ends with the first heading's beginning, so that it may go on with the recipient.
_BEGINS = Marks((*_HEADING, "to=functions."))
_ENDS = Marks([mark for mark in HARMONY.marks if mark not in ("<|constrain|>", _MESSAGE)])
# Characters of a heading; what has none of its end in so many is text.
_LONGEST = 256
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


class HarmonyParser(Scanner):
    """See ReplyParser. An analysis behind text or calls ends an answer that is `guarded`."""

    def __init__(
        self,
        *,
        tools: Collection[str],
        parallel: bool,
        guarded: bool,
        stage: Stage,
        identify: Callable[[], str],
        forced: bool = False,
        strict: bool = False,
    ) -> None:
        """As of TaggedParser."""
        super().__init__(self._heading if stage in ("opening", "behind") else self._body)
        self._tools = tools
        self._parallel = parallel
        self._guarded = guarded
        self._identify = identify
        self._forced = forced
        self._strict = strict
        self._kind: Literal["thought", "text", "call"] = "thought" if stage == "thought" else "text"
        self._answered = stage == "content"  # text or calls have come
        self.thinking = stage == "thought"
        self._thoughts = 0
        self._count = 0

    def _heading(self, pieces: list[Piece]) -> bool:
        """Between messages. What comes there without a mark is text."""
        rest = self._text.lstrip()
        mark = _BEGINS.match(rest) if rest else ""
        if mark == "" and not self._over:
            return False
        if not mark:
            ended = _ENDS.match(rest)
            if ended == "" and not self._over:
                return False
            self._skip(len(self._text) - len(rest))
            if ended:
                self._skip(len(ended))
                return True
            if not rest:
                return False
            self._kind = "text"
            self._state = self._body
            return True
        end = self._text.find(_MESSAGE, 0, _LONGEST)
        if end >= 0:
            self._enter(self._skip(end + len(_MESSAGE)), pieces)
            return not self.ended
        if len(self._text) < _LONGEST:
            return False
        at = self._at
        self._kind = "text"
        self._state = self._body
        self._give(self._skip(len(self._text) - len(rest) + len(mark)), at, pieces)
        return True

    def _enter(self, heading: str, pieces: list[Piece]) -> None:
        channel, recipient = _CHANNEL.search(heading), _RECIPIENT.search(heading)
        self._state = self._body
        self._kind = "text"
        if recipient and recipient[1] in self._tools:
            self._kind = "call"
            pieces.append(Called(self._count, self._identify(), recipient[1]))
        elif channel and channel[1] == "analysis":
            self.ended = self._answered and self._guarded
            self._kind = "thought"
            self.thinking = True
            if self._thoughts and not self.ended:
                pieces.append(Thought("\n\n"))
            self._thoughts += 1

    def _body(self, pieces: list[Piece]) -> bool:
        found = _ENDS.search(self._text)
        count = len(self._text)
        if found:
            count = found.start()
        elif not self._over:
            count -= _ENDS.held(self._text)
        at, text = self._at, self._skip(count)
        if text:
            self._give(text, at, pieces)
        if not found:
            return False
        if self._kind == "call":
            self._count += 1
            self._answered = True
            self._forced |= self._strict
            self.ended = not self._parallel
        self.thinking = False
        self._state = self._heading
        return not self.ended

    def _give(self, text: str, at: int, pieces: list[Piece]) -> None:
        match self._kind:
            case "thought":
                pieces.append(Thought(text))
            case "call":
                pieces.append(Arguments(self._count, text))
            case "text":
                self._answered = True
                if not self._forced:
                    pieces.append(Said(text, at=at))
