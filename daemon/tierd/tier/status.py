"""How the device stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """device: its name, "" when there is none; reason: why. used, budget: bytes that models take, and may."""

    device: str = ""
    used: int = 0
    budget: int = 0
    reason: str = ""
