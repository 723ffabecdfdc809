"""OpenAI's `system_fingerprint`: changes when the build or the model's file does, and only then."""

from __future__ import annotations

import hashlib

from tierd import __version__
from tierd.engine import CatalogueEntry
from tierd.http.aside import aside
from tierd.settings import ModelSettings


def system_fingerprint(model: ModelSettings) -> str:
    """Return `fp_` and ten hexadecimal digits. A file that cannot be looked at counts by its name alone."""
    try:
        status = model.path.stat()
        file = f"{status.st_size} {status.st_mtime_ns}"
    except OSError:
        file = ""
    known = f"{__version__}\n{model.id}\n{model.path.name}\n{file}\n{model.codec}"
    return "fp_" + hashlib.sha256(known.encode()).hexdigest()[:10]


class Fingerprints:
    """Those of the models that have answered so far; each is made once for every time that it is loaded."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ModelSettings, int, str]] = {}

    async def of(self, entry: CatalogueEntry) -> str:
        """Return a model's fingerprint."""
        settings, created, fingerprint = self._known.get(entry.id, (None, 0, ""))
        if settings is not entry.settings or created != entry.created:
            fingerprint = await aside(lambda: system_fingerprint(entry.settings))
            self._known[entry.id] = (entry.settings, entry.created, fingerprint)
        return fingerprint
