"""How the device stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BIT_FOR_BIT = "bit for bit"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """backend: what runs models on the device. device: its name, "" when there is none; reason: why.

    products: how it multiplies by matrices, BIT_FOR_BIT or other words; "" when there is none.
    used, budget: bytes that models take, and may. reservations: those of each model that is there, or on its
    way. away: those that each of the others will take when its turn comes.
    faults: how often the device failed in its work and was given up, for whole models or for parts; fault:
    what it said last. retry_s: seconds until it is tried again, None where it is not.
    """

    backend: str = ""
    device: str = ""
    products: str = ""
    used: int = 0
    budget: int = 0
    reservations: Mapping[str, int] = field(default_factory=dict)
    away: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    faults: int = 0
    fault: str = ""
    retry_s: float | None = None

    @property
    def free(self) -> int:
        """Bytes that models may still take."""
        return max(0, self.budget - self.used)
