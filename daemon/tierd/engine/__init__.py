"""The one thread that owns all model state, and the handle on it that other threads hold."""

from tierd.engine.catalogue import Catalogue, CatalogueEntry
from tierd.engine.engine import Engine
from tierd.engine.snapshot import (
    BankSnapshot,
    ModelSnapshot,
    RegionSnapshot,
    RegionState,
    SessionSnapshot,
    Snapshot,
    SwitchRecord,
    SwitchSnapshot,
)

__all__ = [
    "BankSnapshot",
    "Catalogue",
    "CatalogueEntry",
    "Engine",
    "ModelSnapshot",
    "RegionSnapshot",
    "RegionState",
    "SessionSnapshot",
    "Snapshot",
    "SwitchRecord",
    "SwitchSnapshot",
]
