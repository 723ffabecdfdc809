"""What was found out about one part of the box."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tierd.errors import TierdError


class Verdict(enum.StrEnum):
    """OK: as it should be. NOTE: tierd serves as it is asked to, but could do more. PROBLEM: it does not."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """subject: which part. text: how it is. remedy: what to do about that, in one line; "" for nothing.

    error: what `tierd serve` would end with for it; None unless it is a problem.
    """

    subject: str
    text: str
    verdict: Verdict = Verdict.OK
    remedy: str = ""
    error: type[TierdError] | None = None


def note(subject: str, text: str, remedy: str = "") -> Finding:
    """Return what is worth knowing."""
    return Finding(subject=subject, text=text, verdict=Verdict.NOTE, remedy=remedy)


def problem(subject: str, text: str, remedy: str, error: type[TierdError]) -> Finding:
    """Return what keeps tierd from serving as it is asked to."""
    return Finding(subject=subject, text=text, verdict=Verdict.PROBLEM, remedy=remedy, error=error)
