"""Whose step a device runs next, when several models have work for it.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over device seconds: a model's turn begins at the
virtual time at which its last one ended, or now if it had no work then; a turn of so many seconds takes
seconds / weight of virtual time; the earliest beginning goes first. So models share the device by weight
over any stretch in which they have work, whatever their steps take, and none saves up time while idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# A step runs while the next one lies ready: then the first one's tokens are picked during the second.
DEPTH = 2


@dataclass(slots=True)
class Account:
    """What a model has had.

    next: virtual time at which its next turn begins. seconds: of its last step, endless before the first.
    """

    weight: int
    next: float
    seconds: float = math.inf


class Turns:
    """The virtual time of one device and the accounts of its models. Decides by numbers given, no clock."""

    def __init__(self) -> None:
        self._now = 0.0
        self._accounts: dict[str, Account] = {}
        self._given: list[str] = []  # turns that are not over, the running one first

    def enter(self, model: str, weight: int) -> None:
        """Let a model take part from now on."""
        self._accounts[model] = Account(weight, self._now)

    def leave(self, model: str) -> None:
        """Forget a model that has no turn."""
        self._accounts.pop(model, None)

    def order(self, candidates: Iterable[str]) -> list[str]:
        """Return who of the models that have work for another turn may go next, the best first. Pure.

        Nobody while turns are given out as deep as may be, nor one whose turn would begin later than
        the next one of the model that runs.
        """
        if len(self._given) >= DEPTH:
            return []
        waiting = sorted(candidates, key=self._beginning)
        if not self._given:
            return waiting
        again = self._beginning(self._given[0])
        return [model for model in waiting if self._beginning(model) <= again]

    def _beginning(self, model: str) -> float:
        """Return when a model's next turn would begin, the turns that it has taken as long as its last."""
        account, given = self._accounts[model], self._given.count(model)
        taken = given * account.seconds / account.weight if given else 0.0
        return max(account.next, self._now) + taken

    def begin(self, model: str) -> None:
        """Give a model a turn."""
        account = self._accounts[model]
        account.next = max(account.next, self._now)
        if not self._given:
            self._now = account.next
        self._given.append(model)

    def end(self, model: str, seconds: float) -> None:
        """Take the turn that runs back and charge the model with it."""
        self._given.remove(model)
        account = self._accounts[model]
        account.next += seconds / account.weight
        account.seconds = seconds
        if self._given:
            self._now = self._accounts[self._given[0]].next
