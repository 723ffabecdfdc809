"""What a model writes in answer to a chat, taken apart: thoughts, text, calls of tools.

A `formats.ReplyFormat` belongs to a model and is found when that is loaded, from its template and vocabulary.
It makes a `ReplyParser` for each choice, which takes the text as it comes and returns pieces of it. However a
text is cut on its way, pieces of a kind that follow one another are the same when they are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tierd.core import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Thought:
    """More of what the model thinks before it answers; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """More of the answer's text.

    logprobs: of the tokens whose text begins in it, where the request asks for them; then the text may be
    empty. The parser leaves them out, http/turns/scoring.py puts them in. at: where it begins in the model's
    text.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    at: int = 0


@dataclass(frozen=True, slots=True)
class Called:
    """The model calls a tool. index: 0 for the first call of the answer. id: to be answered under."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Thought | Said | Called | Arguments


class ReplyParser(Protocol):
    """Takes one choice's text apart. Pure."""

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends in a thought."""

    @property
    def ended(self) -> bool:
        """Whether the answer is over though the model goes on; nothing after it counts."""

    def push(self, text: str) -> Sequence[Piece]:
        """Return what has become certain with more text."""

    def finish(self) -> Sequence[Piece]:
        """Return what was held back; called once, when the model's text has ended."""
