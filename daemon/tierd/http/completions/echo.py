"""Prompts that are shown before their answers: their texts, and where in these each token begins."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tierd.chat.tokenizer import Tokenizer
from tierd.core import TokenLogprobs
from tierd.http.generation.logprobs import TextScribe
from tierd.http.shapes import TextLogprobs


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt that came in `field`. text: as it is shown, starts: see `token_starts`; where asked for."""

    ids: list[int]
    field: str
    text: str = ""
    starts: Sequence[int] = ()


def spell(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text that becomes these ids, control tokens spelled.

    Without the one that the model begins texts with by itself.
    """
    if ids and tokenizer.adds_bos and ids[0] == tokenizer.bos_id:
        ids = ids[1:]
    return "".join(
        tokenizer.decode(group) if is_text else "".join(map(tokenizer.token_text, group))
        for is_text, group in groupby(ids, lambda token: bool(tokenizer.token_bytes(token)))
    )


def token_starts(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[int]:
    """Return how many characters of a prompt's text are before each of its tokens.

    A control token that the text does not spell has none, and so has a space that was put before a text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    starts = []
    place = 0
    for token in ids:
        starts.append(place)
        raw = tokenizer.token_bytes(token)
        piece = decoder.decode(raw) if raw else tokenizer.token_text(token)
        if not raw and not text.startswith(piece, place):
            continue
        if raw and piece.startswith(" ") and not text.startswith(" ", place):
            piece = piece[1:]
        place = min(place + len(piece), len(text))
    return starts


class Echo:
    """Shows the prompt of one choice, from its first to its last token.

    scribe: writes down how likely its tokens are; None: that is not asked for.
    """

    def __init__(self, prompt: TextPrompt, scribe: TextScribe | None) -> None:
        self._prompt = prompt
        self._scribe = scribe
        self._shown = 0  # tokens

    @property
    def left(self) -> bool:
        """Whether anything is to be shown yet."""
        return self._shown < len(self._prompt.ids)

    @property
    def due(self) -> bool:
        """Whether that needs scores: of a prompt of one token there are none."""
        return self._scribe is not None and self.left and len(self._prompt.ids) > 1

    def show(self, scores: Sequence[TokenLogprobs] = ()) -> tuple[str, TextLogprobs | None]:
        """Return the text, and its object, of the tokens that `scores` are of, which come next.

        Of the first one nothing is known: it comes with them. Where no scores are asked for: of all tokens.
        """
        prompt, begun = self._prompt, self._shown
        if self._scribe is None:
            self._shown = len(prompt.ids)
            return prompt.text, None
        self._shown += len(scores) + (not begun)
        edges = (*prompt.starts, len(prompt.text))
        written = self._scribe.write_prompt(
            prompt.starts[begun : self._shown], scores, None if begun else prompt.ids[0]
        )
        return prompt.text[edges[begun] : edges[self._shown]], written
