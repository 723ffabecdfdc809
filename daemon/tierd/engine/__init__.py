"""The one thread that owns all model state, and the handle on it that other threads hold."""

from tierd.engine.catalogue import Catalogue, CatalogueEntry
from tierd.engine.engine import Engine
from tierd.engine.snapshot import ModelSnapshot, Snapshot

__all__ = ["Catalogue", "CatalogueEntry", "Engine", "ModelSnapshot", "Snapshot"]
