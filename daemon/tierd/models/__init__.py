"""A file becomes a plan: GGUF reading, weight and K/V formats, the op list, one file per family."""

from __future__ import annotations

from tierd.models.families import architectures, build_plan
from tierd.models.gguf import GGUFFile

__all__ = ["GGUFFile", "architectures", "build_plan"]
