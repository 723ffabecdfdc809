"""Cuts a text at the spellings of special tokens, before anything else is done to it.

The rules are llama.cpp's (`tokenizer_st_partition`): the longest spelling first, over the whole text;
user-defined tokens always match, control and unknown tokens only when asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tierd.chat.vocabulary import TokenKind, Vocabulary

# C's isspace, which says what a stripping token swallows.
_SPACE = " \t\n\v\f\r"
_PREFIX = 4


class SpecialTokens:
    """The special tokens of one vocabulary; immutable."""

    def __init__(self, vocabulary: Vocabulary, strips_after: frozenset[str] = frozenset()) -> None:
        """`strips_after`: spellings that swallow the white space which follows them."""
        self._strips_after = strips_after
        kinds = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
        found = [index for index, kind in enumerate(vocabulary.kinds) if kind in kinds]
        found.sort(key=lambda index: (-len(vocabulary.tokens[index].encode()), index))
        # Looking for a few prefixes is much quicker than for thousands of spellings.
        self._by_prefix: defaultdict[str, list[_Special]] = defaultdict(list)
        for rank, index in enumerate(found):
            spelling = vocabulary.tokens[index]
            always = vocabulary.kinds[index] == TokenKind.USER_DEFINED
            self._by_prefix[spelling[:_PREFIX]].append((rank, index, spelling, always))

    def partition(self, text: str, *, parse_special: bool) -> list[str | int]:
        """Return the text as stretches of ordinary text, never empty, and ids of special tokens."""
        parts: list[str | int] = [text] if text else []
        for token, spelling in self._present(text, parse_special):
            cut: list[str | int] = []
            for part in parts:
                if isinstance(part, str) and spelling in part:
                    cut.extend(self._cut(part, token, spelling))
                else:
                    cut.append(part)
            parts = cut
        return parts

    def _present(self, text: str, parse_special: bool) -> Iterable[tuple[int, str]]:
        """Return id and spelling of the tokens that occur in the text, longest first."""
        found = [
            (rank, token, spelling)
            for prefix, specials in self._by_prefix.items()
            if prefix in text
            for rank, token, spelling, always in specials
            if (always or parse_special) and spelling in text
        ]
        return [(token, spelling) for _, token, spelling in sorted(found)]

    def _cut(self, text: str, token: int, spelling: str) -> Iterator[str | int]:
        start = 0
        while (match := text.find(spelling, start)) >= 0:
            if match > start:
                yield text[start:match]
            yield token
            start = match + len(spelling)
            if spelling in self._strips_after:
                start = len(text) - len(text[start:].lstrip(_SPACE))
        if start < len(text):
            yield text[start:]


# Rank among all special tokens, id, spelling, and whether it matches without being asked for.
_Special = tuple[int, int, str, bool]
