from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tierd.chat.calls_behind import CallsBehind
from tierd.core import Constraint, TokenMask
from tierd.errors import InvalidRequestError

MARK, OTHER = "<call>", "call:"
TOKENS = [
    "<",
    "call",
    ">",
    ">\n",
    "all>{",
    "<c",
    "all",
    "x<call>",
    "x<call>y",
    "text",
    "<call>",
    "all>",
    "c",
    ":",
    ":no",
]
LEADS = {MARK: [TOKENS.index("<c"), TOKENS.index("all>")]}


class Words:
    """A tokenizer of few words."""

    vocabulary = len(TOKENS)

    def token_bytes(self, token: int) -> bytes:
        return TOKENS[token].encode()

    def token_text(self, token: int) -> str:
        return TOKENS[token]

    def encode_part(self, text: str) -> list[int]:
        return [TOKENS.index(text)] if text else []


class Noted:
    """A grammar, and its one constraint: allows what none else does, and notes what comes."""

    slow = False

    def __init__(self) -> None:
        self.came: list[str] = []

    def begin(self) -> Noted:
        self.came = []
        return self

    def allowed(self) -> TokenMask | None:
        return TokenMask.of([TOKENS.index(self._next)], len(TOKENS))

    def advance(self, token: int) -> None:
        if TOKENS[token] != self._next:
            raise InvalidRequestError("the grammar cannot go on")
        self.came.append(TOKENS[token])

    @property
    def _next(self) -> str:
        return ("<c", "all>", "text", "<")[len(self.came)]


def behind(inner: Noted, begun: str = "", leads: Mapping[str, Sequence[int]] = LEADS) -> Constraint:
    return CallsBehind(inner, Words(), leads, begun).begin()  # type: ignore[arg-type]


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
    following = behind(Noted())
    for each in text:
        following.advance(TOKENS.index(each))
    assert missing(following.allowed()) == banned


@pytest.mark.parametrize("text", [["<", "call", ">"], ["<c", "all>"], ["text", "x<call>"], ["<", "<call>"]])
def test_the_grammar_holds_from_the_mark_on(text: Sequence[str]) -> None:
    noted = Noted()
    following = behind(noted)
    for each in text:
        assert noted.came == []
        following.advance(TOKENS.index(each))
    assert noted.came == ["<c", "all>"]
    assert missing(following.allowed()) == {*TOKENS} - {"text"}
    following.advance(TOKENS.index("text"))
    assert noted.came == ["<c", "all>", "text"]


@pytest.mark.parametrize(
    ("begun", "came", "banned"),
    [
        ("", [], {"x<call>y"}),
        ("so <c", [], {"x<call>y", "all>{"}),
        ("so <call", [], {"x<call>y", ">\n"}),
        ("so <call>", ["<c", "all>"], {*TOKENS} - {"text"}),
        ("<call>text", ["<c", "all>", "text"], {*TOKENS} - {"<"}),
        ("<call>text<call>", ["<c", "all>"], {*TOKENS} - {"text"}),
        ("<call>c", [], {"x<call>y"}),
        ("<call>" + "text" * 100, [], {"x<call>y"}),
    ],
)
def test_an_answer_may_have_begun_with_a_mark(begun: str, came: Sequence[str], banned: set[str]) -> None:
    noted = Noted()
    following = behind(noted, begun)
    assert (noted.came if banned != {"x<call>y"} else []) == came
    assert missing(following.allowed()) == banned


def test_a_mark_that_was_begun_is_ended() -> None:
    noted = Noted()
    behind(noted, "so <c").advance(TOKENS.index("all>"))
    assert noted.came == ["<c", "all>"]


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ([], {"x<call>y"}),
        (["<", "c"], {"x<call>y", "all>{"}),
        (["c", "all"], {"x<call>y", ":no"}),
        (["call"], {"x<call>y", ":no"}),
    ],
)
def test_each_mark_has_its_own_beginning(text: Sequence[str], banned: set[str]) -> None:
    leads = {**LEADS, OTHER: [TOKENS.index("<c")]}
    noted = Noted()
    following = behind(noted, leads=leads)
    for each in text:
        following.advance(TOKENS.index(each))
    assert missing(following.allowed()) == banned
    if ":no" in banned:
        following.advance(TOKENS.index(":"))
        assert noted.came == ["<c"]
