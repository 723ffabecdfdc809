"""Cuts a text at the spellings of special tokens, before anything else is done to it.

The rules are llama.cpp's (`tokenizer_st_partition`): the longest spelling first, over the whole text;
user-defined tokens always match, control and unknown tokens only when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tierd.chat.vocabulary import TokenKind, Vocabulary

# C's isspace, which says what a stripping token swallows.
_SPACE = " \t\n\v\f\r"
_PREFIX = 4
_MANY = 64
_FREE, _TAKEN = b"\0", b"\1"


@dataclass(slots=True)
class _Family:
    """Special tokens that begin alike. order: spelling -> (rank by length, id, matches unasked)."""

    order: dict[str, tuple[int, int, bool]] = field(default_factory=dict)

    def present(self, text: str, start: int) -> Iterator[str]:
        """Return the spellings that occur in the text, whose first match of the prefix is at `start`.

        Some vocabularies have thousands in one family ("<unused0>", ...): then it is quicker to look at
        each place where the prefix stands than for each spelling in turn.
        """
        if len(self.order) <= _MANY:
            return (spelling for spelling in self.order if spelling in text)
        return iter(self._scan(text, start))

    def _scan(self, text: str, start: int) -> set[str]:
        lengths = {len(spelling) for spelling in self.order}
        prefix = text[start : start + _PREFIX]
        found = set()
        while start >= 0:
            found |= {text[start : start + length] for length in lengths} & self.order.keys()
            start = text.find(prefix, start + 1)
        return found


class SpecialTokens:
    """The special tokens of one vocabulary; immutable."""

    def __init__(self, vocabulary: Vocabulary, strips_after: frozenset[str] = frozenset()) -> None:
        """`strips_after`: spellings that swallow the white space which follows them."""
        self._strips_after = strips_after
        kinds = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
        found = [index for index, kind in enumerate(vocabulary.kinds) if kind in kinds]
        found.sort(key=lambda index: -len(vocabulary.tokens[index].encode()))
        self._families: dict[str, _Family] = {}
        for rank, index in enumerate(found):
            spelling = vocabulary.tokens[index]
            family = self._families.setdefault(spelling[:_PREFIX], _Family())
            family.order[spelling] = (rank, index, vocabulary.kinds[index] == TokenKind.USER_DEFINED)

    def partition(self, text: str, *, parse_special: bool) -> list[str | int]:
        """Return the text as stretches of ordinary text, never empty, and ids of special tokens."""
        parts: list[str | int] = []
        done = 0
        for start, end, token in sorted(self._cuts(text, parse_special)):
            if done < start:
                parts.append(text[done:start])
            parts.append(token)
            done = end
        if done < len(text):
            parts.append(text[done:])
        return parts

    def _cuts(self, text: str, parse_special: bool) -> Iterator[tuple[int, int, int]]:
        """Yield where each special token begins and ends, with the white space it swallows, and its id."""
        taken = bytearray(len(text))
        for token, spelling in self._present(text, parse_special):
            start = text.find(spelling)
            while start >= 0:
                end = start + len(spelling)
                blocked = taken.rfind(_TAKEN, start, end)
                if blocked >= 0:
                    end = taken.find(_FREE, blocked)
                    if end < 0:
                        break
                else:
                    if spelling in self._strips_after:
                        end = _skip_space(text, taken, end)
                    taken[start:end] = _TAKEN * (end - start)
                    yield start, end, token
                start = text.find(spelling, end)

    def _present(self, text: str, parse_special: bool) -> list[tuple[int, str]]:
        """Return id and spelling of the tokens that occur in the text, longest first."""
        found = []
        for prefix, family in self._families.items():
            start = text.find(prefix)
            if start < 0:
                continue
            for spelling in family.present(text, start):
                rank, token, unasked = family.order[spelling]
                if unasked or parse_special:
                    found.append((rank, token, spelling))
        return [(token, spelling) for _, token, spelling in sorted(found)]


def _skip_space(text: str, taken: bytearray, position: int) -> int:
    while position < len(text) and text[position] in _SPACE and not taken[position]:
        position += 1
    return position
