"""Thoughts that are ended for a model, in any cut of its text into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat.test_stops import BYTES
from tierd.chat.calls import GENERIC
from tierd.chat.reasoning import ThoughtMarks
from tierd.chat.tagged import TaggedParser
from tierd.chat.thought_budget import ThoughtBudget
from tierd.core import Constraint, TokenMask

STEADY = settings(deadline=None, derandomize=True, database=None)
MARKS = ThoughtMarks("<think>", "</think>")
LETTERS = {letter: BYTES.encode(letter, add_special=False, parse_special=False)[0] for letter in "<think>/ab"}


def parser(stage: str = "opening") -> TaggedParser:
    return TaggedParser(
        marks=MARKS,
        calls=GENERIC,
        tools=(),
        parallel=False,
        guarded=False,
        stage=stage,
        identify=str,  # type: ignore[arg-type]
    )


def letters_of(says: str, tokens: int, stage: str = "opening") -> list[tuple[str, bool]]:
    """Return what comes of a model that says something where it is free to, and whether each was put in."""
    budget = ThoughtBudget(
        None, BYTES, tokens=tokens, end=MARKS.end, spelled=(), parser=lambda: parser(stage)
    )
    constraint = budget.begin()
    found: list[tuple[str, bool]] = []
    left = list(says)
    while True:
        mask = constraint.allowed()
        if mask is None and not left:
            return found
        if mask is None:
            letter = left.pop(0)
        else:
            (letter,) = (letter for letter, token in LETTERS.items() if token in mask)
        constraint.advance(LETTERS[letter])
        found.append((letter, mask is not None))


def written(says: str, tokens: int, stage: str = "opening") -> str:
    return "".join(letter for letter, _ in letters_of(says, tokens, stage))


@pytest.mark.parametrize(
    ("says", "tokens", "text"),
    [
        ("<think>aaaaaa", 3, "<think>aa</think>aaaa"),
        ("<think>aa</think>b", 20, "<think>aa</think>b"),
        ("<think>aa</think>b", 9, "<think>aa</think>k>b"),
        ("<think>aa</than>b", 9, "<think>aa</than</think>>b"),
        ("aaaaaa", 2, "aaaaaa"),
        ("aa<think>aaaa", 1, "aa<think>aaaa"),
        ("<think>a</think><think>aaaa", 11, "<think>a</think><think>a</think>aaa"),
    ],
)
def test_a_thought_has_so_many_tokens(says: str, tokens: int, text: str) -> None:
    assert written(says, tokens) == text


def test_one_that_the_prompt_has_begun_counts_from_the_beginning() -> None:
    assert written("aaaa", 3, "thought") == "aaa</think>a"


@STEADY
@given(st.text("<think>/ab", max_size=20).map(lambda text: f"<think>{text}"), st.integers(1, 12))
def test_only_the_end_of_a_thought_is_ever_put_in(says: str, tokens: int) -> None:
    found = letters_of(says, tokens)
    assert "".join(letter for letter, put_in in found if not put_in) == says
    reading = parser()
    text, thought = "", 0
    for i, (letter, put_in) in enumerate(found):
        reading.push(letter)
        text += letter
        thought += reading.thinking and not put_in
        if put_in and not (i + 1 < len(found) and found[i + 1][1]):
            assert text.endswith(MARKS.end)
            assert not reading.thinking
            assert thought >= tokens
    if not any(put_in for _, put_in in found):
        assert thought < tokens


class Only:
    """A grammar that allows but one letter, once a thought is over."""

    slow = False

    def __init__(self) -> None:
        self.seen = ""

    def begin(self) -> Constraint:
        return self

    def allowed(self) -> TokenMask | None:
        return TokenMask.of([LETTERS["b"]], BYTES.vocabulary) if MARKS.end in self.seen else None

    def advance(self, token: int) -> None:
        self.seen += next(letter for letter, id in LETTERS.items() if id == token)


class Never(Only):
    """One that lets no thought end."""

    def allowed(self) -> TokenMask | None:
        return TokenMask.of([LETTERS["a"]], BYTES.vocabulary)


def test_an_inner_grammar_holds_and_sees_all() -> None:
    only = Only()
    budget = ThoughtBudget(only, BYTES, tokens=2, end=MARKS.end, spelled=(), parser=parser)
    constraint = budget.begin()
    for letter in "<think>a</think>":
        mask = constraint.allowed()
        assert mask is None or LETTERS[letter] in mask
        constraint.advance(LETTERS[letter])
    assert only.seen == "<think>a</think>"
    mask = constraint.allowed()
    assert mask is not None
    assert [id for id in range(BYTES.vocabulary) if id in mask] == [LETTERS["b"]]


def test_what_an_inner_grammar_forbids_is_not_put_in() -> None:
    budget = ThoughtBudget(
        Never(), BYTES, tokens=1, end=MARKS.end, spelled=(), parser=lambda: parser("thought")
    )
    constraint = budget.begin()
    for _ in range(5):
        mask = constraint.allowed()
        assert mask is not None
        assert [id for id in range(BYTES.vocabulary) if id in mask] == [LETTERS["a"]]
        constraint.advance(LETTERS["a"])
