"""The times of a request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tierd.core import Usage


@dataclass(slots=True)
class Timeline:
    """When what happened to a request, monotonic seconds; None until it has.

    started: its first rows went into a step. last_token: the one sampled most recently.
    """

    submitted: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None

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
