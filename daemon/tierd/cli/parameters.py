"""What a person may set about answers: options of `tierd chat`, and names that /set knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a chat request."""

    kind: type[float] | type[int]
    help: str

    def read(self, text: str) -> float:
        """Return the value that a text stands for. Raises ValueError, which says what it takes."""
        try:
            value = self.kind(text)
        except ValueError:
            value = math.nan
        if isinstance(value, float) and not math.isfinite(value):
            wanted = "a whole number" if self.kind is int else "a finite number"
            raise ValueError(f"takes {wanted}, not {text!r}")
        return value


PARAMETERS: Mapping[str, Parameter] = {
    "temperature": Parameter(float, "How freely to choose; 0 always takes the likeliest token."),
    "top_k": Parameter(int, "Choose among this many of the likeliest tokens; 0 means all."),
    "top_p": Parameter(float, "Choose among the likeliest tokens that make up this share."),
    "min_p": Parameter(float, "Choose among tokens at least this fraction as likely as the likeliest."),
    "repeat_penalty": Parameter(float, "Divide the logits of tokens so far by this; 1 means off."),
    "presence_penalty": Parameter(float, "Make tokens that the answer holds already this much less likely."),
    "frequency_penalty": Parameter(float, "The same, for each time that the answer holds them."),
    "max_tokens": Parameter(int, "Most tokens of an answer."),
    "seed": Parameter(int, "Where chance begins; the same seed gives the same answer."),
}
