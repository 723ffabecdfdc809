"""The times of a request, and how far it was fed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tierd.core import Usage


@dataclass(slots=True)
class Timeline:
    """When what happened to a request, monotonic seconds; None until it has.

    started: its first rows went into a step. last_token: the one sampled most recently. fed: how many of its
    positions have had their K/V once, wherever.
    """

    submitted: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    fed: int = 0

    def feed(self, start: int, end: int) -> int:
        """Note that positions from start on have their K/V now; return how many of them had it before."""
        again = max(0, min(end, self.fed) - start)
        self.fed = max(self.fed, end)
        return again

    def on(self, usage: Usage, now: float) -> Usage:
        """Return the counts with what they took. now: when the request ends."""
        if self.started is None:
            return usage
        if self.first_token is None or self.last_token is None:
            return replace(usage, prompt_s=now - self.started)
        return replace(
            usage,
            prompt_s=self.first_token - self.started,
            generation_s=self.last_token - self.first_token,
        )
