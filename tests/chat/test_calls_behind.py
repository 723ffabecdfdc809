from __future__ import annotations

from collections.abc import Sequence

import pytest

from tierd.chat.calls_behind import CallsBehind
from tierd.core import TokenMask

MARK = "<call>"
TOKENS = ["<", "call", ">", ">\n", "all>{", "<c", "all", "x<call>", "x<call>y", "text", "<call>", "all>", "c"]


class Words:
    """A tokenizer of few words."""

    vocabulary = len(TOKENS)

    def token_bytes(self, token: int) -> bytes:
        return TOKENS[token].encode()

    def token_text(self, token: int) -> str:
        return TOKENS[token]

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [TOKENS.index("<c"), TOKENS.index("all>")]

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text, add_special=False, parse_special=False)


class Noted:
    """A grammar, and its one constraint: allows what none else does, and notes what comes."""

    slow = False

    def __init__(self) -> None:
        self.came: list[str] = []

    def begin(self) -> Noted:
        return self

    def allowed(self) -> TokenMask | None:
        return TokenMask.of([0], len(TOKENS))

    def advance(self, token: int) -> None:
        self.came.append(TOKENS[token])


def missing(mask: TokenMask | None) -> set[str]:
    return set() if mask is None else {text for id, text in enumerate(TOKENS) if id not in mask}


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ([], {"x<call>y"}),
        (["<"], {"x<call>y"}),
        (["<", "call"], {"x<call>y", ">\n"}),
        (["<c"], {"x<call>y", "all>{"}),
        (["<c", "c"], {"x<call>y"}),
        (["<", "<c"], {"x<call>y", "all>{"}),
    ],
)
def test_a_mark_always_ends_a_token(text: Sequence[str], banned: set[str]) -> None:
    following = CallsBehind(Noted(), Words(), MARK).begin()  # type: ignore[arg-type]
    for each in text:
        following.advance(TOKENS.index(each))
    assert missing(following.allowed()) == banned


@pytest.mark.parametrize("text", [["<", "call", ">"], ["<c", "all>"], ["text", "x<call>"], ["<", "<call>"]])
def test_the_grammar_holds_from_the_mark_on(text: Sequence[str]) -> None:
    noted = Noted()
    following = CallsBehind(noted, Words(), MARK).begin()  # type: ignore[arg-type]
    for each in text:
        assert noted.came == []
        following.advance(TOKENS.index(each))
    assert noted.came == ["<c", "all>"]
    assert missing(following.allowed()) == {*TOKENS[1:]}
    following.advance(TOKENS.index("text"))
    assert noted.came == ["<c", "all>", "text"]
