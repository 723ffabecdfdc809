"""How models mark what they think before they answer.

The marks are those that the models' own templates write; a model has those of the first row that its
template or, among its special tokens, its vocabulary knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# Where in an answer the prompt leaves off: before anything, in a thought, behind one, in the answer's text.
Stage = Literal["opening", "thought", "behind", "content"]


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """What stands around a thought. title: a word that its text begins with, and no part of it."""

    start: str
    end: str
    title: str = ""

    def opening(self, prompt: str) -> str:
        """Return the marks that a prompt ends with, and white space; "" where it ends otherwise."""
        end = rf"{re.escape(self.end)}\s*"
        pattern = rf"(?:{re.escape(self.start)}\s*(?:{re.escape(self.title)}\s*)?(?:{end})?|{end})\Z"
        found = re.search(pattern, prompt)
        return found[0] if found else ""

    def stage(self, begun: str) -> Stage:
        """Return where in an answer a text is that it begins with."""
        start, end = begun.rfind(self.start), begun.rfind(self.end)
        if start > end:
            return "thought"
        if end < 0:
            return "content" if begun.strip() else "opening"
        return "content" if begun[end + len(self.end) :].strip() else "behind"


HARMONY = ThoughtMarks("<|channel|>analysis<|message|>", "<|end|>")

# What stands before the final message of such an answer is free, thought or not.
FINAL = ThoughtMarks("<|channel|>", "<|channel|>final<|message|>")
USUAL = ThoughtMarks("<think>", "</think>")

FAMILIES = (
    HARMONY,
    USUAL,
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<|channel>", "<channel|>", title="thought"),
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("◁think▷", "◁/think▷"),
    ThoughtMarks("<reasoning>", "</reasoning>"),
    ThoughtMarks("<thinking>", "</thinking>"),
)


def find_marks(template: str, is_special: Callable[[str], bool]) -> tuple[ThoughtMarks | None, bool]:
    """Return a model's marks, None where it has none, and whether its template knows them.

    is_special: whether a text is one special token of the vocabulary.
    """
    for marks in FAMILIES:
        if _sign(marks) in template and marks.end in template:
            return marks, True
    return next((marks for marks in FAMILIES if is_special(_sign(marks))), None), False


def _sign(marks: ThoughtMarks) -> str:
    """Return the part of the first mark that says whose it is."""
    return "<|channel|>" if marks is HARMONY else marks.start
